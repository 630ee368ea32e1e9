"""The machines: a list to find one in, and each one's page."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django import forms
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from django.views.decorators.http import require_safe

from gpunex.desk import Desk, is_troubled
from gpunex.kit.time import zone
from gpunex.policy.models import Tier
from providers import declarations, fleet, places, tiers
from providers.fleet import Hidden, Host, Standing
from providers.models import Gpu, Machine, MaintenanceWindow
from providers.views import income, words
from providers.views import telemetry as readings
from providers.views.access import provider_page
from providers.views.dashboard import machine_row
from reliability import telemetry
from reliability.models import Sample

A_PAGE = 25
FRESH = timedelta(minutes=3)  # an older reading says its age
READINGS = (
    ("temperature_c", _lazy("Temperature"), "°C", 0),
    ("power_w", _lazy("Power"), "W", 0),
    ("utilization_pct", _lazy("Utilisation"), "%", 0),
    ("memory_used_mib", _lazy("Memory"), "GiB", 1),
)


# --- the list --------------------------------------------------------------------------------------------------------


@provider_page
@require_safe
def machine_list(request: HttpRequest) -> HttpResponse:
    """All machines, by name; ``?state=`` and ``?q=`` narrow them."""
    desk: Desk = request.desk
    state, wanted = request.GET.get("state", ""), request.GET.get("q", "").strip().lower()
    retired = state == "retired"
    hosts = _retired(desk) if retired else list(desk.fleet.hosts)
    found = [host for host in hosts if wanted in host.machine.name.lower() and (retired or _is_in(host, state))]
    page = Paginator(found, A_PAGE).get_page(request.GET.get("page"))
    earned = income.by_machine(desk.provider.organisation, since=income.monday(desk.at))
    return render(
        request,
        "providers/machines.html",
        {
            "nav": "machines",
            "page": page,
            "rows": [machine_row(desk, host, earned) for host in page],
            "found": len(found),
            "machines": len(desk.fleet.hosts),
            "filtered": bool(state or wanted),
            "form": MachineFilters({"state": state, "q": request.GET.get("q", "")}),
        },
    )


class MachineFilters(forms.Form):
    state = forms.ChoiceField(
        label=_lazy("State"),
        choices=[
            ("", _lazy("All")),
            ("attention", _lazy("Needs attention")),
            ("connected", _lazy("Connected")),
            ("offline", _lazy("Offline")),
            ("hidden", _lazy("Not offered now")),
            ("retired", _lazy("Retired")),
        ],
        required=False,
    )
    q = forms.CharField(
        label=_lazy("Name"),
        required=False,
        max_length=63,
        widget=forms.TextInput(attrs={"type": "search", "dir": "auto"}),
    )


def _is_in(host: Host, state: str) -> bool:
    if state == "attention":
        return is_troubled(host)
    if state == "connected":
        return host.connected
    if state == "offline":
        return not host.connected
    if state == "hidden":
        return host.connected and host.hidden is not None
    return True


def _retired(desk: Desk) -> list[Host]:
    gone = fleet.read(provider=desk.provider, offline_seconds=desk.policy.offline_seconds, at=desk.at, retired=True)
    return list(gone.hosts)


# --- one machine -----------------------------------------------------------------------------------------------------


@provider_page
@require_safe
def machine(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """A machine's page. Asked by htmx, only its state, GPUs and readings."""
    return machine_page(request, host_or_404(request, public_id))


class MaintenanceForm(forms.Form):
    """Times are wall-clock times of the machine's zone; the view makes that zone the current one."""

    starts_at = forms.DateTimeField(
        label=_lazy("Begins"),
        widget=forms.DateTimeInput(attrs={"type": "datetime-local", "data-ltr": True}, format="%Y-%m-%dT%H:%M"),
    )
    ends_at = forms.DateTimeField(
        label=_lazy("Ends"),
        widget=forms.DateTimeInput(attrs={"type": "datetime-local", "data-ltr": True}, format="%Y-%m-%dT%H:%M"),
    )
    reason = forms.CharField(
        label=_lazy("What is done"), max_length=200, required=False, widget=forms.TextInput(attrs={"dir": "auto"})
    )


def host_or_404(request: HttpRequest, public_id: UUID) -> Host:
    """The machine of the provider at hand; anybody else's is not there."""
    desk: Desk = request.desk
    for host in desk.fleet.hosts:
        if host.machine.public_id == public_id:
            return host
    for host in _retired(desk) if Machine.objects.filter(provider=desk.provider, public_id=public_id).exists() else []:
        if host.machine.public_id == public_id:
            return host
    raise Http404


def machine_page(
    request: HttpRequest, host: Host, *, refusal: str = "", form: MaintenanceForm | None = None, status: int = 200
) -> HttpResponse:
    desk: Desk = request.desk
    at, row = desk.at, Machine.objects.select_related("provider").get(pk=host.machine.pk)
    live = bool(request.headers.get("HX-Request")) and request.method == "GET"
    if live and request.headers.get("HX-Target") == "readings":
        part = {"machine": row, "at": at, "readings": readings.readings(request, host, at=at)}
        return render(request, "providers/machine.html#readings", part)
    context: dict[str, Any] = {
        "nav": "machines",
        "host": host,
        "machine": row,
        "at": at,
        "live": live,
        "said": words.host_said(host, at),
        "models": words.models_of(host),
        "clock": readings.clock(row),
        "gpus": _gpus(host, telemetry.last_samples([card.gpu.pk for card in host.cards]), at),
        "rented": host.counts[Standing.RENTED],
    }
    if live:
        return render(request, "providers/machine.html#live", context)
    windows = MaintenanceWindow.objects.filter(machine=row, cancelled_at=None, ends_at__gt=at).order_by("starts_at")
    zone_name = host.schedule.timezone if host.schedule else "UTC"
    context |= {
        "readings": readings.readings(request, host, at=at),
        "gaps": readings.gaps(row, at=at),
        "refusal": refusal,
        "form": form or MaintenanceForm(),
        "zone": zone_name,
        "windows": [_window(window, zone_name, at) for window in windows],
        "budget_left": declarations.budget_left(machine=row, month=at).total_seconds(),
        "policy": desk.policy,
        "facts": row.host,
        "memory_gib": row.host["memory_mib"] / 1024 if row.host.get("memory_mib") else None,
        "place": _place(row),
        "tier_reasons": [str(reason) for reason in tiers.reasons_of(row)],
        "below_tier": row.tier != desk.provider.tier and row.tier == Tier.COMMUNITY,
        "score": desk.scores.get(row.pk),
        "hidden_by_you": row.hidden_at is not None,
        "hours": host.hidden == Hidden.HOURS,
    }
    return render(request, "providers/machine.html", context, status=status)


def _window(window: MaintenanceWindow, zone_name: str, at: datetime) -> dict[str, Any]:
    local = [moment.astimezone(zone(zone_name)) for moment in (window.starts_at, window.ends_at)]
    return {
        "window": window,
        "seconds": int((window.ends_at - window.starts_at).total_seconds()),
        "local": f"{local[0]:%H:%M}–{local[1]:%H:%M}",
        "begun": window.starts_at <= at,
    }


def _place(machine: Machine) -> str:
    parts = (machine.city, places.country_name(machine.country) if machine.country else "", machine.datacenter_region)
    return _(", ").join(part for part in parts if part)


def _gpus(host: Host, last: dict[int, Sample], at: datetime) -> list[dict[str, Any]]:
    facts = dict(Gpu.objects.filter(pk__in=[card.gpu.pk for card in host.cards]).values_list("pk", "facts"))
    rows = []
    for card in host.cards:
        newest = last.get(card.gpu.pk)
        rows.append(
            {
                "card": card,
                "gpu": card.gpu,
                "said": words.card_said(card, host),
                "vram_gib": card.gpu.vram_mib / 1024 if card.gpu.vram_mib else None,
                "now": _now(newest),
                "old": newest.at if newest and newest.at < at - FRESH else None,
                "given": card.gpu.given,
                "by_host": facts.get(card.gpu.pk, {}).get("given") is False,
                "price_missing": card.standing == Standing.UNPRICED,
            }
        )
    return rows


def _now(sample: Sample | None) -> list[dict[str, Any]]:
    if sample is None:
        return []
    found = [(label, _reading(sample, name), places_, unit) for name, label, unit, places_ in READINGS]
    return [
        {"label": label, "value": value, "places": places_, "unit": unit}
        for label, value, places_, unit in found
        if value is not None
    ]


def _reading(sample: Sample, name: str) -> float | None:
    value = getattr(sample, name)
    return value / 1024 if value is not None and name == "memory_used_mib" else value
