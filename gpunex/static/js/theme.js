// Runs before the first paint, so that a page never flashes in the other theme. The account's choice, if the server sent one, wins.
(() => {
  const root = document.documentElement;
  root.dataset.js = ""; // what needs a script is shown only where there is one
  if (root.dataset.theme) return;
  try {
    const kept = localStorage.getItem("theme");
    if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  } catch {
    // Storage may be closed to us: the system's theme holds.
  }
})();
