// Passkeys: a form with data-passkey asks the device when it is sent, and is sent once the device has answered.
// "add" makes a key, "confirm" uses one of a person who is known, "sign-in" one of whoever it is.
const bytes = (text) => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (char) => char.charCodeAt(0));
const text = (buffer) =>
  btoa(String.fromCharCode(...new Uint8Array(buffer))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
const keys = (list) => (list ?? []).map((key) => ({ ...key, id: bytes(key.id) }));

const say = (form, key) => {
  const status = form.querySelector("[role=status]");
  status.textContent = status.dataset[key];
  status.hidden = false;
};

const make = async (form, options) => {
  const alone = form.elements.passwordless?.checked;
  const credential = await navigator.credentials.create({
    publicKey: {
      ...options,
      challenge: bytes(options.challenge),
      user: { ...options.user, id: bytes(options.user.id) },
      excludeCredentials: keys(options.excludeCredentials),
      authenticatorSelection: {
        ...options.authenticatorSelection,
        residentKey: alone ? "required" : "discouraged",
        requireResidentKey: alone,
        ...(alone && { userVerification: "required" }),
      },
    },
  });
  const { response } = credential;
  return plain(credential, {
    clientDataJSON: text(response.clientDataJSON),
    attestationObject: text(response.attestationObject),
    transports: response.getTransports?.() ?? [],
  });
};

const use = async (options) => {
  const credential = await navigator.credentials.get({
    publicKey: { ...options, challenge: bytes(options.challenge), allowCredentials: keys(options.allowCredentials) },
  });
  const { response } = credential;
  return plain(credential, {
    clientDataJSON: text(response.clientDataJSON),
    authenticatorData: text(response.authenticatorData),
    signature: text(response.signature),
    userHandle: response.userHandle ? text(response.userHandle) : null,
  });
};

const plain = (credential, response) => ({
  type: credential.type,
  id: credential.id,
  rawId: text(credential.rawId),
  authenticatorAttachment: credential.authenticatorAttachment,
  clientExtensionResults: credential.getClientExtensionResults(),
  response,
});

// A sign-in asks for its options only when it is wanted; elsewhere they stand in the page.
const optionsOf = async (form) => {
  if (form.dataset.options) return JSON.parse(document.getElementById(form.dataset.options).textContent).publicKey;
  const answer = await fetch(form.action, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error(`options: ${answer.status}`);
  return (await answer.json()).request_options.publicKey;
};

const problem = (error) =>
  ({ InvalidStateError: "known", SecurityError: "insecure", NotSupportedError: "unable" })[error.name] ?? "refused";

const ask = async (form) => {
  try {
    if (!navigator.credentials || !window.PublicKeyCredential) {
      say(form, window.isSecureContext ? "unable" : "insecure");
      return;
    }
    say(form, "asking");
    const options = await optionsOf(form);
    const credential = form.dataset.passkey === "add" ? await make(form, options) : await use(options);
    form.elements.credential.value = JSON.stringify(credential);
    form.submit();
  } catch (error) {
    say(form, problem(error));
  }
};

// Before the rule in app.js that a form is sent once: this one is sent by its key alone.
for (const form of document.querySelectorAll("form[data-passkey]")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask(form);
  });
}
