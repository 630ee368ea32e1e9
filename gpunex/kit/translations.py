"""Message catalogues without the gettext programs: extraction and compilation with Babel and Django's own template lexer.

    python -m gpunex.kit.translations extract   bring gpunex/locale/*/LC_MESSAGES/django.po up to the code
    python -m gpunex.kit.translations compile   make the .mo files that Django reads (never committed)
    python -m gpunex.kit.translations check     exit 1 if a message is missing, untranslated or breaks its placeholders

The admin's theme (unfold) ships no translations, so its messages are in our catalogue too.
"""

import importlib.util
import io
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from babel.messages.catalog import Catalog, Message
from babel.messages.extract import extract
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from django.utils.translation.template import templatize

ROOT = Path(__file__).resolve().parents[2]
LOCALE = ROOT / "gpunex" / "locale"
LANGUAGES = ("ar",)  # beside English, the language of the sources

_OURS = ("gpunex", "providers", "marketplace", "billing", "payouts", "reliability")
_FOREIGN = ("unfold",)
_TEMPLATES = {".html", ".txt", ".xml"}
_SKIPPED = {"migrations", "static", "static_built", "locale", "embedded", "node_modules"}
_KEYWORDS: dict[str, tuple[int | tuple[int, str], ...] | None] = {
    "_": None,
    "_lazy": None,
    "gettext": None,
    "gettext_lazy": None,
    "gettext_noop": None,
    "ngettext": (1, 2),
    "ngettext_lazy": (1, 2),
    "pgettext": ((1, "c"), 2),
    "pgettext_lazy": ((1, "c"), 2),
    "npgettext": ((1, "c"), 2, 3),
    "npgettext_lazy": ((1, "c"), 2, 3),
}
_PLACEHOLDER = re.compile(r"%\(\w+\)[a-z]|%[sd]|\{\w*\}")


@dataclass(frozen=True)
class Complaint:
    language: str
    message: str
    what: str

    def __str__(self) -> str:
        return f"{self.language}: {self.what}: {self.message!r}"


def catalogue_path(language: str, locale: Path = LOCALE) -> Path:
    return locale / language / "LC_MESSAGES" / "django.po"


def compile_catalogues(locale: Path = LOCALE) -> list[Path]:
    """Write each .mo that is missing or older than its .po; answers those written. Safe beside a running server."""
    written = []
    for source in sorted(locale.glob("*/LC_MESSAGES/*.po")):
        target = source.with_suffix(".mo")
        if target.exists() and target.stat().st_mtime_ns >= source.stat().st_mtime_ns:
            continue
        with source.open("rb") as file:
            catalogue = read_po(file, locale=source.parts[-3])
        unfinished = target.with_name(f"{target.name}.{os.getpid()}")
        with unfinished.open("wb") as file:
            write_mo(file, catalogue)
        unfinished.replace(target)
        written.append(target)
    return written


def extract_catalogues(root: Path = ROOT, locale: Path = LOCALE) -> list[Path]:
    """Bring each language's .po up to the sources. Translations are kept; those no longer used stay as comments."""
    messages = messages_of_sources(root)
    written = []
    for language in LANGUAGES:
        path = catalogue_path(language, locale)
        catalogue = _read(path, language)
        # No fuzzy matching: a guess that looks like a translation is worse than a gap that is reported.
        catalogue.update(messages, no_fuzzy_matching=True, update_creation_date=False)
        text = io.BytesIO()
        # Without line numbers, so that a diff of the catalogue shows only changes of messages.
        write_po(text, catalogue, width=110, sort_by_file=True, include_lineno=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != text.getvalue():
            path.write_bytes(text.getvalue())
            written.append(path)
    return written


def complaints(root: Path = ROOT, locale: Path = LOCALE) -> list[Complaint]:
    """What a reader of another language would notice, and messages of the sources that no catalogue knows."""
    messages = messages_of_sources(root)
    found = []
    for language in LANGUAGES:
        catalogue = _read(catalogue_path(language, locale), language)
        for message in messages:
            if not message.id:  # the header
                continue
            text = _texts(message.id)[0]
            known = catalogue.get(text, message.context)
            if known is None:
                found.append(Complaint(language, text, "not in the catalogue (run extract)"))
            elif known.fuzzy or not all(_texts(known.string)):
                found.append(Complaint(language, text, "not translated"))
            elif not _same_placeholders(known):
                found.append(Complaint(language, text, "the translation's placeholders differ"))
    return found


def messages_of_sources(root: Path = ROOT) -> Catalog:
    """Every translatable message of the code and the templates, with the files it stands in."""
    catalogue = Catalog(project="GPUnex", charset="utf-8")
    for path, label in _sources(root):
        content = path.read_bytes()
        if path.suffix in _TEMPLATES:
            # Django's lexer leaves calls of gettext() and blanks out the rest. Inside parentheses the leftovers are
            # valid tokens wherever they stand: indentation means nothing there.
            content = f"({templatize(content.decode(), origin=label)}\n)".encode()
        elif b"gettext" not in content:
            continue
        for line, ids, comments, context in extract(
            "python", io.BytesIO(content), keywords=_KEYWORDS, comment_tags=("Translators:",)
        ):
            catalogue.add(ids, None, [(label, line)], auto_comments=comments, context=context)
    return catalogue


def _sources(root: Path) -> Iterator[tuple[Path, str]]:
    places = [(root / name, root) for name in (*_OURS, "templates")]
    for name in _FOREIGN:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            package = Path(spec.submodule_search_locations[0])
            places.append((package, package.parent))
    for place, base in places:
        for path in sorted(place.rglob("*")):
            label = path.relative_to(base)
            if path.suffix in {*_TEMPLATES, ".py"} and path.is_file() and not _SKIPPED.intersection(label.parts):
                yield path, label.as_posix()


def _read(path: Path, language: str) -> Catalog:
    if not path.exists():
        return Catalog(
            locale=language,
            project="GPUnex",
            version="1",
            charset="utf-8",
            fuzzy=False,
            header_comment="# The interface of GPUnex in another language. English texts are the sources' own.",
            last_translator="GPUnex",
            language_team="GPUnex",
            msgid_bugs_address="GPUnex",
        )
    with path.open("rb") as file:
        return read_po(file, locale=language)


def _texts(text: Any) -> tuple[str, ...]:
    """Singular and plural forms of a message's source or translation; Babel keeps a text that has no plural bare."""
    return tuple(text) if isinstance(text, (tuple, list)) else (text or "",)


def _same_placeholders(message: Message) -> bool:
    """Each form uses the placeholders of the source. Forms of a plural may leave out the number ("one machine")."""
    sources, forms = _texts(message.id), _texts(message.string)
    if len(sources) > 1:
        allowed = {placeholder for text in sources for placeholder in _PLACEHOLDER.findall(text)}
        return all(set(_PLACEHOLDER.findall(form)) <= allowed for form in forms)
    return sorted(_PLACEHOLDER.findall(forms[0])) == sorted(_PLACEHOLDER.findall(sources[0]))


def main(arguments: list[str]) -> int:
    match arguments:
        case ["compile"]:
            for path in compile_catalogues():
                print(path.relative_to(ROOT))
            return 0
        case ["extract"]:
            for path in extract_catalogues():
                print(path.relative_to(ROOT))
            print(*complaints(), sep="\n")
            return 0
        case ["check"]:
            found = complaints()
            print(*found[:50], sep="\n")
            if len(found) > 50:
                print(f"and {len(found) - 50} more")
            return 1 if found else 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
