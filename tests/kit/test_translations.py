import os
from pathlib import Path

import pytest
from babel.messages.pofile import read_po

from gpunex.kit.translations import (
    catalogue_path,
    compile_catalogues,
    complaints,
    extract_catalogues,
    messages_of_sources,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project of one template and one module."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "page.html").write_text(
        "{% load i18n %}\n"
        "   <p class='it\\'s odd' title=\"(\">{% translate 'Hello' %} def broken( {{ _(\"Variable\") }}\n"
        " {% blocktranslate trimmed with n=name count c=number %}{{ c }} machine\n"
        "   of {{ n }}{% plural %}{{ c }} machines of {{ n }}{% endblocktranslate %}\n"
        '{% translate "May" context "month" as m %}{{ m|default:_("none") }}\n'
    )
    (tmp_path / "billing").mkdir()
    (tmp_path / "billing" / "words.py").write_text(
        "from django.utils.translation import gettext_lazy as _, ngettext\n"
        "# Translators: shown beside the balance\n"
        'A = _("Balance %(amount)s")\n'
        'def days(n):\n    return ngettext("%(n)s day", "%(n)s days", n)\n'
    )
    return tmp_path


def ours(root: Path) -> dict[object, str | None]:
    """Messages of the project itself, without those of the admin's theme."""
    return {
        message.id: message.context
        for message in messages_of_sources(root)
        if message.id and not any(str(file).startswith("unfold/") for file, _ in message.locations)
    }


def test_messages_of_templates_and_modules_are_found_with_context_and_plural(root: Path):
    assert ours(root) == {
        "Hello": None,
        "Variable": None,
        ("%(c)s machine of %(n)s", "%(c)s machines of %(n)s"): None,
        "May": "month",
        "none": None,
        "Balance %(amount)s": None,
        ("%(n)s day", "%(n)s days"): None,
    }


def translate(locale: Path, source: str, target: str) -> None:
    path = catalogue_path("ar", locale)
    text = path.read_text()
    assert text.count(f'msgid "{source}"\nmsgstr ""') == 1
    path.write_text(text.replace(f'msgid "{source}"\nmsgstr ""', f'msgid "{source}"\nmsgstr "{target}"'))


def test_extracting_again_keeps_translations_and_changes_nothing_that_did_not_change(root: Path):
    locale = root / "locale"
    assert extract_catalogues(root, locale) == [catalogue_path("ar", locale)]
    translate(locale, "Hello", "مرحبا")
    before = catalogue_path("ar", locale).read_bytes()
    extract_catalogues(root, locale)
    assert catalogue_path("ar", locale).read_bytes() == before


def test_what_a_reader_would_notice_is_reported(root: Path):
    locale = root / "locale"
    assert {complaint.what for complaint in complaints(root, locale)} == {"not in the catalogue (run extract)"}
    extract_catalogues(root, locale)
    translate(locale, "Hello", "مرحبا")
    translate(locale, "Balance %(amount)s", "الرصيد %(sum)s")
    found = {complaint.message: complaint.what for complaint in complaints(root, locale)}
    assert "Hello" not in found
    assert found["Variable"] == "not translated"
    assert found["Balance %(amount)s"] == "the translation's placeholders differ"


def test_catalogues_are_compiled_once_and_again_when_they_change(root: Path):
    locale = root / "locale"
    extract_catalogues(root, locale)
    written = compile_catalogues(locale)
    assert [path.suffix for path in written] == [".mo"]
    assert compile_catalogues(locale) == []
    source = catalogue_path("ar", locale)
    later = source.stat().st_mtime_ns + 10**9
    os.utime(source, ns=(later, later))
    os.utime(written[0], ns=(later - 1, later - 1))
    assert compile_catalogues(locale) == written


def test_arabic_has_its_six_plurals(root: Path):
    locale = root / "locale"
    extract_catalogues(root, locale)
    with catalogue_path("ar", locale).open("rb") as file:
        assert read_po(file, locale="ar").num_plurals == 6
