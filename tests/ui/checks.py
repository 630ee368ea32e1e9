"""What every page has to be: in its language and direction, fitting its window, light and dark, and named for those who listen."""

from playwright.sync_api import Page

WIDTHS = (390, 1440)
HEIGHT = 900
DIRECTIONS = {"en": "ltr", "ar": "rtl"}

# What a browser can tell about names without a screen reader: each problem is a sentence with the element it is about.
_NAMES = """() => {
  const problems = [];
  const tell = (what, element) => problems.push(`${what}: ${element.outerHTML.replace(/\\s+/g, " ").slice(0, 160)}`);
  const text = (element) => {
    const copy = element.cloneNode(true);
    for (const silent of copy.querySelectorAll("[aria-hidden=true]")) silent.remove();
    const pictures = [...copy.querySelectorAll("img[alt], svg[aria-label]")].map((one) => one.getAttribute("alt") ?? one.getAttribute("aria-label"));
    return (copy.textContent + pictures.join("")).trim();
  };
  const named = (element) =>
    (element.getAttribute("aria-label") ?? "").trim() ||
    (element.getAttribute("aria-labelledby") ?? "").split(/\\s+/).filter(Boolean).map((id) => document.getElementById(id)).some((one) => one && text(one)) ||
    [...(element.labels ?? [])].some(text) ||
    (element.getAttribute("title") ?? "").trim();

  const heads = document.querySelectorAll("h1");
  if (heads.length !== 1) problems.push(`${heads.length} h1 instead of one`);
  const ids = new Map();
  for (const element of document.querySelectorAll("[id]")) ids.set(element.id, (ids.get(element.id) ?? 0) + 1);
  for (const [id, count] of ids) if (count > 1) problems.push(`the id ${id} is given ${count} times`);
  for (const name of ["for", "aria-labelledby", "aria-describedby", "aria-controls", "popovertarget", "list"]) {
    for (const element of document.querySelectorAll(`[${name}]`)) {
      for (const id of element.getAttribute(name).split(/\\s+/).filter(Boolean)) if (!ids.has(id)) tell(`${name} names nothing`, element);
    }
  }
  for (const control of document.querySelectorAll("input:not([type=hidden], [type=submit], [type=button]), select, textarea")) {
    if (!named(control)) tell("a control without a label", control);
  }
  for (const press of document.querySelectorAll("button, a[href], summary, [role=button]")) {
    if (!named(press) && !text(press)) tell("nothing says what this does", press);
  }
  for (const picture of document.querySelectorAll("img:not([alt])")) tell("an image without alt", picture);
  for (const picture of document.querySelectorAll("svg[role=img]")) {
    if (!named(picture) && !picture.querySelector("title")) tell("a picture without a name", picture);
  }
  for (const part of document.querySelectorAll("dialog, [role=dialog], [role=group], [role=radiogroup]")) {
    if (!named(part)) tell("a group without a name", part);
  }
  for (const table of document.querySelectorAll("main table")) {
    if (!table.caption && !named(table)) tell("a table without a caption", table);
  }
  for (const element of document.querySelectorAll("[tabindex]")) if (element.tabIndex > 0) tell("its own order of focus", element);
  let level = 0;
  for (const head of document.querySelectorAll("main h1, main h2, main h3, main h4, main h5, main h6")) {
    const next = Number(head.tagName[1]);
    if (next > level + 1) tell(`a heading of level ${next} after one of level ${level}`, head);
    level = next;
  }
  return problems;
}"""

_OVERFLOW = """() => {
  const root = document.documentElement;
  if (root.scrollWidth <= root.clientWidth) return "";
  const wide = [...document.querySelectorAll("body *")].filter((one) => {
    const box = one.getBoundingClientRect();
    return box.width > 0 && (box.right > root.clientWidth + 1 || box.left < -1) && getComputedStyle(one).position !== "absolute";
  });
  return `${root.scrollWidth} px wide: ${(wide.at(-1) ?? document.body).outerHTML.replace(/\\s+/g, " ").slice(0, 160)}`;
}"""

_BACKGROUND = (
    "() => getComputedStyle(document.body).backgroundColor + getComputedStyle(document.documentElement).backgroundColor"
)


def problems_of(page: Page, language: str) -> list[str]:
    """Everything that is wrong with the page as it stands, in sentences that begin with its path. Leaves it wide and light."""
    path = page.evaluate("location.pathname")
    found: list[str] = []
    root = page.locator("html")
    if root.get_attribute("lang") != language:
        found.append(f"the language is {root.get_attribute('lang')} and not {language}")
    if root.evaluate("one => getComputedStyle(one).direction") != DIRECTIONS[language]:
        found.append(f"the direction is not {DIRECTIONS[language]}")
    found += page.evaluate(_NAMES)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": HEIGHT})
        if wide := page.evaluate(_OVERFLOW):
            found.append(f"at {width} px it is {wide}")
    colours = []
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        colours.append(background_of(page))
    if colours[0] == colours[1]:
        found.append(f"light and dark are the same {colours[0]}")
    return [f"{path}: {problem}" for problem in found]


def background_of(page: Page) -> str:
    """The colours that the page is painted on."""
    return str(page.evaluate(_BACKGROUND))
