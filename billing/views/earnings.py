"""What the provider earned."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from billing import history, metering, revenue
from billing.forms import RangeForm
from gpunex import desk
from gpunex.kit import show, svg
from gpunex.kit.money import MICRO
from payouts import runs
from payouts.models import Cadence, Payout
from payouts.usdc import explorer_link

LINES_A_PAGE = 20
KINDS: dict[str, tuple[str, ...] | None] = {"": None, "deposits": history.DEPOSITS, "charges": ("charge",)}
PERIODS = ("week", "month", "dates")
CHART_AT_LEAST = timedelta(days=29)


@require_safe
def earnings(request: HttpRequest) -> HttpResponse:
    """What the provider earned in a week, a month or between two days, as it grows."""
    if desk.of(request) is None:
        return redirect("providers:roles")
    organisation, at = _organisation(request), timezone.now()
    period = request.GET.get("period", "week")
    form = RangeForm(request.GET if period == "dates" and request.GET.get("first") else None)
    start, end = _range(period, form, at=at)
    earned = revenue.of(organisation, start=start, end=end, at=at)
    context: dict[str, Any] = {
        "nav": "earnings",
        "at": at,
        "period": period if period in PERIODS else "week",
        "start": start,
        "last": end - timedelta(seconds=1),
        "earned": earned,
        "total": earned.total,
        "running": start <= at < end,
        "earning": metering.earning(organisation, at=at),
        "form": form,
        "segments": [
            {"label": label, "href": f"?period={name}", "current": period == name}
            for name, label in (("week", _("Week")), ("month", _("Month")), ("dates", _("Dates")))
        ],
    }
    if request.headers.get("HX-Request") and request.GET.get("live"):
        return _vary(render(request, "billing/earnings.html#live", context))
    by_day = _by_day(organisation, earned, start=start, end=end, at=at)
    context |= {
        "models": _by_model(earned),
        "machines": _by_machine(earned, start=start, end=min(end, at)),
        "chart": _chart(by_day),
        "days": by_day,
        "payouts": [
            {"payout": payout, "link": explorer_link(payout.last_attempt.signature) if payout.last_attempt else ""}
            for payout in Payout.objects.filter(organisation=organisation).prefetch_related("attempts")[:5]
        ],
    }
    return _vary(render(request, "billing/earnings.html", context, status=422 if form.errors else 200))


def _range(period: str, form: RangeForm, *, at: datetime) -> tuple[datetime, datetime]:
    """Half-open, in UTC. Dates that can't be read show the present week."""
    if period == "dates" and form.is_bound and form.is_valid():
        first, last = (
            datetime.combine(form.cleaned_data[name], datetime.min.time(), UTC) for name in ("first", "last")
        )
        return first, last + timedelta(days=1)
    if period == "dates" and not form.is_bound:
        last = datetime.combine(at.astimezone(UTC).date(), datetime.min.time(), UTC)
        form.initial = {"first": (last - timedelta(days=29)).date(), "last": last.date()}
        return last - timedelta(days=29), last + timedelta(days=1)
    cadence = Cadence.MONTHLY if period == "month" else Cadence.WEEKLY
    end = runs.next_period_end(cadence, at)
    return runs.period_start(cadence, end), end


def _by_model(earned: revenue.Revenue) -> list[dict[str, Any]]:
    """Largest first, with a tone each and its share of the whole."""
    whole = earned.total.net_micro
    rows = sorted(earned.models.items(), key=lambda row: (-row[1].net_micro, row[0]))
    return [
        {
            "model": model,
            "amounts": amounts,
            "share": amounts.net_micro / whole if whole else 0.0,
            "tone": f"v{min(number, 3) + 1}",
        }
        for number, (model, amounts) in enumerate(rows)
    ]


def _by_machine(earned: revenue.Revenue, *, start: datetime, end: datetime) -> list[dict[str, Any]]:
    length = max(1.0, (end - start).total_seconds())
    machines: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for unit, amounts in sorted(
        earned.units.items(), key=lambda row: (row[0].machine, row[0].model, row[0].index, row[0].id)
    ):
        machines.setdefault((unit.machine, unit.model), []).append(
            {"unit": unit, "amounts": amounts, "share": min(1.0, amounts.seconds / length)}
        )
    return [{"machine": machine, "model": model, "units": units} for (machine, model), units in machines.items()]


def _by_day(
    organisation: Any, earned: revenue.Revenue, *, start: datetime, end: datetime, at: datetime
) -> list[tuple[date, int]]:
    """The days shown, oldest first, none that is still to come. A time that runs shows at least the last thirty days."""
    if start > at:
        return [(start.date(), 0)]
    until = min(end, at + timedelta(seconds=1))
    since = min(start, until - CHART_AT_LEAST) if start <= at < end else start
    if since < start:
        midnight = datetime.combine(since.astimezone(UTC).date(), datetime.min.time(), UTC)
        earned = revenue.of(organisation, start=midnight, end=end, at=at)
        since = midnight
    return [(day, earned.days.get(day, 0)) for day in revenue.days_between(since, until)]


def _chart(by_day: list[tuple[date, int]]) -> svg.Chart:
    days = [day for day, _micro in by_day]
    return svg.Chart(
        values=[max(0, micro) / MICRO for _day, micro in by_day],
        label=_("Earned per day, USDC after the fee"),
        ticks=[show.day_text(day, year=False) for day in (days[0], days[len(days) // 2], days[-1])],
        titles=[f"{show.day_text(day)}: {show.usdc(micro)}" for day, micro in by_day],
        unfinished=days[-1] == timezone.now().astimezone(UTC).date(),
    )


def _organisation(request: HttpRequest) -> Any:
    if not request.organisation:
        raise Http404
    return request.organisation


def _vary(response: HttpResponse) -> HttpResponse:
    patch_vary_headers(response, ["HX-Request"])
    return response
