"""A renter's rentals: the list, the page of one with its live part and its log, and stopping it. Strangers get 404."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape, format_html
from django.utils.translation import gettext as _
from django.utils.translation import pgettext
from django.views.decorators.http import require_POST, require_safe

from billing import bills, metering
from gpunex.accounts.organisations import may_act, organisation_of
from gpunex.kit import show
from gpunex.kit.templatetags import ui
from gpunex.policy.models import Policy
from marketplace import credits, lifecycle, limits
from marketplace.models import Rental, RentalGpu
from providers import workloads
from providers.models import Workload, WorkloadLog
from reliability.models import Sample

State, Observed = Rental.State, Workload.Observed
PAGE = 25
LOG_AT_ONCE = 65_536
LOG_AFTERGLOW = timedelta(seconds=30)  # the last lines of a job arrive after its end
SHADES = {State.STARTING: "busy", State.RUNNING: "ok", State.ENDING: "busy", State.ENDED: "idle"}


@require_safe
def rental_list(request: HttpRequest) -> HttpResponse:
    organisation = organisation_of(request)
    found = Rental.objects.with_work().filter(organisation=organisation).order_by("-created_at", "-pk")
    page = Paginator(found, PAGE).get_page(request.GET.get("page"))
    at, offline = timezone.now(), Policy.load().offline_seconds
    rows = [
        {
            "rental": rental,
            "cost_micro": _charged(rental),
            "shade": shade_of(rental),
            "billing": rental.billing_at(at, offline_seconds=offline),
        }
        for rental in page
    ]
    open_ = Rental.objects.open().filter(organisation=organisation).count()
    position = metering.position(organisation, at=at)
    context = {"nav": "rentals", "at": at, "page": page, "rows": rows, "open": open_, "position": position}
    return render(request, "marketplace/rentals.html", context)


@require_safe
def rental(request: HttpRequest, public_id: UUID) -> HttpResponse:
    found = _mine(request, public_id)
    return render(request, "marketplace/rental.html", _live(found) | _log_context(found) | _fixed(found))


@require_safe
def live(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """The part of the page that changes: state, cost, cards. Asked for again and again while it lasts."""
    found = _mine(request, public_id)
    return render(request, "marketplace/rental.html#live", _live(found) | {"again": True})


@require_safe
def log(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """The next lines of output, and where to go on."""
    found = _mine(request, public_id)
    after = (
        int(request.GET["after"])
        if request.GET.get("after", "").isascii() and request.GET.get("after", "").isdigit()
        else 0
    )
    text, following = workloads.read_log(
        found.job.workload, after=min(after, workloads.MOST_LOG_BYTES), limit_bytes=LOG_AT_ONCE
    )
    more = _more(found, following) if text or not _log_is_over(found) else ""
    return render(request, "marketplace/log.html", {"text": text, "more": more})


@require_safe
def log_file(request: HttpRequest, public_id: UUID) -> StreamingHttpResponse:
    """The whole output as a text file."""
    found = _mine(request, public_id)
    workload = found.job.workload
    pieces = (
        WorkloadLog.objects.filter(workload=workload, attempt=workload.attempt)
        .order_by("offset")
        .values_list("text", flat=True)
    )
    response = StreamingHttpResponse(pieces.iterator(chunk_size=50), content_type="text/plain; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{found.short_id}.log"'
    return response


@require_POST
def stop(request: HttpRequest, public_id: UUID) -> HttpResponse:
    mine = _mine(request, public_id)
    if not may_act(request.user, request.organisation):
        raise PermissionDenied
    found = lifecycle.ask_to_stop(rental=mine, by=request.user, at=timezone.now())
    if found.state == State.ENDING:
        messages.info(request, _("The container is being stopped. Nothing after this is charged."))
    return redirect(found)


def _mine(request: HttpRequest, public_id: UUID) -> Rental:
    rentals = Rental.objects.with_work().select_related("provider__organisation", "listing__machine")
    return get_object_or_404(rentals, organisation=organisation_of(request), public_id=public_id)


def shade_of(rental: Rental) -> str:
    if rental.state != State.ENDED:
        return SHADES[State(rental.state)]
    return "bad" if rental.provider_fault else "ok" if rental.cause == Rental.Cause.COMPLETED else "idle"


def _precision(rental: Rental, at: datetime) -> show.Style:
    """Times to the second, unless the rental reaches over a midnight: then each says its day."""
    return "seconds" if rental.created_at.date() == (rental.ended_at or at).date() else "full"


def _charged(rental: Rental) -> int:
    return metering.accrued(rental.meter).gross_micro if rental.meter else 0


def _live(rental: Rental) -> dict[str, Any]:
    at = timezone.now()
    workload, meter = rental.job.workload, rental.meter
    limit = limits.of(rental=rental, request=rental.request, meter=meter) if rental.state != State.ENDED else None
    accrued = metering.accrued(meter) if meter else None
    return {
        "nav": "rentals",
        "at": at,
        "rental": rental,
        "workload": workload,
        "machine": rental.listing.machine,
        "live": rental.state != State.ENDED,
        "shade": shade_of(rental),
        "billing": rental.billing_at(at, offline_seconds=Policy.load().offline_seconds),
        "cost_micro": accrued.gross_micro if accrued else 0,
        "seconds": accrued.seconds if accrued else 0,
        "cost_at": min(meter.proved_until, meter.funded_until, meter.ended_at or meter.proved_until)
        if meter
        else rental.created_at,
        "limit": limit,
        "left_seconds": max(0, int((limit.at - at).total_seconds())) if limit else None,
        "credit_micro": credits.given(rental) if rental.provider_fault else 0,
        "precision": _precision(rental, at),
        "steps": _steps(rental, limit, precision=_precision(rental, at)),
        "cards": _cards(rental, at),
        "bill": _bill(rental),
        "shares": _shares(rental, accrued.seconds if accrued else 0, accrued.gross_micro if accrued else 0),
    }


def _fixed(rental: Rental) -> dict[str, Any]:
    command = rental.request.command
    text = command[2] if command[:2] == ["sh", "-c"] and len(command) == 3 else " ".join(command)
    return {"request_": rental.request, "command": text, "fee_percent": f"{rental.fee_bps / 100:g}"}


def _steps(rental: Rental, limit: limits.Limit | None, *, precision: show.Style) -> list[dict[str, Any]]:
    """The states in order, each saying whether it costs."""
    workload = rental.job.workload
    free, billed = pgettext("cost", "free"), _("billed")
    ended = rental.state == State.ENDED
    started = rental.running_at is not None
    pulled = started or workload.observed not in (Observed.ASSIGNED, Observed.ACCEPTED, Observed.PULLING)
    progress = ui.percent(workload.progress, share=True) if workload.progress is not None else ""
    waiting = {
        Observed.ASSIGNED: _("the host has not heard of it yet"),
        Observed.ACCEPTED: _("the host has accepted it"),
        Observed.PULLING: progress or _("pulling the image"),
    }.get(Observed(workload.observed), "")
    steps = [
        {
            "state": "done",
            "title": _("GPUs reserved"),
            "note": rental.listing.machine.name,
            "when": ui.when(rental.created_at, precision),
            "cost": free,
        },
        {
            "state": "done" if pulled else "failed" if ended else "now",
            "title": _("Image"),
            "note": "" if pulled or ended else waiting,
            "cost": free,
        },
        {
            "state": ("done" if rental.state in (State.ENDING, State.ENDED) else "now") if started else "later",
            "title": _("Running"),
            "note": _("from the first sign of life of the container") if started else "",
            "when": ui.when(rental.running_at, precision) if rental.running_at else "",
            "cost": billed,
        },
    ]
    if rental.state == State.ENDING:
        steps.append(
            {
                "state": "now",
                "title": _("Stopping"),
                "note": rental.get_cause_display(),
                "when": ui.when(rental.stop_asked_at, precision),
                "cost": free,
            }
        )
    steps.append(
        {
            "state": ("failed" if rental.provider_fault else "done") if ended else "later",
            "title": _("Ended"),
            "note": rental.get_cause_display()
            if ended
            else _("at %(time)s at the latest") % {"time": show.moment(limit.at)}
            if limit
            else "",
            "when": ui.when(rental.ended_at, precision) if ended else "",
            "cost": free,
        }
    )
    return steps


def _shares(rental: Rental, seconds: int, micro: int) -> list[dict[str, Any]]:
    """What is used of each limit that was set."""
    wanted, found = rental.request, []
    if wanted.stop_after_seconds:
        found.append(
            {
                "label": _("Time"),
                "value": f"{show.duration(seconds)} / {show.duration(wanted.stop_after_seconds)}",
                "share": seconds / wanted.stop_after_seconds,
            }
        )
    if wanted.spend_at_most_micro:
        found.append(
            {
                "label": _("Spend"),
                "value": format_html(
                    '<bdi dir="ltr">{} / {} USDC</bdi>', show.usdc(micro), show.usdc(wanted.spend_at_most_micro)
                ),
                "share": micro / wanted.spend_at_most_micro,
            }
        )
    return found


def _cards(rental: Rental, at: datetime) -> list[dict[str, Any]]:
    """Each card's telemetry over ten minutes, up to now or to the end."""
    until = rental.ended_at or at
    since = until - timedelta(minutes=10)
    rows = list(RentalGpu.objects.filter(rental=rental).select_related("gpu"))
    samples: dict[int, list[Sample]] = {}
    if rental.running_at is not None:
        since = max(since, rental.running_at)
        for sample in Sample.objects.filter(
            gpu__in=[row.gpu_id for row in rows], at__gte=since, at__lte=until
        ).order_by("at"):
            samples.setdefault(sample.gpu_id, []).append(sample)
    return [
        {
            "gpu": row.gpu,
            "samples": samples.get(row.gpu_id, []),
            "metrics": _metrics(samples.get(row.gpu_id, [])),
        }
        for row in rows
    ]


def _metrics(samples: list[Sample]) -> list[dict[str, Any]]:
    if not samples:
        return []
    last = samples[-1]
    gib = None if last.memory_used_mib is None else last.memory_used_mib / 1024
    whole = None if last.memory_total_mib is None else last.memory_total_mib / 1024
    rows = [
        (_("Utilisation"), last.utilization_pct, 0, "%", [sample.utilization_pct for sample in samples], None),
        (_("Memory"), gib, 1, "GiB", [sample.memory_used_mib for sample in samples], whole),
        (_("Temperature"), last.temperature_c, 0, "°C", [sample.temperature_c for sample in samples], None),
        (_("Power"), last.power_w, 0, "W", [sample.power_w for sample in samples], None),
    ]
    return [
        {
            "label": label,
            "value": value,
            "places": places,
            "unit": unit,
            "history": history,
            "of": of,
            "said": _("%(what)s over 10 minutes") % {"what": label},
        }
        for label, value, places, unit, history, of in rows
        if value is not None
    ]


def _bill(rental: Rental) -> list[dict[str, Any]]:
    """The charge line by line from the ledger: what is free, each posted stretch, what is used and not posted yet, credits."""
    begins = rental.running_at or rental.ended_at
    lines: list[dict[str, Any]] = [
        {
            "what": _("Reserving, pulling the image"),
            "from": rental.created_at,
            "to": begins,
            "seconds": None,
            "rate": 0,
            "micro": 0,
        }
    ]
    meter = rental.meter
    if meter is None:
        return lines
    lines += [
        {
            "what": _("Running") if stretch.posted else _("Running, not posted yet"),
            "from": stretch.starts_at,
            "to": stretch.ends_at,
            "seconds": stretch.seconds,
            "rate": meter.rate_micro_per_hour,
            "micro": stretch.gross_micro,
        }
        for stretch in bills.stretches(meter)
    ]
    credited = credits.given(rental)
    for what, given in (
        (_("Credit for the provider’s fault"), credited),
        (_("Refund"), meter.refunded_micro - credited),
    ):
        if given > 0:
            back = {"what": what, "from": rental.ended_at, "to": None, "seconds": None, "rate": None, "micro": -given}
            lines.append(back)
    return lines


def _log_context(rental: Rental) -> dict[str, Any]:
    workload = rental.job.workload
    last = (
        WorkloadLog.objects.filter(workload=workload, attempt=workload.attempt)
        .order_by("-offset")
        .values("offset", "length")
        .first()
    )
    total = last["offset"] + last["length"] if last else 0
    text, following = workloads.read_log(workload, after=max(0, total - LOG_AT_ONCE), limit_bytes=LOG_AT_ONCE)
    return {
        "lines": escape(text),
        "log_total": total,
        "log_cut": total > LOG_AT_ONCE,
        "log_more": "" if _log_is_over(rental) else _more(rental, following),
    }


def _more(rental: Rental, after: int) -> str:
    return f"{reverse('marketplace:log', args=[rental.public_id])}?after={after}"


def _log_is_over(rental: Rental) -> bool:
    return rental.state == State.ENDED and (rental.ended_at is None or timezone.now() - rental.ended_at > LOG_AFTERGLOW)
