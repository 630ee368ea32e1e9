"""What a provider decides about a machine on its page: each press is one address, and answers with the machine's page."""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from gpunex.kit import show
from gpunex.kit.refusals import Refusal
from gpunex.kit.time import zone
from marketplace import listings
from providers import declarations
from providers.fleet import Host
from providers.models import Machine, MaintenanceWindow
from providers.views.access import provider_page
from providers.views.machines import MaintenanceForm, host_or_404, machine_page
from reliability import benchmarks


@provider_page
@require_POST
def hide(request: HttpRequest, public_id: UUID) -> HttpResponse:
    host = host_or_404(request, public_id)
    return _decide(
        request,
        host,
        lambda at: declarations.hide(machine=host.machine, hidden=True, at=at),
        _("%(machine)s is hidden from renters. Its declared hours run on."),
    )


@provider_page
@require_POST
def unhide(request: HttpRequest, public_id: UUID) -> HttpResponse:
    host = host_or_404(request, public_id)
    return _decide(
        request,
        host,
        lambda at: declarations.hide(machine=host.machine, hidden=False, at=at),
        _("%(machine)s is shown to renters again."),
    )


@provider_page
@require_POST
def drain(request: HttpRequest, public_id: UUID) -> HttpResponse:
    host = host_or_404(request, public_id)
    return _decide(
        request,
        host,
        lambda at: declarations.drain(machine=host.machine, draining=True, at=at),
        _("%(machine)s takes no new work. What runs goes on to its end."),
    )


@provider_page
@require_POST
def resume(request: HttpRequest, public_id: UUID) -> HttpResponse:
    host = host_or_404(request, public_id)
    return _decide(
        request,
        host,
        lambda at: declarations.drain(machine=host.machine, draining=False, at=at),
        _("%(machine)s takes new work again."),
    )


@provider_page
@require_POST
def retire(request: HttpRequest, public_id: UUID) -> HttpResponse:
    host = host_or_404(request, public_id)
    return _decide(
        request,
        host,
        lambda at: _retire(host.machine, at),
        _("%(machine)s is retired. Its past and its earnings stay."),
    )


def _retire(machine: Machine, at: datetime) -> None:
    # Jobs are refused before; what ends here is a measurement, and its cards are free again.
    for workload in declarations.retire(machine=machine, at=at):
        benchmarks.heard(workload=workload, at=at)


@provider_page
@require_POST
def give(request: HttpRequest, public_id: UUID, gpu_id: UUID) -> HttpResponse:
    return _give(request, public_id, gpu_id, given=True)


@provider_page
@require_POST
def keep(request: HttpRequest, public_id: UUID, gpu_id: UUID) -> HttpResponse:
    return _give(request, public_id, gpu_id, given=False)


def _give(request: HttpRequest, public_id: UUID, gpu_id: UUID, *, given: bool) -> HttpResponse:
    host = host_or_404(request, public_id)
    card = next((card for card in host.cards if card.gpu.public_id == gpu_id), None)
    if card is None:
        raise Http404
    text = (
        _("GPU %(index)s of %(machine)s is given to the platform.")
        if given
        else _("GPU %(index)s of %(machine)s is kept from the platform.")
    )
    return _decide(
        request, host, lambda at: declarations.give(gpu=card.gpu, given=given, at=at), text, index=card.gpu.index
    )


@provider_page
@require_POST
def maintenance(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """Announce a window; times are of the zone that the machine's schedule is in."""
    host = host_or_404(request, public_id)
    with timezone.override(zone(host.schedule.timezone if host.schedule else "UTC")):
        form = MaintenanceForm(request.POST)
        if form.is_valid():
            try:
                window = declarations.declare_maintenance(
                    machine=host.machine,
                    starts_at=form.cleaned_data["starts_at"],
                    ends_at=form.cleaned_data["ends_at"],
                    reason=form.cleaned_data["reason"],
                    by=request.user,
                    at=request.desk.at,
                )
            except Refusal as refusal:
                form.add_error(None, str(refusal))
            else:
                text = _("Maintenance of %(machine)s is announced for %(time)s.")
                messages.success(request, text % {"machine": host.machine.name, "time": show.moment(window.starts_at)})
                return redirect("providers:machine", host.machine.public_id)
        return machine_page(request, host, form=form, status=422)


@provider_page
@require_POST
def cancel_maintenance(request: HttpRequest, public_id: UUID, pk: int) -> HttpResponse:
    host = host_or_404(request, public_id)
    window = get_object_or_404(MaintenanceWindow, machine=host.machine, pk=pk)
    return _decide(
        request,
        host,
        lambda at: declarations.cancel_maintenance(window=window, at=at),
        _("The maintenance of %(machine)s is cancelled."),
    )


def _decide(request: HttpRequest, host: Host, operation: Any, text: str, **fields: Any) -> HttpResponse:
    """Do it, bring the machine's offers up to date, say so; a refusal is shown on the machine's page."""
    at = request.desk.at
    try:
        operation(at)
    except Refusal as refusal:
        return machine_page(request, host, refusal=str(refusal), status=422)
    listings.refresh(at=at, machines=[host.machine])
    messages.success(request, text % {"machine": host.machine.name, **fields})
    return redirect("providers:machine", host.machine.public_id)
