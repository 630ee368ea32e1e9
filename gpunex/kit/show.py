"""How numbers, money and times are written for people, in the language that is active. Plain text, no markup.

The tags of ``ui`` put the same texts into pages; mails and refusals use them as they are. Amounts are cut, never rounded:
a bill that says more than was charged would be a lie of up to half a cent.

>>> usdc(18_017_222)
'18.01'
>>> usdc(-2_096_666, fine=True)
'−2.096666'
>>> usdc(347)
'0.000347'
>>> price(125_000)
'0.125'
>>> cut(99.999, 2)
'99.99'
"""

from datetime import UTC, date, datetime
from decimal import ROUND_DOWN, Decimal
from typing import Literal

from django.utils.dateformat import format as date_format
from django.utils.translation import get_language, gettext, ngettext

from gpunex.kit.money import MICRO

MINUS = "\N{MINUS SIGN}"
Style = Literal["full", "date", "day", "time", "seconds"]


def usdc_parts(micro: int) -> tuple[str, str, str]:
    """Sign ("" or a minus), the amount to two decimals with commas, and the other four digits."""
    if isinstance(micro, bool) or not isinstance(micro, int):
        raise TypeError(f"an amount is whole micro-USDC, not {micro!r}")
    whole, rest = divmod(abs(micro), MICRO)
    return (MINUS if micro < 0 else ""), f"{whole:,}.{rest // 10_000:02d}", f"{rest % 10_000:04d}"


def usdc(micro: int, *, fine: bool = False) -> str:
    """The amount without its currency: two decimals, all six with ``fine`` or where two would show nothing."""
    sign, main, digits = usdc_parts(micro)
    return sign + main + (digits if fine or needs_fine(micro) else "")


def needs_fine(micro: int) -> bool:
    """Below a cent, two decimals would say 0.00 of something that is not nothing."""
    return 0 < abs(micro) < MICRO // 100


def price(micro: int) -> str:
    """An hourly price: two decimals, more only where they are not zero."""
    sign, main, digits = usdc_parts(micro)
    return sign + main + digits.rstrip("0")


def cut(value: float | Decimal, places: int = 0) -> str:
    """``value`` with ``places`` decimals, cut towards zero, with commas and a real minus."""
    number = Decimal(str(value)).quantize(Decimal(1).scaleb(-places), rounding=ROUND_DOWN)
    return f"{number:,f}".replace("-", MINUS) if number else f"{abs(number):f}"


def duration(seconds: int) -> str:
    """The two largest units: "4 h 23 min", "12 min 5 s", "2 days 4 h"."""
    seconds = max(0, int(seconds))
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, left = divmod(rest, 60)
    words = [
        (days, ngettext("%(count)s day", "%(count)s days", days)),
        (hours, ngettext("%(count)s h", "%(count)s h", hours)),
        (minutes, ngettext("%(count)s min", "%(count)s min", minutes)),
        (left, ngettext("%(count)s s", "%(count)s s", left)),
    ]
    first = next((index for index, (count, _) in enumerate(words) if count), len(words) - 1)
    return " ".join(
        text % {"count": count} for count, text in words[first : first + 2] if count or first == len(words) - 1
    )


def clock(seconds: int) -> str:
    """A running time as on a stop-watch: "4:23:40"; hours do not turn into days.

    >>> clock(15_820)
    '4:23:40'
    """
    minutes, left = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{left:02d}"


def day_text(day: date, *, year: bool = True) -> str:
    """A day as 14 Oct 2026; Arabic months have no short form that people use."""
    month = "F" if (get_language() or "").startswith("ar") else "M"
    return date_format(day, f"j {month} Y" if year else f"j {month}")


def time_text(at: datetime, *, seconds: bool = False) -> str:
    """A time of day as 14:05 UTC: the zone is always said."""
    return at.astimezone(UTC).strftime("%H:%M:%S UTC" if seconds else "%H:%M UTC")


def moment(at: datetime, style: Style = "full") -> str:
    """A moment in UTC: ``full`` "14 Oct 2026, 14:05 UTC", ``date``, ``day`` (without year), ``time``, ``seconds``."""
    at = at.astimezone(UTC)
    if style == "date":
        return day_text(at.date())
    if style == "day":
        return day_text(at.date(), year=False)
    if style in ("time", "seconds"):
        return time_text(at, seconds=style == "seconds")
    return gettext("%(date)s, %(time)s") % {"date": day_text(at.date()), "time": time_text(at)}


def distance(at: datetime, now: datetime) -> str:
    """How long ago ``at`` was, seen from ``now``, or in how long it will be; one unit, cut."""
    seconds = int((now - at).total_seconds())
    ahead, seconds = seconds < 0, abs(seconds)
    if seconds < 60:
        past = ngettext("%(count)s s ago", "%(count)s s ago", seconds)
        future = ngettext("in %(count)s s", "in %(count)s s", seconds)
        count = seconds
    elif seconds < 3_600:
        count = seconds // 60
        past = ngettext("%(count)s min ago", "%(count)s min ago", count)
        future = ngettext("in %(count)s min", "in %(count)s min", count)
    elif seconds < 86_400:
        count = seconds // 3_600
        past = ngettext("%(count)s hour ago", "%(count)s hours ago", count)
        future = ngettext("in %(count)s hour", "in %(count)s hours", count)
    else:
        count = seconds // 86_400
        past = ngettext("%(count)s day ago", "%(count)s days ago", count)
        future = ngettext("in %(count)s day", "in %(count)s days", count)
    return (future if ahead else past) % {"count": count}
