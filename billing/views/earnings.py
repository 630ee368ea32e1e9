"""What the provider earned: live, by model and GPU, day by day in the zone of choice, as a sheet, and the payouts of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.core.paginator import Page, Paginator
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from billing import metering, revenue
from billing.forms import RangeForm
from billing.models import Statement
from gpunex import desk
from gpunex.kit import show, svg
from gpunex.kit.money import MICRO, as_decimal_string
from gpunex.kit.sheets import rows_as_csv
from gpunex.kit.time import day_start, days_between, zone, zone_names
from payouts import methods, runs
from payouts.history import sol
from payouts.models import Cadence, Payout, PayoutRun
from payouts.usdc import explorer_link
from providers.models import Provider, Schedule

PERIODS = ("week", "month", "dates")
CHART_AT_LEAST = timedelta(days=29)
MACHINES_A_PAGE = 20
PAYOUTS_A_PAGE = 10
ZONE_KEPT = "earnings_zone"
PAYOUT_SHADES = {
    Payout.State.PAID: "ok",
    Payout.State.FAILED: "bad",
    Payout.State.RETURNED: "bad",
    Payout.State.REVIEW: "warn",
}
UTC_ZONE = ZoneInfo("UTC")


@dataclass(frozen=True)
class Shown:
    """The time that a page shows: half-open, with the zone whose days it has."""

    period: str
    form: RangeForm
    start: datetime
    end: datetime
    where: ZoneInfo

    @property
    def first_day(self) -> date:
        return self.start.astimezone(self.where).date()

    @property
    def last_day(self) -> date:
        return (self.end - timedelta(microseconds=1)).astimezone(self.where).date()


@require_safe
def earnings(request: HttpRequest) -> HttpResponse:
    """What was earned in a week or month of payouts, or between two days, as it grows."""
    if desk.of(request) is None:
        return redirect("providers:roles")
    organisation, at = request.organisation, timezone.now()
    shown = _shown(request, at=at)
    earned = revenue.of(organisation, start=shown.start, end=shown.end, at=at, where=shown.where)
    context: dict[str, Any] = {
        "nav": "earnings",
        "at": at,
        "shown": shown,
        "earned": earned,
        "total": earned.total,
        "fee_negative": -earned.total.fee_micro,
        "running": shown.start <= at < shown.end,
        "earning": metering.earning(organisation, at=at),
    }
    if request.headers.get("HX-Request") and request.GET.get("live"):
        return _vary(render(request, "billing/earnings.html#live", context))
    by_day = _by_day(organisation, earned, shown, at=at)
    machines = _by_machine(earned, start=shown.start, end=min(shown.end, at))
    context |= {
        "form": shown.form,
        "zones": zone_names() if shown.period == "dates" else (),
        "segments": [
            {"label": label, "href": f"?period={name}", "current": shown.period == name}
            for name, label in (("week", _("Week")), ("month", _("Month")), ("dates", _("Dates")))
        ],
        "models": _by_model(earned),
        "machines": Paginator(machines, MACHINES_A_PAGE).get_page(request.GET.get("machines")),
        "chart": _chart(by_day, today=at.astimezone(shown.where).date()),
        "days": by_day,
        "sheet": _sheet_query(shown),
        **_payouts(request),
    }
    status = 422 if shown.form.is_bound and shown.form.errors else 200
    return _vary(render(request, "billing/earnings.html", context, status=status))


@require_safe
def sheet(request: HttpRequest) -> HttpResponseBase:
    """The same time as a CSV file: a line a rental, day and GPU, and one for each credit or correction. It sums to the page."""
    if desk.of(request) is None:
        return redirect("providers:roles")
    at = timezone.now()
    shown = _shown(request, at=at)
    if shown.form.is_bound and shown.form.errors:
        return earnings(request)
    header = [
        _("day"),
        _("time zone"),
        _("from (UTC)"),
        _("until (UTC)"),
        _("kind"),
        _("posted"),
        _("rental"),
        _("machine"),
        _("model"),
        _("GPU"),
        _("GPU id"),
        _("GPU seconds"),
        _("renter paid, USDC"),
        _("platform fee, USDC"),
        _("you earned, USDC"),
    ]
    return rows_as_csv(
        header, _sheet_rows(request.organisation, shown), f"earnings-{shown.first_day}-{shown.last_day}.csv"
    )


def _sheet_rows(organisation: Any, shown: Shown) -> Iterator[list[object]]:
    where = shown.where.key
    for line in revenue.lines(organisation, start=shown.start, end=shown.end, where=shown.where):
        for unit, amounts in line.units():
            yield [
                line.day,
                where,
                line.starts_at,
                line.ends_at,
                "rental",
                "posted" if line.posted else "accruing",
                line.meter.reference,
                unit.machine,
                unit.model,
                unit.index,
                unit.id,
                amounts.seconds,
                as_decimal_string(amounts.gross_micro),
                as_decimal_string(amounts.fee_micro),
                as_decimal_string(amounts.net_micro),
            ]
    for other in revenue.others(organisation, start=shown.start, end=shown.end, where=shown.where):
        amount = as_decimal_string(other.amount_micro)
        yield [other.day, where, other.at, None, other.kind, "posted", other.reference, *[None] * 7, amount]


# --- which time ------------------------------------------------------------------------------------------------------


def _shown(request: HttpRequest, *, at: datetime) -> Shown:
    """The week or month of the provider's payouts, or days of a zone. Days that can't be read show the present period."""
    cadence = Cadence(methods.cadence_of(request.organisation).cadence)
    period = request.GET.get("period", "")
    if period not in PERIODS:
        period = "month" if cadence == Cadence.MONTHLY else "week"
    asked = period == "dates" and request.GET.get("first")
    form = RangeForm(request.GET if asked else None)
    if period == "dates":
        where = _zone(request, form)
        days = _days(form, today=at.astimezone(where).date(), where=where)
        if days is not None:
            start, end = day_start(days[0], where), day_start(days[1] + timedelta(days=1), where)
            return Shown(period=period, form=form, start=start, end=end, where=where)
    cadence = Cadence.MONTHLY if period == "month" else Cadence.WEEKLY
    end = runs.next_period_end(cadence, at)
    return Shown(period=period, form=form, start=runs.period_start(cadence, end), end=end, where=UTC_ZONE)


def _days(form: RangeForm, *, today: date, where: ZoneInfo) -> tuple[date, date] | None:
    """The first and the last day asked for; the last thirty before anything is; None if they can't be read."""
    if not form.is_bound:
        first = today - timedelta(days=29)
        form.initial = {"first": first, "last": today, "zone": where.key}
        return first, today
    return (form.cleaned_data["first"], form.cleaned_data["last"]) if form.is_valid() else None


def _zone(request: HttpRequest, form: RangeForm) -> ZoneInfo:
    """The zone asked for, and kept for the session; else the one kept, the person's own, that of most machines' hours."""
    if form.is_bound and form.is_valid() and form.cleaned_data["zone"]:
        name = form.cleaned_data["zone"]
        if request.session.get(ZONE_KEPT) != name:
            request.session[ZONE_KEPT] = name
        return zone(name)
    if request.session.get(ZONE_KEPT) in zone_names():
        return zone(request.session[ZONE_KEPT])
    if request.user.timezone != "UTC" and request.user.timezone in zone_names():
        return zone(request.user.timezone)
    machines = Provider.objects.filter(organisation=request.organisation.pk).values("machines")
    used = (
        Schedule.objects.filter(machine__in=machines)
        .values("timezone")
        .annotate(machines=Count("machine", distinct=True))
        .order_by("-machines", "timezone")
    )
    most = used.first()
    return zone(most["timezone"]) if most and most["timezone"] in zone_names() else UTC_ZONE


def _sheet_query(shown: Shown) -> str:
    if shown.period != "dates":
        return f"?period={shown.period}"
    return f"?period=dates&first={shown.first_day}&last={shown.last_day}&zone={shown.where.key}"


# --- tables ----------------------------------------------------------------------------------------------------------


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
    """Each machine with its GPUs and their sum; the sums come to the total."""
    length = max(1.0, (end - start).total_seconds())
    machines: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for unit, amounts in sorted(
        earned.units.items(), key=lambda row: (row[0].machine, row[0].model, row[0].index, row[0].id)
    ):
        machines.setdefault((unit.machine, unit.model), []).append(
            {"unit": unit, "amounts": amounts, "share": min(1.0, amounts.seconds / length)}
        )
    return [
        {
            "machine": machine,
            "model": model,
            "units": units,
            "net_micro": sum(row["amounts"].net_micro for row in units),
        }
        for (machine, model), units in machines.items()
    ]


def _by_day(organisation: Any, earned: revenue.Revenue, shown: Shown, *, at: datetime) -> list[tuple[date, int]]:
    """The days shown, oldest first, none that is still to come. A time that runs shows at least the last thirty days."""
    if shown.start > at:
        return [(shown.first_day, 0)]
    until = min(shown.end, at + timedelta(seconds=1))
    since = shown.start
    if shown.start <= at < shown.end:
        since = min(since, day_start((until - CHART_AT_LEAST).astimezone(shown.where).date(), shown.where))
    if since < shown.start:
        earned = revenue.of(organisation, start=since, end=shown.end, at=at, where=shown.where)
    return [(day, earned.days.get(day, 0)) for day, _start, _end in days_between(since, until, shown.where)]


def _chart(by_day: list[tuple[date, int]], *, today: date) -> svg.Chart:
    days = [day for day, _micro in by_day]
    return svg.Chart(
        values=[max(0, micro) / MICRO for _day, micro in by_day],
        label=_("Earned per day, USDC after the fee"),
        ticks=[show.day_text(day, year=False) for day in (days[0], days[len(days) // 2], days[-1])],
        titles=[f"{show.day_text(day)}: {show.usdc(micro)}" for day, micro in by_day],
        unfinished=days[-1] == today,
    )


# --- payouts ---------------------------------------------------------------------------------------------------------


def _payouts(request: HttpRequest) -> dict[str, Any]:
    """A page of the earnings' payouts, the newest first, with what each can be looked up by."""
    found = (
        Payout.objects.filter(organisation=request.organisation)
        .exclude(run__kind=PayoutRun.Kind.RETURN)
        .select_related("run", "bank_transfer")
        .prefetch_related("attempts")
        .order_by("-reserved_at", "-pk")
    )
    page: Page = Paginator(found, PAYOUTS_A_PAGE).get_page(request.GET.get("payouts"))
    statements = {
        statement.reference: statement
        for statement in Statement.objects.filter(
            organisation=request.organisation,
            kind=Statement.Kind.PAYOUT,
            reference__in=[str(payout.public_id) for payout in page],
        ).defer("body")
    }
    return {
        "payout_page": page,
        "payouts": [_payout_row(payout, statements.get(str(payout.public_id))) for payout in page],
    }


def _payout_row(payout: Payout, statement: Statement | None) -> dict[str, Any]:
    attempt, transfer = payout.last_attempt, getattr(payout, "bank_transfer", None)
    return {
        "payout": payout,
        "pending": payout.state in Payout.OPEN_STATES,
        "shade": PAYOUT_SHADES.get(Payout.State(payout.state), "busy"),
        "signature": attempt.signature if attempt else "",
        "link": explorer_link(attempt.signature) if attempt else "",
        "fee_sol": sol(attempt.fee_lamports) if attempt and attempt.fee_lamports else "",
        "transfer": transfer,
        "statement": statement,
    }


def _vary(response: HttpResponse) -> HttpResponse:
    patch_vary_headers(response, ["HX-Request"])
    return response
