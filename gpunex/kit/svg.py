"""Data marks and charts as SVG text, drawn on the server. Geometry is attributes only: the CSP allows no ``style``.

Time and price run left to right in both languages; ``fill`` follows the reading direction (the CSS mirrors it).
Every mark carries its sentence in ``label``: a picture without words says nothing to a screen reader.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, log10

from django.templatetags.static import static
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

CELL_ICONS = {"warn": "minus", "bad": "close"}
STATE_ICONS = ("ok", "busy", "warn", "bad", "info", "idle")


def icon(name: str, *, flip: bool = False) -> SafeString:
    """One icon of the sprite, decoration only: the word beside it carries the meaning."""
    return format_html(
        '<svg class="icon" aria-hidden="true"{}><use href="{}#i-{}"/></svg>',
        mark_safe(" data-flip") if flip else "",
        static("icons.svg"),
        name,
    )


def _n(value: float) -> str:
    """A coordinate with at most one decimal, as short as it can be written."""
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")


def _share(value: float) -> float:
    return min(1.0, max(0.0, float(value)))


def spark(values: Iterable[float | None], *, label: str, full: bool = False) -> SafeString:
    """A trend without a scale; stands beside its last value. Missing readings are skipped, not drawn as zero."""
    known = [float(value) for value in values if value is not None]
    if len(known) < 2:
        known = known * 2 or [0.0, 0.0]
    low, span = min(known), max(known) - min(known)
    step = 104 / (len(known) - 1)
    points = [f"{_n(i * step)} {_n(26 - 24 * (value - low) / span if span else 14)}" for i, value in enumerate(known)]
    line = "M" + " ".join(points)
    return format_html(
        '<svg class="mark spark"{} viewBox="0 0 104 28" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<path class="area" d="{} 104 28 0 28Z"/><path d="{}"/></svg>',
        mark_safe(" data-full") if full else "",
        label,
        line,
        line,
    )


def fill(share: float, *, label: str, state: str = "", size: str = "") -> SafeString:
    """``share`` (0 to 1) of a known whole, from zero. ``state`` warn or bad colours it; ``size`` "l" is the tall one."""
    return fills([(share, "v1")], label=label, state=state, size=size)


def fills(shares: Iterable[tuple[float, str]], *, label: str, state: str = "", size: str = "") -> SafeString:
    """Several shares of one whole: pairs of share and tone (v1 to v4, or loss), in order, cut at the whole."""
    parts: list[tuple[str, str, str]] = []
    at = 0.0
    for share, tone in shares:
        width = min(_share(share), 1.0 - at)
        # A hair of ground between two tones, so that they part in forced colours too.
        seam = 0.0035 if parts else 0.0
        if width > seam:
            parts.append((tone, f"{(at + seam) * 100:.2f}", f"{(width - seam) * 100:.2f}"))
        at += width
    return format_html(
        '<svg class="mark fill"{}{} role="img" aria-label="{}"><rect class="track" width="100%" height="100%"/>{}</svg>',
        format_html(' data-size="{}"', size) if size else "",
        format_html(' data-state="{}"', state) if state else "",
        label,
        format_html_join("", '<rect class="{}" x="{}%" width="{}%" height="100%"/>', parts),
    )


def strip(
    *, low: float, high: float, p10: float, p90: float, median: float, label: str, needle: float | None = None
) -> SafeString:
    """A price among others: the 10th to 90th percentile as a band, the median as a tick, this one as the needle."""
    span = float(high - low) or 1.0

    def x(value: float) -> float:
        return 200 * _share((float(value) - float(low)) / span)

    ticks = format_html_join("", '<path class="tick" d="M{} 18v3"/>', ((20 * i,) for i in range(11)))
    hand = format_html('<path class="needle-line" d="M{} 3v17"/>', _n(x(needle))) if needle is not None else ""
    return format_html(
        '<svg class="mark strip" viewBox="0 0 200 24" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<path class="base" d="M0 18h200"/>{}<rect class="band" x="{}" y="8" width="{}" height="8"/>'
        '<path class="mid" d="M{} 6v12"/>{}</svg>',
        label,
        ticks,
        _n(x(p10)),
        _n(max(x(p90) - x(p10), 1.0)),
        _n(x(median)),
        hand,
    )


# The shape tells, then the colour: full, cut near its top, low, hollow, a line on the ground.
_DAY_SHAPES = {
    "ok": (("ok", "0h3v10h-3z"),),
    "part": (("ok", "4.6h3V10h-3z"), ("part", "0h3v3.6h-3z")),
    "down": (("down", "6.4h3V10h-3z"),),
    "excused": (("excused", ".2h3v9.6h-3z"),),
    "none": (("none", "9.2h3v.8h-3z"),),
}


def days(states: Iterable[str], *, label: str, size: str = "", titles: Sequence[str] = ()) -> SafeString:
    """One bar a day, oldest first: ok, part (some downtime), down, excused (planned), none (not declared).

    ``titles``, one a day, are shown when a bar is pointed at; the page says the same in a table.
    """
    paths: dict[str, list[str]] = {}
    states = list(states)
    for day, state in enumerate(states):
        for css, shape in _DAY_SHAPES[state]:
            paths.setdefault(css, []).append(f"M{4 * day} {shape}")
    drawn = format_html_join("", '<path class="{}" d="{}"/>', ((css, "".join(d)) for css, d in paths.items()))
    drawn += format_html_join(
        "",
        '<rect class="day" x="{}" width="4" height="10" fill="none" pointer-events="all"><title>{}</title></rect>',
        ((4 * day, title) for day, title in enumerate(titles[: len(states)])),
    )
    return format_html(
        '<svg class="mark days"{} viewBox="0 0 {} 10" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>',
        format_html(' data-size="{}"', size) if size else "",
        max(4 * len(states) - 1, 1),
        label,
        drawn,
    )


def cells(states: Iterable[str], *, label: str) -> SafeString:
    """One cell a GPU: busy (rented), free, hidden, warn (delisted), bad (offline)."""
    drawn = format_html_join(
        "",
        '<span class="cell" data-state="{}">{}</span>',
        ((state, icon(CELL_ICONS[state]) if state in CELL_ICONS else "") for state in states),
    )
    return format_html('<div class="cells" role="img" aria-label="{}">{}</div>', label, drawn)


@dataclass(frozen=True)
class Chart:
    """What a bar or line chart shows. ``values`` oldest first, in the unit that ``label`` names.

    ``ticks`` are the words under the plot, spread from end to end; ``titles`` say each value when pointed at;
    ``unfinished`` draws the last bar hollow, because its time is not over; ``height`` is "s", "" or "l".
    """

    values: Sequence[float]
    label: str
    ticks: Sequence[str] = ()
    titles: Sequence[str] = field(default_factory=tuple)
    unfinished: bool = False
    height: str = ""


def nice_top(highest: float) -> float:
    """The round number at the head of a scale from zero: 1, 2, 4, 5 or 8 times a power of ten.

    >>> nice_top(365), nice_top(0.47), nice_top(0)
    (400.0, 0.5, 1.0)
    """
    if highest <= 0:
        return 1.0
    power = 10.0 ** (ceil(log10(highest)) - 1)
    steps = (float(round(step * power, 9)) for step in (1, 2, 4, 5, 8))
    return next((step for step in steps if highest <= step * (1 + 1e-9)), 10 * power)


def bars(chart: Chart) -> SafeString:
    """Amounts per day (or hour): bars from zero, the scale and the dates as HTML around a plot that stretches."""
    values = [max(0.0, float(value)) for value in chart.values]
    top = nice_top(max(values, default=0.0))
    step = 720 / max(len(values), 1)
    drawn = []
    for i, value in enumerate(values):
        height = 180 * value / top
        title = format_html("<title>{}</title>", chart.titles[i]) if i < len(chart.titles) else ""
        hollow = mark_safe(" data-on") if chart.unfinished and i == len(values) - 1 else ""
        drawn.append((hollow, _n(i * step + step * 0.12), _n(180 - height), _n(step * 0.76), _n(height), title))
    plot = format_html_join("", '<rect class="bar"{} x="{}" y="{}" width="{}" height="{}">{}</rect>', drawn)
    return _figure(chart, plot, scale=(top, top / 2, 0.0))


def line(chart: Chart) -> SafeString:
    """A level over time, such as a price. Its scale need not start at zero, and says so by its numbers."""
    values = [float(value) for value in chart.values] or [0.0]
    low, high = min(values), max(values)
    room = (high - low) * 0.1 or abs(high) * 0.1 or 1.0
    low, high = max(low - room, 0.0) if low >= 0 else low - room, high + room
    step = 720 / max(len(values) - 1, 1)
    points = " ".join(
        f"{_n(i * step)} {_n(180 - 180 * (value - low) / (high - low))}" for i, value in enumerate(values)
    )
    plot = format_html('<path class="area" d="M{} 720 180 0 180Z"/><path class="line" d="M{}"/>', points, points)
    return _figure(chart, plot, scale=(high, (high + low) / 2, low))


@dataclass(frozen=True)
class Band:
    """A reading over time: least, mean and most of each stretch, oldest first; None where nothing was read, which is a hole.

    ``from_zero``: the scale begins at 0. ``ticks`` and ``height`` as in ``Chart``.
    """

    values: Sequence[tuple[float, float, float] | None]
    label: str
    ticks: Sequence[str] = ()
    from_zero: bool = True
    height: str = ""


def band(chart: Band) -> SafeString:
    """The mean as a line within the band from least to most."""
    known = [value for value in chart.values if value is not None]
    high = max((most for _, _, most in known), default=0.0)
    low = 0.0 if chart.from_zero else min((least for least, _, _ in known), default=0.0)
    if chart.from_zero:
        high = nice_top(high)
    else:
        room = (high - low) * 0.1 or abs(high) * 0.1 or 1.0
        low, high = low - room, high + room
    step = 720 / max(len(chart.values) - 1, 1)

    def at(number: float, value: float) -> str:
        return f"{_n(number * step)} {_n(180 - 180 * (value - low) / (high - low))}"

    drawn = []
    for start, found in _runs(chart.values):
        # One reading alone is a dash of half a step, or nobody would see it.
        run = found if len(found) > 1 else found * 2
        places = [start + number for number in range(len(run))] if len(found) > 1 else [start - 0.25, start + 0.25]
        upper = [at(place, most) for place, (_, _, most) in zip(places, run, strict=True)]
        lower = [at(place, least) for place, (least, _, _) in zip(places, run, strict=True)]
        middle = [at(place, mean) for place, (_, mean, _) in zip(places, run, strict=True)]
        drawn.append((" ".join([*upper, *reversed(lower)]), " ".join(middle)))
    plot = format_html_join("", '<path class="area" d="M{}Z"/><path class="line" d="M{}"/>', drawn)
    shown = Chart(values=(), label=chart.label, ticks=chart.ticks, height=chart.height)
    return _figure(shown, plot, scale=(high, (high + low) / 2, low))


def _runs[T](values: Sequence[T | None]) -> Iterator[tuple[int, list[T]]]:
    """
    >>> list(_runs([None, 1, 2, None, 3]))
    [(1, [1, 2]), (4, [3])]
    """
    run: list[T] = []
    for number, value in enumerate([*values, None]):
        if value is not None:
            run.append(value)
        elif run:
            yield number - len(run), run
            run = []


def _figure(chart: Chart, plot: SafeString, *, scale: tuple[float, float, float]) -> SafeString:
    # As many decimals as tell the marks of the scale apart.
    places = 0 if scale[0] >= 10 or all(mark == int(mark) for mark in scale) else 2
    return format_html(
        '<div class="chart"{}><svg class="plot" viewBox="0 0 720 180" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<path class="grid" d="M0 0H720"/><path class="grid" d="M0 90H720"/>{}<path class="axis" d="M0 180H720"/></svg>'
        '<div class="ys" aria-hidden="true">{}</div>{}</div>',
        format_html(' data-h="{}"', chart.height) if chart.height else "",
        chart.label,
        plot,
        format_html_join("", "<span>{}</span>", ((f"{mark:,.{places}f}",) for mark in scale)),
        format_html(
            '<div class="xs" aria-hidden="true">{}</div>',
            format_html_join("", '<span dir="auto">{}</span>', ((tick,) for tick in chart.ticks)),
        )
        if chart.ticks
        else "",
    )
