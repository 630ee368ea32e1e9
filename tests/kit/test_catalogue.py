"""The Arabic catalogue as its readers meet it: whole, with the sources' placeholders, in six forms, with Western digits."""

import re
from collections.abc import Iterator

import pytest
from babel.messages.catalog import Catalog, Message
from babel.messages.pofile import read_po

from gpunex.kit.translations import catalogue_path, messages_of_sources

pytestmark = pytest.mark.spec("J1")

PLACEHOLDER = re.compile(r"%\(\w+\)[a-z]|%[sd]|\{\w*\}")
TAG = re.compile(r"</?[a-z]+")
ARABIC_INDIC = re.compile("[\u0660-\u0669\u06f0-\u06f9]")
FIRST_ISOLATE, POP_ISOLATE = "\u2066\u2067\u2068", "\u2069"


@pytest.fixture(scope="module")
def arabic() -> Catalog:
    with catalogue_path("ar").open("rb") as file:
        return read_po(file, locale="ar")


@pytest.fixture(scope="module")
def known(arabic: Catalog) -> list[Message]:
    return [message for message in arabic if message.id]


def texts(text: object) -> tuple[str, ...]:
    return tuple(text) if isinstance(text, (tuple, list)) else (str(text or ""),)


def forms(messages: list[Message]) -> Iterator[tuple[str, str]]:
    for message in messages:
        for form in texts(message.string):
            yield texts(message.id)[0], form


def test_every_message_of_the_sources_stands_in_the_catalogue(arabic: Catalog):
    missing = [
        texts(message.id)[0]
        for message in messages_of_sources()
        if message.id and arabic.get(texts(message.id)[0], message.context) is None
    ]
    assert missing == []


def test_nothing_is_untranslated_and_nothing_is_a_guess(known: list[Message]):
    gaps = [texts(message.id)[0] for message in known if message.fuzzy or not all(texts(message.string))]
    assert gaps == []


def test_each_plural_has_the_six_arabic_forms(arabic: Catalog, known: list[Message]):
    assert arabic.num_plurals == 6
    odd = [
        texts(message.id)[0]
        for message in known
        if len(texts(message.string)) != (6 if len(texts(message.id)) > 1 else 1)
    ]
    assert odd == []


def test_placeholders_are_those_of_the_source(known: list[Message]):
    """A plural form may leave out the number ("one machine"), nothing else, and never adds one."""
    odd = []
    for message in known:
        sources, translations = texts(message.id), texts(message.string)
        wanted = [sorted(PLACEHOLDER.findall(source)) for source in sources]
        for form in translations:
            found = sorted(PLACEHOLDER.findall(form))
            fits = found == wanted[0] if len(sources) == 1 else set(found) <= set(wanted[0]) | set(wanted[-1])
            if not fits:
                odd.append((sources[0], form))
    assert odd == []


def test_the_last_plural_forms_name_every_placeholder(known: list[Message]):
    """From three on the number is not in the noun, so a form without it would be a lie."""
    plurals = [message for message in known if len(texts(message.id)) > 1]
    odd = [
        (texts(message.id)[0], form)
        for message in plurals
        for form in texts(message.string)[3:]
        if set(PLACEHOLDER.findall(form)) != set(PLACEHOLDER.findall(texts(message.id)[-1]))
    ]
    assert odd == []


def test_markup_is_that_of_the_source(known: list[Message]):
    """As many tags as the source has; an island (<bdi>) may be added."""
    odd = []
    for source, form in forms([message for message in known if len(texts(message.id)) == 1]):
        wanted = [tag for tag in TAG.findall(source) if tag not in ("<bdi", "</bdi")]
        found = [tag for tag in TAG.findall(form) if tag not in ("<bdi", "</bdi")]
        if sorted(wanted) != sorted(found):
            odd.append((source, form))
    assert odd == []


def test_digits_are_western_and_punctuation_is_arabic(known: list[Message]):
    odd = [(source, form) for source, form in forms(known) if ARABIC_INDIC.search(form)]
    odd += [
        (source, form)
        for source, form in forms(known)
        if re.search("[\u0600-\u06ff][,;?]|!", re.sub(r"<[^>]*>", "", form)) and "DATETIME" not in source
    ]
    assert odd == []


def test_isolates_are_closed(known: list[Message]):
    odd = []
    for source, form in forms(known):
        depth = 0
        for character in form:
            depth += character in FIRST_ISOLATE
            depth -= character == POP_ISOLATE
            if depth not in (0, 1):
                break
        if depth:
            odd.append((source, form))
    assert odd == []


def test_arabic_never_boasts(known: list[Message]):
    """The voice says what happened; "successfully" adds nothing."""
    assert [form for _source, form in forms(known) if "بنجاح" in form] == []
