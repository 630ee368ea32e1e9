// Signing with a wallet in this browser. Without one, or without this file, the signature is pasted: the form stands there anyway.
// Wallets are found in both ways that they make themselves known: the Wallet Standard's events, and the objects of before it.
const place = document.querySelector("[data-wallet]");
const ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
const known = new Map();

const base58 = (bytes) => {
  let number = bytes.reduce((sum, byte) => sum * 256n + BigInt(byte), 0n);
  let text = "";
  for (; number > 0n; number /= 58n) text = ALPHABET[Number(number % 58n)] + text;
  for (const byte of bytes) {
    if (byte) break;
    text = `1${text}`;
  }
  return text;
};

const say = (key, fill = "") => {
  const status = place.querySelector("[role=status]");
  status.textContent = (place.dataset[key] ?? "").replace("{}", fill);
  status.hidden = false;
};
const short = (address) => `${address.slice(0, 6)}…${address.slice(-6)}`;

// Each answers { address, sign } once the person has let this page in.
const openStandard = (wallet) => async () => {
  const { accounts } = await wallet.features["standard:connect"].connect();
  const account = accounts.find((one) => one.address === place.dataset.address) ?? accounts[0];
  const sign = async (message) =>
    (await wallet.features["solana:signMessage"].signMessage({ account, message }))[0].signature;
  return { address: account?.address ?? "", sign };
};
const openInjected = (wallet) => async () => {
  await wallet.connect();
  const sign = async (message) => {
    const answer = await wallet.signMessage(message, "utf8");
    return answer.signature ?? answer;
  };
  return { address: String(wallet.publicKey ?? ""), sign };
};

const offer = (name, open) => {
  if (known.has(name)) return;
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "btn", textContent: place.dataset.with.replace("{}", name) });
  button.dataset.kind = known.size ? "" : "primary";
  button.addEventListener("click", () => signWith(button, open));
  known.set(name, button);
  place.querySelector("[data-wallets]").append(button);
  place.hidden = false;
  // One button leads: the wallet that is here.
  document.getElementById(place.dataset.form).querySelector("[data-kind=primary]")?.removeAttribute("data-kind");
};

const signWith = async (button, open) => {
  button.setAttribute("aria-busy", "true");
  try {
    say("asking");
    const { address, sign } = await open();
    if (address !== place.dataset.address) {
      say("other", short(address));
      return;
    }
    const signature = await sign(new TextEncoder().encode(place.dataset.message));
    const form = document.getElementById(place.dataset.form);
    form.elements.signature.value = base58(Uint8Array.from(signature));
    say("sending");
    form.requestSubmit();
  } catch {
    say("refused");
  } finally {
    button.removeAttribute("aria-busy");
  }
};

if (place) {
  const register = (...wallets) => {
    for (const wallet of wallets) {
      if (wallet.features["solana:signMessage"] && wallet.features["standard:connect"]) offer(wallet.name, openStandard(wallet));
    }
    return () => {};
  };
  const api = Object.freeze({ register });
  window.addEventListener("wallet-standard:register-wallet", (event) => event.detail(api));
  window.dispatchEvent(new CustomEvent("wallet-standard:app-ready", { detail: api }));
  const injected = { Phantom: window.phantom?.solana, Solflare: window.solflare, Backpack: window.backpack };
  const nameless = window.solana;
  for (const [name, wallet] of Object.entries(injected)) if (wallet?.signMessage) offer(name, openInjected(wallet));
  if (!known.size && nameless?.signMessage) offer(place.dataset.nameless, openInjected(nameless));
}
