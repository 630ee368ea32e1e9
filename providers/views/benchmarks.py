"""Benchmarks: what was measured, against what is expected and asked for, and where it comes from."""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy as _lazy
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST, require_safe

from gpunex.desk import Desk
from gpunex.kit.refusals import Refusal
from gpunex.policy.models import Tier, TierPolicy
from providers.fleet import Card, Host, Standing
from providers.models import Gpu, VariantExpectation
from providers.views import words
from providers.views.access import provider_page
from reliability import benchmarks, waivers
from reliability.benchmarks import Trigger
from reliability.models import Benchmark, FloorWaiver

MACHINES_A_PAGE = 10
RUNS_A_PAGE = 20
TREND = 30
# name of the column, words, unit
MEASURES = (
    ("fp16_tflops", _lazy("FP16"), "TFLOPS"),
    ("fp32_tflops", _lazy("FP32"), "TFLOPS"),
    ("tensor_tflops", _lazy("Tensor cores"), "TFLOPS"),
    ("vram_read_gbps", _lazy("VRAM read"), "GB/s"),
    ("vram_write_gbps", _lazy("VRAM write"), "GB/s"),
)
MACHINE_MEASURES = (
    ("latency_ms", _lazy("Latency"), "ms", ""),
    ("download_mbps", _lazy("Download"), "Mbps", "network_mbps"),
    ("upload_mbps", _lazy("Upload"), "Mbps", "network_mbps"),
    ("disk_read_mb_s", _lazy("SSD read"), "MB/s", "ssd_read_mb_s"),
    ("disk_write_mb_s", _lazy("SSD write"), "MB/s", ""),
)
STATES = {
    Benchmark.State.REQUESTED: "busy",
    Benchmark.State.ACCEPTED: "ok",
    Benchmark.State.REFUSED: "bad",
    Benchmark.State.FAILED: "warn",
    Benchmark.State.SKIPPED: "idle",
}


@provider_page
@require_safe
def benchmark_list(request: HttpRequest) -> HttpResponse:
    """Every GPU's latest accepted run, by machine; ``?machine=`` shows one."""
    desk: Desk = request.desk
    hosts, chosen = list(desk.fleet.hosts), request.GET.get("machine", "")
    if chosen:
        hosts = [host for host in hosts if str(host.machine.public_id) == chosen]
        if not hosts:
            raise Http404
    page = Paginator(hosts, MACHINES_A_PAGE).get_page(request.GET.get("page"))
    gpus = [card.gpu for host in page for card in host.cards]
    accepted = _newest(Benchmark.objects.filter(gpu__in=gpus, state=Benchmark.State.ACCEPTED))
    latest = _newest(Benchmark.objects.filter(gpu__in=gpus))
    expected = _expected(gpus)
    floors = {policy.tier: policy for policy in TierPolicy.objects.all()}
    granted = _granted([host.machine.pk for host in page], desk)
    return render(
        request,
        "providers/benchmarks.html",
        {
            "nav": "benchmarks",
            "page": page,
            "machines": [
                _machine(desk, host, accepted, latest, expected, floors) | {"waivers": granted.get(host.machine.pk, [])}
                for host in page
            ],
            "every_hours": desk.policy.benchmark_every_hours,
            "repeat_minutes": desk.policy.benchmark_repeat_minutes,
            "chosen": hosts[0].machine if chosen else None,
            "at": desk.at,
        },
    )


def _granted(machines: Sequence[int], desk: Desk) -> dict[int, list[FloorWaiver]]:
    """The waivers that are valid now, by the machine's key: one query."""
    found: dict[int, list[FloorWaiver]] = {}
    for waiver in FloorWaiver.objects.valid(desk.at).filter(machine__in=machines).select_related("gpu").order_by("pk"):
        found.setdefault(waiver.machine_id, []).append(waiver)
    return found


def _newest(runs: Any) -> dict[int, Benchmark]:
    return {run.gpu_id: run for run in runs.order_by("gpu_id", "-requested_at", "-pk").distinct("gpu_id")}


def _expected(gpus: Iterable[Gpu]) -> dict[tuple[int, str], VariantExpectation]:
    variants = {gpu.variant_id for gpu in gpus if gpu.variant_id}
    return {
        (row.variant_id, row.kernel_version): row for row in VariantExpectation.objects.filter(variant__in=variants)
    }


def _machine(
    desk: Desk,
    host: Host,
    accepted: dict[int, Benchmark],
    latest: dict[int, Benchmark],
    expected: dict[tuple[int, str], VariantExpectation],
    floors: dict[str, TierPolicy],
) -> dict[str, Any]:
    newest = max(
        (accepted[card.gpu.pk] for card in host.cards if card.gpu.pk in accepted),
        key=lambda run: run.requested_at,
        default=None,
    )
    return {
        "host": host,
        "machine": host.machine,
        "models": words.models_of(host),
        "floor": floors[host.machine.tier].benchmark_floor_bps / 100,
        "rows": [
            _card(card, host, accepted.get(card.gpu.pk), latest.get(card.gpu.pk), expected) for card in host.cards
        ],
        "measures": _machine_measures(newest, floors[Tier.COMMUNITY]) if newest else [],
        "measured": newest,
        "may_measure": any(_may_measure(card) for card in host.cards),
        "below": sum(card.standing == Standing.DELISTED for card in host.cards),
    }


def _may_measure(card: Card) -> bool:
    return card.standing not in (Standing.KEPT, Standing.OFFLINE, Standing.FAILED, Standing.RENTED, Standing.MEASURING)


def _card(
    card: Card,
    host: Host,
    run: Benchmark | None,
    latest: Benchmark | None,
    expected: dict[tuple[int, str], VariantExpectation],
) -> dict[str, Any]:
    due = expected.get((card.gpu.variant_id, run.kernel_version)) if run and card.gpu.variant_id else None
    return {
        "card": card,
        "gpu": card.gpu,
        "run": run,
        "values": _values(run, due),
        "said": words.card_said(card, host),
        "running": latest is not None and latest.state == Benchmark.State.REQUESTED,
        "missed": latest if latest and latest.state in (Benchmark.State.FAILED, Benchmark.State.REFUSED) else None,
        "why": benchmarks.in_words(latest.code, latest.details) if latest else "",
    }


def _values(run: Benchmark | None, expected: VariantExpectation | None) -> list[dict[str, Any]]:
    """Each measure with its share of what is expected of the card; None where nothing is."""
    rows = []
    for name, label, unit in MEASURES:
        value = getattr(run, name) if run else None
        due = getattr(expected, name) if expected else None
        rows.append(
            {
                "name": name,
                "label": label,
                "unit": unit,
                "value": value,
                "expected": due,
                "share": value / due if value and due else None,
            }
        )
    return rows


def _machine_measures(run: Benchmark, floor: TierPolicy) -> list[dict[str, Any]]:
    rows = []
    for name, label, unit, limit in MACHINE_MEASURES:
        value, least = getattr(run, name), getattr(floor, limit) if limit else None
        rows.append(
            {
                "label": label,
                "unit": unit,
                "value": value,
                "least": least,
                "below": bool(least and value is not None and value < least),
            }
        )
    return rows


@provider_page
@require_safe
def gpu(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """One GPU: its last accepted run with its circumstances, and every run before."""
    desk: Desk = request.desk
    row = get_object_or_404(
        Gpu.objects.select_related("machine", "variant__model"), public_id=public_id, machine__provider=desk.provider
    )
    run = _newest(Benchmark.objects.filter(gpu=row, state=Benchmark.State.ACCEPTED)).get(row.pk)
    expected = _expected([row]).get((row.variant_id, run.kernel_version)) if run and row.variant_id else None
    history = Paginator(Benchmark.objects.filter(gpu=row).order_by("-requested_at", "-pk"), RUNS_A_PAGE).get_page(
        request.GET.get("page")
    )
    trend = list(
        Benchmark.objects.filter(gpu=row, state=Benchmark.State.ACCEPTED, performance__isnull=False)
        .order_by("-requested_at", "-pk")
        .values_list("performance", flat=True)[:TREND]
    )[::-1]
    floor = TierPolicy.of(row.machine.tier)
    found = next(((host, card) for host in desk.fleet.hosts for card in host.cards if card.gpu.pk == row.pk), None)
    return render(
        request,
        "providers/benchmark_gpu.html",
        {
            "nav": "benchmarks",
            "gpu": row,
            "machine": row.machine,
            "run": run,
            "values": _values(run, expected),
            "details": run.details if run else {},
            "floor": floor.benchmark_floor_bps / 100,
            "below": bool(run and run.performance is not None and run.performance < floor.benchmark_floor_bps / 100),
            "said": words.card_said(found[1], found[0]) if found else None,
            "waivers": [
                waiver for waiver in waivers.of(row.machine, at=desk.at).rows if waiver.gpu_id in (None, row.pk)
            ],
            "may_measure": bool(found and _may_measure(found[1])),
            "page": history,
            "history": [_run_row(past) for past in history],
            "trend": trend,
            "at": desk.at,
        },
    )


def _run_row(run: Benchmark) -> dict[str, Any]:
    return {
        "run": run,
        "state": STATES[Benchmark.State(run.state)],
        "throttled": run.details.get("throttle_reasons") or [],
        "trigger": Trigger(run.trigger).label if run.trigger in Trigger.values else "",
        "why": benchmarks.in_words(run.code, run.details),
    }


@provider_page
@require_POST
def measure_again(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """Measure the machine's GPUs (``gpu``: one of them) now instead of when they are due."""
    desk: Desk = request.desk
    host = next((host for host in desk.fleet.hosts if host.machine.public_id == public_id), None)
    if host is None:
        raise Http404
    wanted = _wanted(host.cards, request.POST.get("gpu", ""))
    back = f"{reverse('providers:benchmarks')}?{urlencode({'machine': public_id})}"
    try:
        count = benchmarks.measure_again(machine=host.machine, gpus=wanted, at=desk.at)
    except Refusal as refusal:
        messages.error(request, str(refusal))
        return redirect(back)
    text = ngettext(
        "%(count)s GPU of %(machine)s is measured now.", "%(count)s GPUs of %(machine)s are measured now.", count
    )
    messages.success(request, text % {"count": count, "machine": host.machine.name})
    return redirect(back)


def _wanted(cards: Sequence[Card], chosen: str) -> list[Gpu]:
    found = [card.gpu for card in cards if not chosen or str(card.gpu.public_id) == chosen]
    if not found:
        raise Http404
    return found
