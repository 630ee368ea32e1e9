"""The tags of the pages: ``{% load ui %}``. One tag writes money, one writes times, one writes a field.

Numbers with Latin units stand in ``<bdi dir="ltr">`` islands, so that Arabic text around them cannot turn them about.
Texts come from ``gpunex.kit.show``, drawings from ``gpunex.kit.svg``, markup with a body from ``templates/parts/``.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from django import template
from django.conf import settings
from django.core.paginator import Page
from django.forms import BaseForm, BoundField, IntegerField, widgets
from django.http import QueryDict
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language, gettext

from gpunex.kit import show, svg

register = template.Library()

# --- money and numbers -----------------------------------------------------------------------------------------------


@register.simple_tag
def usdc(micro: int | None, fine: bool = False, unit: bool = False, signed: bool = False) -> SafeString | str:
    """An amount of money: two decimals, cut; ``fine`` adds the other four smaller; ``unit`` names USDC; ``signed`` shows +.

    Nothing for None: an amount that is not known is not 0.
    """
    if micro is None or micro == "":
        return ""
    sign, main, digits = show.usdc_parts(micro)
    income = signed and micro > 0
    return format_html(
        '<bdi dir="ltr" class="money"{}>{}{}{}{}</bdi>',
        mark_safe(' data-sign="in"') if income else "",
        "+" if income else sign,
        main,
        format_html('<span class="fine">{}</span>', digits) if fine or show.needs_fine(micro) else "",
        mark_safe(' <span class="cur">USDC</span>') if unit else "",
    )


@register.simple_tag
def price(micro: int | None, unit: bool = False) -> SafeString | str:
    """A price in USDC per GPU per hour; the head of the column, or the sentence, says so."""
    if micro is None or micro == "":
        return ""
    return format_html(
        '<bdi dir="ltr" class="money">{}{}</bdi>',
        show.price(micro),
        mark_safe(' <span class="cur">USDC</span>') if unit else "",
    )


@register.simple_tag
def num(value: float | Decimal | None, places: int = 0, unit: str = "") -> SafeString | str:
    """A number with commas, cut to ``places``, with its unit in the same island: 15,820 or 71.4 GB."""
    if value is None or value == "":
        return ""
    return format_html('<bdi dir="ltr">{}{}</bdi>', show.cut(value, places), f" {unit}" if unit else "")


@register.simple_tag
def percent(
    value: float | Decimal | None, places: int = 0, share: bool = False, signed: bool = False
) -> SafeString | str:
    """``value`` per cent, cut; ``share`` says that it is a share between 0 and 1; ``signed`` shows the + of a rise."""
    if value is None or value == "":
        return ""
    text = show.cut(Decimal(str(value)) * 100 if share else value, places)
    rises = signed and any(digit in "123456789" for digit in text) and not text.startswith(show.MINUS)
    return format_html('<bdi dir="ltr">{}{} %</bdi>', "+" if rises else "", text)


@register.simple_tag
def rate(per_cent: float | Decimal | None) -> SafeString | str:
    """A rate that policy sets, whole as it was set: 8 %, 8.5 %, 12.75 %."""
    if per_cent is None or per_cent == "":
        return ""
    return format_html('<bdi dir="ltr">{} %</bdi>', f"{Decimal(str(per_cent)).normalize():f}")


# --- time ------------------------------------------------------------------------------------------------------------


@register.simple_tag
def when(at: datetime | date | None, style: show.Style = "full") -> SafeString | str:
    """A moment in UTC that says so: full, date, day (no year), time, seconds. A plain date is a day."""
    if at is None or at == "":
        return ""
    if not isinstance(at, datetime):
        return format_html('<time datetime="{}">{}</time>', at.isoformat(), show.day_text(at, year=style != "day"))
    stamp = _stamp(at)
    if style in ("date", "day"):
        return format_html('<time datetime="{}">{}</time>', stamp, show.moment(at, style))
    clock = format_html('<bdi dir="ltr">{}</bdi>', show.time_text(at, seconds=style == "seconds"))
    if style in ("time", "seconds"):
        return format_html('<time datetime="{}">{}</time>', stamp, clock)
    # The day stays outside the island: in Arabic its month is Arabic.
    text = format_html(
        gettext("%(date)s, %(time)s") % {"date": "{}", "time": "{}"}, show.day_text(at.astimezone(UTC).date()), clock
    )
    return format_html('<time datetime="{}">{}</time>', stamp, text)


@register.simple_tag
def moment(at: datetime, style: show.Style = "full") -> str:
    """The same as plain text, for mails and attributes."""
    return show.moment(at, style)


@register.simple_tag
def ago(at: datetime | None, now: datetime | None = None) -> SafeString | str:
    """How long ago, or in how long; the whole moment on pointing at it."""
    if at is None or at == "":
        return ""
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        _stamp(at),
        show.moment(at),
        show.distance(at, now or timezone.now()),
    )


@register.simple_tag
def duration(seconds: int | None, style: str = "words") -> SafeString | str:
    """In words (4 h 23 min), or with "clock" as on a stop-watch (4:23:40)."""
    if seconds is None or seconds == "":
        return ""
    if style == "clock":
        return format_html('<bdi dir="ltr">{}</bdi>', show.clock(seconds))
    return format_html('<span class="nowrap">{}</span>', show.duration(seconds))


def _stamp(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- words with a shape ----------------------------------------------------------------------------------------------


@register.simple_tag
def icon(name: str, flip: bool = False) -> SafeString:
    """An icon of the sprite; ``flip`` for arrows and chevrons, which turn round in Arabic."""
    return svg.icon(name, flip=flip)


@register.simple_tag
def badge(state: str, text: str) -> SafeString:
    """A state as an object: shape, word and wash. ok, warn, bad, info, idle, busy (a half disc in the colour of info)."""
    return _shape("badge", state, text)


@register.simple_tag(name="state")
def state_word(state: str, text: str) -> SafeString:
    """The same in a table or a sentence, without the wash."""
    return _shape("state", state, text)


def _shape(css: str, state: str, text: str) -> SafeString:
    if state not in svg.STATE_ICONS:
        raise ValueError(f"no state is called {state!r}")
    return format_html(
        '<span class="{}" data-state="{}">{}<span>{}</span></span>',
        css,
        "info" if state == "busy" else state,
        svg.icon(f"state-{state}"),
        text,
    )


@register.simple_tag
def tier(name: str | None) -> SafeString | str:
    """The tier as a plate: enterprise has the double rule. Nothing where there is no tier yet."""
    return format_html('<span class="tier" data-tier="{}">{}</span>', name, _tier_word(name)) if name else ""


@register.simple_tag
def tierword(name: str | None) -> SafeString | str:
    """The tier as a word in a row."""
    return format_html('<span class="tierword" data-tier="{}">{}</span>', name, _tier_word(name)) if name else ""


def _tier_word(name: str) -> str:
    return gettext("Enterprise") if name == "enterprise" else gettext("Community")


@register.simple_block_tag
def ltr(content: str) -> SafeString:
    """An island that runs left to right: ``{% ltr %}2 × H100 80GB{% endltr %}``."""
    return format_html('<bdi dir="ltr">{}</bdi>', content)


@register.simple_tag
def host(name: str) -> SafeString:
    """A host, job or machine name as it is typed."""
    return format_html('<bdi dir="ltr" class="host">{}</bdi>', name)


@register.simple_tag
def addr(value: str, full: bool = False) -> SafeString | str:
    """An address, signature or id: its ends, the whole on pointing at it; ``full`` shows all of it."""
    if not value:
        return ""
    if full or len(value) <= 12:
        return format_html('<bdi dir="ltr" class="addr"{}>{}</bdi>', mark_safe(" data-full") if full else "", value)
    return format_html('<bdi dir="ltr" class="addr" title="{}">{}…{}</bdi>', value, value[:4], value[-4:])


# --- drawings --------------------------------------------------------------------------------------------------------


@register.simple_tag
def spark(values: Iterable[float | None], label: str, full: bool = False) -> SafeString:
    return svg.spark(values, label=label, full=full)


@register.simple_tag
def fill(share: float, label: str, state: str = "", size: str = "") -> SafeString:
    return svg.fill(share, label=label, state=state, size=size)


@register.simple_tag
def fills(shares: Iterable[tuple[float, str]], label: str, size: str = "") -> SafeString:
    return svg.fills(shares, label=label, size=size)


@register.simple_tag
def strip(
    low: float, high: float, p10: float, p90: float, median: float, label: str, needle: float | None = None
) -> SafeString:
    return svg.strip(low=low, high=high, p10=p10, p90=p90, median=median, needle=needle, label=label)


@register.simple_tag
def days(states: Iterable[str], label: str, size: str = "", titles: Sequence[str] = ()) -> SafeString:
    return svg.days(states, label=label, size=size, titles=titles)


@register.simple_tag
def cells(states: Iterable[str], label: str) -> SafeString:
    return svg.cells(states, label=label)


@register.simple_tag
def bars(chart: svg.Chart) -> SafeString:
    return svg.bars(chart)


@register.simple_tag
def band_chart(chart: svg.Band) -> SafeString:
    return svg.band(chart)


@register.simple_tag
def line_chart(chart: svg.Chart) -> SafeString:
    return svg.line(chart)


# --- parts with a body -----------------------------------------------------------------------------------------------


@register.simple_block_tag(takes_context=True)
def part(context: template.Context, content: str, name: str, **params: Any) -> SafeString:
    """``{% part "explain" state="warn" title=t %}…{% endpart %}``: the file ``parts/explain.html`` with ``body``."""
    # The body is what the template engine has just rendered and escaped, and so is the part.
    assert context.template is not None  # a block tag runs while a template renders
    with context.push(**params, body=content):
        return context.template.engine.get_template(f"parts/{name}.html").render(context)


# --- links -----------------------------------------------------------------------------------------------------------


@register.simple_tag(takes_context=True)
def query_with(context: template.Context, **changes: Any) -> str:
    """The present query with some keys changed; None takes a key away."""
    request = context.get("request")
    query = request.GET.copy() if request else QueryDict(mutable=True)
    for key, value in changes.items():
        if value is None:
            query.pop(key, None)
        else:
            query[key] = str(value)
    encoded = query.urlencode() if query else ""
    return f"?{encoded}" if encoded else (request.path if request else "?")


@register.simple_tag
def crumb(text: str, to: str = "", *args: Any) -> SafeString:
    """One step of the path: a link and its chevron, or, without a link, the page itself."""
    if not to:
        return format_html('<span aria-current="page">{}</span>', text)
    try:
        href = to if to.startswith("/") else reverse(to, args=args)
    except NoReverseMatch:
        return format_html("<span>{}</span>{}", text, svg.icon("chevron", flip=True))
    return format_html('<a href="{}">{}</a>{}', href, text, svg.icon("chevron", flip=True))


@register.simple_tag(takes_context=True)
def sort_th(
    context: template.Context,
    key: str,
    text: str,
    unit: str = "",
    num: bool = False,
    low: bool = False,
    first: str = "ascending",
    default: str = "",
) -> SafeString:
    """The head of a column that sorts by ``?sort=key`` (``-key`` descending). ``default`` is the sort when none is asked."""
    request = context.get("request")
    asked = (request.GET.get("sort") if request else "") or default
    now = {key: "ascending", f"-{key}": "descending"}.get(asked)
    nxt = {"ascending": f"-{key}", "descending": key}[now] if now else (key if first == "ascending" else f"-{key}")
    return format_html(
        '<th scope="col"{}{}{}><a class="sort" href="{}">{}{}</a>{}</th>',
        mark_safe(" data-num") if num else "",
        mark_safe(" data-low") if low else "",
        format_html(' aria-sort="{}"', now) if now else "",
        query_with(context, sort=nxt, page=None),
        text,
        svg.icon("sorted" if now else "sort"),
        format_html('<span class="unit">{}</span>', unit) if unit else "",
    )


@register.simple_tag
def other_languages() -> list[tuple[str, str]]:
    """Code and own name of each language but the present one: nobody looks for their language under a foreign name."""
    return [(code, str(name)) for code, name in settings.LANGUAGES if code != get_language()]


@register.inclusion_tag("parts/pager.html", takes_context=True)
def pager(context: template.Context, page: Page, key: str = "page", anchor: str = "") -> dict[str, Any]:
    """Which rows these are, and the pages before and after; nothing where everything fits on one page.

    A page with several lists names the ``key`` of each in the query, and the ``anchor`` at which the list stands.
    """
    to = f"#{anchor}" if anchor else ""
    return {
        "page": page,
        "before": query_with(context, **{key: page.previous_page_number()}) + to if page.has_previous() else "",
        "after": query_with(context, **{key: page.next_page_number()}) + to if page.has_next() else "",
    }


# --- forms -----------------------------------------------------------------------------------------------------------

_LATIN_INPUTS = {"email", "url", "password"}


@register.simple_tag
def field(
    bound: BoundField,
    label: str = "",
    hint: str | None = None,
    unit: str = "",
    full: bool = False,
    size: str = "",
    segment: bool = False,
    optional: bool = True,
    placeholder: str | None = None,
) -> SafeString | str:
    """A field with its label, hint and errors, tied together for those who listen. It keeps what was typed.

    ``hint=""`` leaves the form's own help text out; ``unit`` stands in the field's end; ``segment`` shows a few radio choices side by side; ``full`` takes the whole row;
    ``optional=False`` leaves out the word "optional" (filters, where everything is); ``placeholder`` replaces the widget's.
    """
    if bound.is_hidden:
        return bound.as_widget()
    widget = bound.field.widget
    if hint is not None:
        bound.help_text = hint  # Django ties the control to it, too
    kind = _kind(widget)
    described = [f"{bound.auto_id}_helptext"] if bound.help_text else []
    if bound.errors:
        described.append(f"{bound.auto_id}_error")
    attrs: dict[str, Any] = {}
    if described:
        attrs["aria-describedby"] = " ".join(described)
    if kind in ("input", "textarea") and not unit:
        attrs["class"] = " ".join(filter(None, [widget.attrs.get("class"), "input"]))
        if size:
            attrs["data-size"] = size
    if placeholder is not None:
        widget.attrs.pop("placeholder", None)
        attrs |= {"placeholder": placeholder} if placeholder else {}
    if getattr(widget, "input_type", "") in _LATIN_INPUTS:
        attrs["data-ltr"] = True
    if isinstance(widget, widgets.NumberInput):
        # As text: a number field silently drops "abc", so the refusal could not show what was typed.
        widget.input_type = "text"
        for limit in ("min", "max", "step"):
            widget.attrs.pop(limit, None)
        attrs["inputmode"] = "numeric" if type(bound.field) is IntegerField else "decimal"
    if attrs.get("inputmode") or widget.attrs.get("inputmode") in ("decimal", "numeric"):
        attrs["dir"] = "ltr"
    group = kind in ("radio", "checks")
    return render_to_string(
        "parts/field.html",
        {
            "bound": bound,
            "control": "" if group else bound.as_widget(attrs=attrs),
            "describedby": attrs.get("aria-describedby", ""),
            "kind": "segment" if kind == "radio" and segment else kind,
            "label": label or bound.label,
            "hint": bound.help_text,
            "unit": unit,
            "full": full,
            "size": size,
            "optional": optional and not bound.field.required and kind != "check",
        },
    )


def _kind(widget: widgets.Widget) -> str:
    # The order matters: RadioSelect and CheckboxSelectMultiple are kinds of Select.
    for kind, classes in (
        ("check", (widgets.CheckboxInput,)),
        ("checks", (widgets.CheckboxSelectMultiple,)),
        ("radio", (widgets.RadioSelect,)),
        ("select", (widgets.Select,)),
        ("textarea", (widgets.Textarea,)),
    ):
        if isinstance(widget, classes):
            return kind
    return "input"


@register.inclusion_tag("parts/form_errors.html")
def form_errors(form: BaseForm, summary: bool = False) -> dict[str, Any]:
    """What the whole form was refused for; with ``summary`` also a list of the fields that need a change, each a link."""
    fields = [bound for bound in form if bound.errors and not bound.is_hidden] if summary and form.is_bound else []
    hidden = [error for bound in form if bound.is_hidden for error in bound.errors] if form.is_bound else []
    return {"errors": [*form.non_field_errors(), *hidden] if form.is_bound else [], "fields": fields}


@register.simple_tag
def join(items: Iterable[Any], separator: str = ", ") -> SafeString:
    """Items in one line, escaped; the Arabic comma comes with the translation of the separator."""
    return format_html_join(gettext(separator) if separator == ", " else separator, "{}", ((item,) for item in items))
