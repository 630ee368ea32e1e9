"""What holds for every stylesheet and template: directions, policy, translations, contrast."""

import itertools
import math
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "gpunex" / "static"
CSS = sorted((STATIC / "css").glob("*.css"))
TEMPLATES = sorted(path for path in (ROOT / "templates").rglob("*") if path.suffix in {".html", ".txt"})
PAGES = [path for path in TEMPLATES if path.suffix == ".html"]
# Mail programs read neither stylesheets of ours nor logical properties everywhere.
MAIL_FRAME = ROOT / "templates" / "mail" / "base.html"


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def css_of(path: Path) -> str:
    return re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S)


# --- direction -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("J1")
@pytest.mark.parametrize("path", CSS, ids=name_of)
def test_a_stylesheet_names_no_physical_side(path: Path):
    physical = re.findall(r"[^{};]*(?<![\w-])(?:left|right)(?![\w-])[^{};]*", css_of(path))
    physical += re.findall(r"(?:margin|padding|border)-(?:top|bottom|left|right)[^{};]*", css_of(path))

    assert physical == []


@pytest.mark.parametrize("path", [path for path in CSS if path.name != "tokens.css"], ids=name_of)
def test_only_the_tokens_hold_colours(path: Path):
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b|(?:rgb|hsl|oklch|oklab)a?\([\d.]", css_of(path)) == []


# --- policy of the browser's side ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_a_template_needs_no_exception_from_the_content_security_policy(path: Path):
    text = path.read_text()

    assert re.findall(r"\sstyle\s*=", text) == []
    assert re.findall(r"\son[a-z]+\s*=\s*[\"']", text) == []
    assert "javascript:" not in text
    assert re.findall(r"\bhx-on\b|hx-(?:vals|headers)\s*=\s*[\"']js:", text) == []
    for script in re.findall(r"<script\b[^>]*>", text):
        assert " src=" in script or 'type="application/json"' in script, script
    if path != MAIL_FRAME:
        assert "<style" not in text


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_a_template_loads_nothing_from_elsewhere(path: Path):
    assert re.findall(r"(?:src|srcset)\s*=\s*[\"'](?:https?:)?//", path.read_text()) == []
    assert re.findall(r"<link\b[^>]*href\s*=\s*[\"'](?:https?:)?//", path.read_text()) == []


def test_scripts_need_no_eval():
    ours = "".join(path.read_text() for path in sorted((STATIC / "js").glob("*.js")))

    assert not re.search(r"\beval\(|new Function|\.innerHTML|document\.write", ours)
    assert '"allowEval":false' in (ROOT / "templates" / "base.html").read_text()


# --- words -----------------------------------------------------------------------------------------------------------

# Text between tags, outside template code. What may stand untranslated is a name or a sign, the same in every language.
SAME_EVERYWHERE = {
    "GPUnex",
    "API",
    "CSV",
    "PDF",
    "USDC",
    "UTC",
    "GPU",
    "GPUs",
    "VRAM",
    "CUDA",
    "UPS",
    "FP",
    "GB",
    "GiB",
    "Gbps",
    "MB",
    "Solana",
}
# Written once for each language, or in both at once.
IN_ONE_LANGUAGE = re.compile(r"templates/(500|guide/(en|ar))\.html")


@pytest.mark.spec("J1")
@pytest.mark.parametrize("path", [path for path in PAGES if not IN_ONE_LANGUAGE.fullmatch(name_of(path))], ids=name_of)
def test_every_word_of_a_template_can_be_translated(path: Path):
    text = path.read_text()
    text = re.sub(r"\{#.*?#\}", "", text)
    text = re.sub(r"\{% comment[^%]*%\}.*?\{% endcomment %\}", "", text, flags=re.S)
    text = re.sub(r"\{% blocktrans(?:late)?\b.*?\{% endblocktrans(?:late)? %\}", "", text, flags=re.S)
    # The admin's theme writes its icons as words of an icon font.
    text = re.sub(r"<span class=\"material-symbols[^>]*>.*?</span>", "", text)
    text = re.sub(r"<style.*?</style>|<script.*?</script>", "", text, flags=re.S)
    text = re.sub(r"\{% ltr[^%]*%\}.*?\{% endltr %\}", "", text, flags=re.S)
    # Commands, units and other Latin text is marked as such, and is the same in every language.
    text = re.sub(r"<(bdi|code|pre)\b[^>]*dir=\"ltr\"[^>]*>.*?</\1>", "", text, flags=re.S)
    text = re.sub(r"\{%.*?%\}|\{\{.*?\}\}", "\0", text, flags=re.S)
    said = re.findall(r">([^<>]*)<", text) + re.findall(r"\b(?:alt|title|placeholder|aria-label)=\"([^\"\0]*)\"", text)
    words = {word for part in said for word in re.findall(r"[^\W\d_]{2,}", re.sub(r"&\w+;", "", part))}

    assert words - SAME_EVERYWHERE == set()


@pytest.mark.parametrize("path", TEMPLATES, ids=name_of)
def test_a_template_that_says_something_loads_the_translations(path: Path):
    text = path.read_text()

    if re.search(r"\{% (?:trans|blocktrans)|_\(\"", text):
        assert re.search(r"\{% load [^%]*\bi18n\b", text)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_a_form_that_changes_something_is_protected(path: Path):
    text = path.read_text()

    for form in re.findall(r"<form\b[^>]*method=\"post\".*?</form>", text, flags=re.S):
        assert "{% csrf_token %}" in form or "_token %}" in form, form[:200]


@pytest.mark.parametrize("path", TEMPLATES, ids=name_of)
def test_a_block_tag_is_named_in_its_first_half(path: Path):
    # {% endltr as name %} would be ignored in silence: the text stays where it is and the name stays empty.
    assert re.findall(r"\{% end\w+ as \w+ %\}", path.read_text()) == []


# --- icons -----------------------------------------------------------------------------------------------------------


def test_every_icon_that_is_used_exists():
    known = set(re.findall(r'<symbol id="i-([\w-]+)"', (STATIC / "icons.svg").read_text()))
    used = {name for path in PAGES for name in re.findall(r"\{% icon \"([\w-]+)\"", path.read_text())}

    assert used - known == set()
    assert {"state-ok", "state-busy", "state-warn", "state-bad", "state-info", "state-idle", "minus", "close"} <= known


# --- contrast --------------------------------------------------------------------------------------------------------

THEMES = ("light", "dark")
GROUNDS = ("paper", "surface", "well")
STATES = ("ok", "warn", "bad", "info", "idle")
TEXT = [
    *itertools.product(("ink", "ink-2", "ink-3", "accent", "accent-strong", *STATES), GROUNDS),
    *((state, f"{state}-wash") for state in STATES),
    *itertools.product(("ink", "ink-2"), (f"{state}-wash" for state in STATES)),
    *itertools.product(
        ("ink", "ink-2", "ink-3", "accent", "accent-strong", "ok", "warn", "bad", "idle"), ("accent-wash",)
    ),
    ("on-accent", "accent"),
    ("on-accent", "accent-strong"),
    ("on-accent", "data-1"),
    *itertools.product(("band-ink", "band-ink-2", "band-accent", "band-warn", "band-bad"), ("band", "band-raised")),
    ("band", "band-warn"),
    ("qr-ink", "qr-paper"),
]
MARKS = [
    *itertools.product(("rule-control", "data-1", "data-2", "accent"), GROUNDS),
    *((state, "surface") for state in STATES),
    ("band-accent", "band-raised"),
]


def tokens(theme: str) -> dict[str, tuple[float, float, float]]:
    """The colours of tokens.css in one theme, as OKLCH."""
    colour = r"oklch\(([\d.]+) ([\d.]+) ([\d.]+)\)"
    found = {}
    for name, value in re.findall(r"--([\w-]+):\s*([^;]+);", css_of(STATIC / "css" / "tokens.css").split("@media")[0]):
        colours = re.findall(colour, value)
        if colours and name != "shadow-float":
            found[name] = tuple(map(float, colours[THEMES.index(theme)] if len(colours) == 2 else colours[0]))
    return found


def linear_rgb(colour: tuple[float, float, float]) -> tuple[float, float, float]:
    """OKLCH to linear sRGB, cut to the gamut (Ottosson, https://bottosson.github.io/posts/oklab/)."""
    lightness, chroma, hue = colour
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    rgb = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return tuple(min(1.0, max(0.0, channel)) for channel in rgb)  # type: ignore[return-value]


def contrast(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    """WCAG 2.2 contrast ratio, from relative luminance."""
    weights = (0.2126, 0.7152, 0.0722)
    luminances = [math.sumprod(weights, linear_rgb(colour)) for colour in (one, other)]
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("text", "ground"), TEXT, ids="-on-".join)
def test_text_stands_out_from_its_ground(theme: str, text: str, ground: str):
    assert contrast(tokens(theme)[text], tokens(theme)[ground]) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("mark", "ground"), MARKS, ids="-on-".join)
def test_controls_and_marks_stand_out_from_their_ground(theme: str, mark: str, ground: str):
    assert contrast(tokens(theme)[mark], tokens(theme)[ground]) >= 3.0


def test_the_colours_of_mails_are_those_of_the_tokens():
    known = [linear_rgb(colour) for theme in THEMES for colour in tokens(theme).values()]

    for text in set(re.findall(r"#[0-9a-f]{6}", MAIL_FRAME.read_text())) - {"#ffffff"}:
        channels = [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        shown = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        assert min(max(abs(a - b) for a, b in zip(shown, colour, strict=True)) for colour in known) < 0.02, text
