"""What a machine's page shows of its readings and of its connection: charts, gaps, the clock."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import Any, cast

from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from gpunex.kit import show
from gpunex.kit.svg import Band
from providers.fleet import Host
from providers.models import Machine
from providers.views.words import Said
from reliability import telemetry
from reliability.connections import CLOCK_OFF_MS
from reliability.models import Gap

GAPS_SHOWN, GAPS_BACK = 10, timedelta(days=30)
# Measure, label, unit, decimals, what a unit of ours is in it, and whether its scale begins at zero.
MEASURES = (
    ("temperature", _lazy("Temperature"), "°C", 0, 1.0, False),
    ("power", _lazy("Power"), "W", 0, 1.0, True),
    ("utilization", _lazy("Utilisation"), "%", 0, 1.0, True),
    ("memory", _lazy("Memory"), "GiB", 1, 1024.0, True),
)
REACHES = {"1h": _lazy("1 hour"), "24h": _lazy("24 hours"), "7d": _lazy("7 days"), "30d": _lazy("30 days")}
SECONDS_FRESH = {"1h": 30, "24h": 300, "7d": 1800, "30d": 3600}  # after which a page that stays open asks again


def readings(request: HttpRequest, host: Host, *, at: datetime) -> dict[str, Any]:
    """The charts of the machine and the trends of its cards, as far back as ``?reach=`` asks, an hour by default."""
    reach = request.GET.get("reach", "")
    reach = reach if reach in telemetry.REACHES else "1h"
    cards = [card.gpu for card in host.cards]
    shown = telemetry.series(gpus=[gpu.pk for gpu in cards], reach=cast(telemetry.Reach, reach), at=at)
    ticks = _ticks(shown, reach, at)
    return {
        "reach": reach,
        "reach_text": REACHES[reach],
        "fresh_seconds": SECONDS_FRESH[reach],
        "segment": [
            {"href": f"?reach={name}#telemetry", "label": label, "current": name == reach}
            for name, label in REACHES.items()
        ],
        "charts": [chart for chart in (_chart(shown, ticks, reach, *measure) for measure in MEASURES) if chart],
        "rows": [{"gpu": gpu, "marks": [_mark(shown.cards[gpu.pk], reach, *measure) for measure in MEASURES]} for gpu in cards],
    }  # fmt: skip


def _ticks(shown: telemetry.Series, reach: str, at: datetime) -> list[str]:
    moments = [shown.start, shown.start + (at - shown.start) / 2, at]
    return [show.moment(moment, "time" if reach in ("1h", "24h") else "day") for moment in moments]


def _chart(
    shown: telemetry.Series, ticks: Sequence[str], reach: str, name: str, label: Any, unit: str, places: int, per: float, zero: bool
) -> dict[str, Any] | None:  # fmt: skip
    values = [_in_unit(reading, per) for reading in shown.of_all(name)]
    known = [value for value in values if value is not None]
    if not known:
        return None
    figures = {
        "reading": label,
        "reach": REACHES[reach],
        "low": show.cut(min(low for low, _mean, _high in known), places),
        "high": show.cut(max(high for _low, _mean, high in known), places),
        "unit": unit,
    }
    says = _("%(reading)s of all GPUs in the last %(reach)s: %(low)s to %(high)s %(unit)s") % figures
    return {
        "name": name,
        "label": label,
        "unit": unit,
        "says": says,
        "chart": Band(values, says, ticks=ticks, from_zero=zero, height="s"),
    }


def _mark(
    card: dict[str, list[telemetry.Reading | None]], reach: str, name: str, label: Any, unit: str, places: int, per: float, _zero: bool
) -> dict[str, Any]:  # fmt: skip
    """A card's trend, with its least, middle and most for those who want numbers."""
    known = [value for value in (_in_unit(reading, per) for reading in card[name]) if value is not None]
    if not known:
        return {"label": label, "values": [], "unit": unit}
    low, high = min(least for least, _mean, _most in known), max(most for _least, _mean, most in known)
    means = [mean for _least, mean, _most in known]
    return {
        "label": label,
        "values": means,
        "unit": unit,
        "places": places,
        "last": means[-1],
        "low": low,
        "middle": median(means),
        "high": high,
        "says": _("%(reading)s in the last %(reach)s: %(low)s to %(high)s %(unit)s")
        % {
            "reading": label,
            "reach": REACHES[reach],
            "low": show.cut(low, places),
            "high": show.cut(high, places),
            "unit": unit,
        },
    }


def _in_unit(reading: telemetry.Reading | None, per: float) -> telemetry.Reading | None:
    return None if reading is None else (reading[0] / per, reading[1] / per, reading[2] / per)


# --- the connection --------------------------------------------------------------------------------------------------


def gaps(machine: Machine, *, at: datetime) -> list[dict[str, Any]]:
    """The latest gaps of its connection, newest first, in words."""
    found = Gap.objects.filter(machine=machine, ended_at__gt=at - GAPS_BACK).order_by("-started_at")[:GAPS_SHOWN]
    return [
        {"gap": gap, "seconds": int((gap.ended_at - gap.started_at).total_seconds()), "said": gap_said(gap)}
        for gap in found
    ]


def gap_said(gap: Gap) -> Said:
    if gap.kind == Gap.Kind.JOURNALLED:
        return Said("warn", _("Network"), _("The agent ran all the while and could not reach us."))
    if gap.kind == Gap.Kind.REBOOT:
        return Said("info", _("Restart of the host"), _("It came back with a new boot."))
    if gap.kind == Gap.Kind.PLATFORM:
        return Said("idle", _("Our outage"), _("It does not count."))
    return Said("bad", _("Machine or agent down"), _("Nothing tells that the agent ran."))


def clock(machine: Machine) -> dict[str, Any]:
    """How far its clock is off, in seconds, and whether that is too far; None where nothing is known."""
    ms = machine.clock_offset_ms
    if ms is None:
        return {"seconds": None, "off": False, "ahead": False}
    return {"seconds": abs(ms) / 1000, "off": abs(ms) > CLOCK_OFF_MS, "ahead": ms > 0}
