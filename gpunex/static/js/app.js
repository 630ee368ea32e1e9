// What HTML alone cannot do: theme at once, copying, following a log. Every page works without this file.
const root = document.documentElement;

const isDark = () => root.dataset.theme === "dark" || (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);

const otherTheme = () => {
  const theme = isDark() ? "light" : "dark";
  root.dataset.theme = theme;
  try {
    localStorage.setItem("theme", theme);
  } catch {
    // Without storage the choice lasts as long as the page does.
  }
  return theme;
};

// The form keeps the choice with the account; the page changes at once and stays where it is.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.matches("[data-theme-form]")) return;
  event.preventDefault();
  const theme = otherTheme();
  const body = new FormData(form);
  body.set("theme", theme);
  fetch(form.action, { method: "POST", body, redirect: "manual" }).catch(() => {});
});

// A form that changes something is sent once: a second press while the first is on its way does nothing.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (event.defaultPrevented || form.method !== "post" || form.matches("[data-theme-form], [hx-post]")) return;
  if (form.dataset.sent) {
    event.preventDefault();
    return;
  }
  form.dataset.sent = "yes";
  event.submitter?.setAttribute("aria-busy", "true");
});

// Back from the next page: the form may be sent again.
window.addEventListener("pageshow", (event) => {
  if (!event.persisted) return;
  for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
  for (const button of document.querySelectorAll("form [aria-busy]")) button.removeAttribute("aria-busy");
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if ("themeToggle" in button.dataset) {
    otherTheme();
  } else if (button.dataset.copy) {
    const word = button.querySelector("span");
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent.trim());
      const before = word.textContent;
      word.textContent = button.dataset.copy;
      button.disabled = true;
      setTimeout(() => {
        word.textContent = before;
        button.disabled = false;
      }, 1600);
    } catch {
      // No clipboard here: the text is selected, so that one key copies it.
      getSelection().selectAllChildren(code);
    }
  } else if ("dismiss" in button.dataset) {
    button.closest(".toast").remove();
  } else if ("follow" in button.dataset) {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    if (on) toEnd(button.closest("[data-log]"));
  }
});

// ---- logs: they stand at their last line until someone reads further up ----
const toEnd = (log) => {
  const pre = log.querySelector("pre");
  pre.scrollTop = pre.scrollHeight;
};
const followed = (log) => log.querySelector("[data-follow]")?.getAttribute("aria-pressed") === "true";

const watchLogs = (within) => {
  for (const log of within.querySelectorAll("[data-log]")) {
    if (log.dataset.watched) continue;
    log.dataset.watched = "yes";
    toEnd(log);
    log.querySelector("pre").addEventListener("scroll", (event) => {
      const pre = event.target;
      const atEnd = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 24;
      log.querySelector("[data-follow]")?.setAttribute("aria-pressed", String(atEnd));
    });
    log.querySelector("[data-find]")?.addEventListener("input", () => find(log));
  }
};

// Finding shows the lines that hold the words; the text itself is never rewritten.
const find = (log) => {
  const words = log.querySelector("[data-find]").value.trim().toLowerCase();
  const pre = log.querySelector("pre");
  CSS.highlights?.delete("found");
  if (!words || !CSS.highlights) return;
  const ranges = [];
  const walker = document.createTreeWalker(pre, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.data.toLowerCase();
    for (let at = text.indexOf(words); at >= 0; at = text.indexOf(words, at + words.length)) {
      const range = new Range();
      range.setStart(walker.currentNode, at);
      range.setEnd(walker.currentNode, at + words.length);
      ranges.push(range);
    }
  }
  CSS.highlights.set("found", new Highlight(...ranges));
  ranges.at(-1)?.startContainer.parentElement.scrollIntoView({ block: "nearest" });
};

watchLogs(document);
document.addEventListener("htmx:afterSettle", (event) => {
  watchLogs(document);
  const log = event.target.closest?.("[data-log]");
  if (log && followed(log)) toEnd(log);
});

// An empty time zone is the browser's, to be seen and changed before anything is sent.
const guessZone = (within) => {
  for (const input of within.querySelectorAll("[data-guess-zone]")) {
    if (!input.value) input.value = Intl.DateTimeFormat().resolvedOptions().timeZone ?? "";
  }
};
guessZone(document);
document.addEventListener("htmx:afterSettle", () => guessZone(document));

// The current tab is brought into view on a phone; a refusal is brought to whoever caused it.
document.querySelector(".tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
const refused = document.querySelector("[data-refusal]") ?? document.querySelector("main [aria-invalid='true']");
refused?.focus();
