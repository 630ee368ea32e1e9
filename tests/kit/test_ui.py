"""The tags that write money, times, states and fields."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from django import forms
from django.core.paginator import Paginator
from django.template import engines
from django.test import RequestFactory
from django.utils import translation
from django.utils.translation import trans_real
from hypothesis import given
from hypothesis import strategies as st

from gpunex.kit import show, svg
from gpunex.kit.money import MICRO
from gpunex.kit.translations import compile_catalogues

AT = datetime(2026, 10, 14, 14, 5, 9, tzinfo=UTC)


def render(source: str, query: str = "", **context: object) -> str:
    request = RequestFactory().get(f"/offers{query}")
    return engines["django"].from_string("{% load ui %}" + source).render(context, request).strip()


# --- money -----------------------------------------------------------------------------------------------------------


def test_money_is_cut_and_never_rounded():
    assert render("{% usdc amount %}", amount=2_099_999) == '<bdi dir="ltr" class="money">2.09</bdi>'
    assert render("{% usdc amount %}", amount=999_999_999) == '<bdi dir="ltr" class="money">999.99</bdi>'


def test_the_other_four_digits_follow_smaller_where_a_bill_must_be_exact():
    text = render("{% usdc amount fine=True unit=True %}", amount=18_017_222)

    assert (
        text == '<bdi dir="ltr" class="money">18.01<span class="fine">7222</span> <span class="cur">USDC</span></bdi>'
    )


def test_less_than_a_cent_never_reads_as_nothing():
    assert (
        render("{% usdc amount %}", amount=347)
        == '<bdi dir="ltr" class="money">0.00<span class="fine">0347</span></bdi>'
    )
    assert render("{% usdc amount %}", amount=0) == '<bdi dir="ltr" class="money">0.00</bdi>'


def test_a_negative_amount_has_a_real_minus_and_is_cut_too():
    assert render("{% usdc amount %}", amount=-2_096_666) == '<bdi dir="ltr" class="money">−2.09</bdi>'
    assert 'data-sign="in">+150.00<' in render("{% usdc amount signed=True %}", amount=150 * MICRO)
    assert "+" not in render("{% usdc amount signed=True %}", amount=-150 * MICRO)


def test_thousands_are_parted_by_commas_in_both_languages():
    for language in ("en", "ar"):
        with translation.override(language):
            assert render("{% usdc amount %}", amount=13_432_620_000) == '<bdi dir="ltr" class="money">13,432.62</bdi>'


def test_an_amount_that_is_not_known_is_not_zero():
    assert render("{% usdc amount %}{% price amount %}{% num amount %}{% when amount %}", amount=None) == ""


def test_money_that_is_no_whole_number_is_a_mistake_of_ours():
    for wrong in (1.5, "2000000", True):
        with pytest.raises(TypeError):
            render("{% usdc amount %}", amount=wrong)


@given(st.integers(min_value=-(10**15), max_value=10**15))
def test_the_digits_shown_are_the_digits_of_the_amount(micro: int):
    sign, main, fine = show.usdc_parts(micro)

    assert int((main + fine).replace(",", "").replace(".", "")) * (-1 if sign else 1) == micro


def test_a_price_shows_more_than_two_decimals_only_where_it_has_them():
    assert show.price(2_050_000) == "2.05"
    assert show.price(2_000_000) == "2.00"
    assert show.price(125_000) == "0.125"


def test_a_percentage_and_a_score_are_cut():
    assert render("{% percent 99.999 places=2 %}") == '<bdi dir="ltr">99.99 %</bdi>'
    assert render("{% percent 0.29 share=True %}") == '<bdi dir="ltr">29 %</bdi>'
    assert render("{% percent 4.56 places=1 signed=True %}") == '<bdi dir="ltr">+4.5 %</bdi>'
    assert render("{% percent 0.04 places=1 signed=True %}") == '<bdi dir="ltr">0.0 %</bdi>'
    assert render("{% percent -6.4 places=1 signed=True %}") == '<bdi dir="ltr">−6.4 %</bdi>'
    assert render("{% num -0.4 %}") == '<bdi dir="ltr">0</bdi>'


def test_a_rate_that_policy_sets_is_never_cut():
    assert [render("{% rate value %}", value=value) for value in (8.0, 8.5, 91.97, 100)] == [
        f'<bdi dir="ltr">{text} %</bdi>' for text in ("8", "8.5", "91.97", "100")
    ]


# --- time ------------------------------------------------------------------------------------------------------------


def test_a_moment_says_utc_and_carries_its_machine_time():
    assert render("{% when at %}", at=AT) == (
        '<time datetime="2026-10-14T14:05:09Z">14 Oct 2026, <bdi dir="ltr">14:05 UTC</bdi></time>'
    )
    tokyo = AT.astimezone(ZoneInfo("Asia/Tokyo"))
    assert (
        render("{% when at 'time' %}", at=tokyo)
        == '<time datetime="2026-10-14T14:05:09Z"><bdi dir="ltr">14:05 UTC</bdi></time>'
    )


def test_the_arabic_month_stays_outside_the_latin_island():
    with translation.override("ar"):
        text = render("{% when at %}", at=AT)

    assert re.search(r"14 أكتوبر 2026.*<bdi dir=\"ltr\">14:05 UTC</bdi>", text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (725, "12 min 5 s"),
        (3_600, "1 h"),
        (15_820, "4 h 23 min"),
        (86_400, "1 day"),
        (183_600, "2 days 3 h"),
    ],
)
def test_a_duration_names_its_two_largest_units(seconds: int, text: str):
    assert show.duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (3, "3 s ago"),
        (180, "3 min ago"),
        (3_600, "1 hour ago"),
        (7_300, "2 hours ago"),
        (86_400, "1 day ago"),
        (-180, "in 3 min"),
    ],
)
def test_a_distance_counts_in_one_unit(seconds: int, text: str):
    assert show.distance(AT - timedelta(seconds=seconds), AT) == text


def test_arabic_counts_in_its_six_forms(tmp_path: Path, settings):
    catalogue = tmp_path / "ar" / "LC_MESSAGES" / "django.po"
    catalogue.parent.mkdir(parents=True)
    forms_of = ["صفر", "يوم", "يومان", "%(count)s أيام", "%(count)s يوماً", "%(count)s يوم"]
    catalogue.write_text(
        'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=utf-8\\n"\n"Plural-Forms: nplurals=6; plural=n==0 ? 0 : n==1 ? 1 :'
        ' n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 && n%100<=99 ? 4 : 5;\\n"\n\n'
        'msgid "%(count)s day"\nmsgid_plural "%(count)s days"\n'
        + "".join(f'msgstr[{i}] "{form}"\n' for i, form in enumerate(forms_of))
    )
    compile_catalogues(tmp_path)
    settings.LOCALE_PATHS = [tmp_path]
    try:
        trans_real._translations.clear()
        with translation.override("ar"):
            said = [show.duration(days * 86_400) for days in (1, 2, 3, 11, 100)]
    finally:
        trans_real._translations.clear()

    assert said == ["يوم", "يومان", "3 أيام", "11 يوماً", "100 يوم"]


# --- islands and states ----------------------------------------------------------------------------------------------


def test_names_and_addresses_stand_in_islands_of_their_own_direction():
    address = "xk4wnx9ccCuZz9R97v3YzA4w8EjPm4cG2nS9HALeBwu2"

    assert render("{% host name %}", name="fra-a1") == '<bdi dir="ltr" class="host">fra-a1</bdi>'
    assert render("{% ltr %}2 × H100{% endltr %}") == '<bdi dir="ltr">2 × H100</bdi>'
    assert (
        render("{% addr address %}", address=address)
        == f'<bdi dir="ltr" class="addr" title="{address}">xk4w…Bwu2</bdi>'
    )
    assert f">{address}<" in render("{% addr address full=True %}", address=address)


def test_what_people_wrote_is_escaped():
    assert "<script>" not in render(
        "{% host name %}{% addr name %}{% badge 'ok' name %}{% crumb name %}", name="<script>alert(1)</script>"
    )
    assert "&lt;b&gt;" in render('{% part "explain" state="warn" title=title %}x{% endpart %}', title="<b>")


def test_a_state_has_a_shape_and_a_word():
    text = render("{% badge 'busy' 'Rented' %}")

    assert 'data-state="info"' in text and "#i-state-busy" in text and "<span>Rented</span>" in text
    with pytest.raises(ValueError, match="no state"):
        render("{% badge 'fine' 'x' %}")


# --- links -----------------------------------------------------------------------------------------------------------


def test_a_link_keeps_the_rest_of_the_query():
    assert render("{% query_with sort='price' page=None %}", "?model=h100&page=3") == "?model=h100&amp;sort=price"
    assert render("{% query_with model=None %}", "?model=h100") == "/offers"


def test_a_column_head_turns_its_order_round():
    ascending = render("{% sort_th 'price' 'Price' num=True %}", "?sort=price&page=2")

    assert 'aria-sort="ascending"' in ascending and 'href="?sort=-price"' in ascending
    assert "aria-sort" not in render("{% sort_th 'price' 'Price' %}", "?sort=rank")


def test_the_pager_keeps_the_query_and_vanishes_on_a_single_page():
    pages = Paginator(range(1_204), 50)

    text = render("{% pager page %}", "?model=h100&page=2", page=pages.page(2))
    assert "51" in text and "100" in text and "1,204" in text
    assert 'href="?model=h100&amp;page=1"' in text and 'href="?model=h100&amp;page=3"' in text
    assert render("{% pager page %}", page=Paginator([1], 50).page(1)) == ""


# --- forms -----------------------------------------------------------------------------------------------------------


class EntryForm(forms.Form):
    email = forms.EmailField(label="Email", help_text="It stays private.")
    speed = forms.DecimalField(label="Speed", min_value=0)
    count = forms.IntegerField(label="GPUs")
    company = forms.CharField(label="Company", required=False)
    cycle = forms.ChoiceField(label="Cycle", choices=[("w", "Weekly"), ("m", "Monthly")], widget=forms.RadioSelect)
    model = forms.ChoiceField(label="Model", choices=[("h", "H100")])
    agreed = forms.BooleanField(label="Agreed", required=False)


def test_a_refused_field_keeps_what_was_typed_and_says_why_beside_it():
    form = EntryForm({"speed": "abc", "email": "nobody"})

    speed = render('{% field form.speed unit="Gbps" %}', form=form)
    assert 'value="abc"' in speed and 'type="text"' in speed and 'inputmode="decimal"' in speed
    assert (
        'aria-invalid="true"' in speed
        and 'aria-describedby="id_speed_error"' in speed
        and 'id="id_speed_error"' in speed
    )
    assert "Gbps" in speed
    email = render("{% field form.email %}", form=form)
    assert 'aria-describedby="id_email_helptext id_email_error"' in email and "It stays private." in email
    assert 'for="id_email"' in email and "data-ltr" in email


def test_a_field_that_may_stay_empty_says_so():
    form = EntryForm()

    assert "optional" in render("{% field form.company %}", form=form)
    assert "optional" not in render(
        "{% field form.company optional=False %}{% field form.email %}{% field form.agreed %}", form=form
    )


def test_choices_are_a_named_group():
    form = EntryForm({"cycle": "x"})

    text = render("{% field form.cycle segment=True %}", form=form)
    assert (
        'role="radiogroup"' in text and 'aria-labelledby="id_cycle_label"' in text and text.count('type="radio"') == 2
    )
    assert 'class="select"' in render("{% field form.model %}", form=form)
    assert 'inputmode="numeric"' in render("{% field form.count %}", form=form)


def test_a_refused_form_says_what_holds_for_all_of_it_and_leads_to_its_fields():
    form = EntryForm({"email": "nobody"})
    form.add_error(None, "These GPUs have just been taken.")

    text = render("{% form_errors form summary=True %}", form=form)
    assert 'role="alert"' in text and "These GPUs have just been taken." in text and 'href="#id_email"' in text
    assert render("{% form_errors form %}", form=EntryForm()) == ""


# --- drawings --------------------------------------------------------------------------------------------------------


def test_every_drawing_has_a_sentence_and_no_inline_style():
    chart = svg.Chart(
        values=[300, 365.5, 211],
        label="Earned per day",
        ticks=["1 Oct", "3 Oct"],
        titles=["a", "b", "c"],
        unfinished=True,
    )
    drawn = [
        svg.spark([1, None, 3, 2], label="Price"),
        svg.spark([], label="Nothing yet"),
        svg.fill(0.72, label="72 %"),
        svg.fills([(0.5, "v1"), (0.7, "v2")], label="Both"),
        svg.strip(low=1.84, high=2.58, p10=1.9, p90=2.5, median=2.1, needle=2.05, label="2.05"),
        svg.days(["ok", "part", "down", "excused", "none"], label="5 days"),
        svg.cells(["busy", "free", "hidden", "warn", "bad"], label="5 GPUs"),
        svg.bars(chart),
        svg.bars(svg.Chart(values=[], label="Nothing")),
        svg.line(chart),
    ]

    for text in drawn:
        assert 'role="img"' in text and 'aria-label="' in text
        assert "style=" not in text and "nan" not in text
    assert drawn[7].count("data-on") == 1


def test_shares_never_leave_their_whole():
    text = svg.fills([(0.8, "v1"), (0.9, "v2")], label="x")

    widths = [float(width) for width in re.findall(r'width="([\d.]+)%" height="100%"/>', text)]
    assert sum(widths[1:]) <= 100
    assert 'width="100.00%"' in svg.fill(1.7, label="x")


def test_the_label_of_a_drawing_is_escaped():
    assert '"><script>' not in svg.fill(0.5, label='"><script>')
