"""What looks odd and is no proof of anything: shown to our team, which dismisses or confirms it. It changes nothing by itself.

    one GPU on two machines   a machine reported a UUID that another live one holds
    too good                  a benchmark above 1.1 times the best of three or more before it
    jump                      a benchmark that differs from the one before by more than a quarter
    clock                     a connected machine's clock that is off by more than 5 seconds
    number of GPUs            cards came or went on a machine that was there for a day
    many machines             more than 10 machines enrolled with one key within a day

One row stands open for each machine (or card) and kind, and its ``last_seen_at`` moves along. What was dismissed stays so
while it goes on: it is opened again only once it was away for a day.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Count, F, Max, Q
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import User
from gpunex.kit.refusals import Refusal
from gpunex.policy.models import Policy
from providers.models import EnrolmentKey, Gpu, Machine
from reliability.models import Anomaly, Benchmark

type Oddity = tuple[Anomaly.Kind, Machine, dict[str, Any]]

Kind, State = Anomaly.Kind, Anomaly.State

TOO_GOOD, RUNS_LEAST = 1.10, 3
JUMP = 0.25
CLOCK_MS = 5000
SETTLED = timedelta(days=1)
MOST_MACHINES = 10


class NoteMissing(Refusal):
    code = "note_missing"
    message = _("Say in a note what you found: whoever looks at this machine next reads it.")


class AlreadyDecided(Refusal):
    code = "already_decided"
    message = _("This was decided already. Nothing was changed.")


def note(
    *, kind: Anomaly.Kind, machine: Machine, gpu: Gpu | None = None, evidence: dict[str, Any], at: datetime
) -> None:
    """Keep that this was seen at ``at``."""
    with transaction.atomic():
        Machine.objects.select_for_update(no_key=True).only("pk").get(pk=machine.pk)
        known = Anomaly.objects.filter(kind=kind, machine=machine, gpu=gpu)
        row = (
            known.filter(Q(state=State.OPEN) | Q(last_seen_at__gt=at - SETTLED))
            .order_by("-last_seen_at", "-pk")
            .first()
        )
        if row is None:
            Anomaly.objects.create(
                kind=kind, machine=machine, gpu=gpu, evidence=evidence, first_seen_at=at, last_seen_at=at
            )
        elif row.last_seen_at < at:
            row.last_seen_at, row.evidence = at, evidence
            row.save(update_fields=["last_seen_at", "evidence"])


@transaction.atomic
def decide(*, anomaly: Anomaly, state: Anomaly.State, text: str, by: User, at: datetime) -> Anomaly:
    """Dismiss or confirm it, with a note. Raises NoteMissing, AlreadyDecided."""
    text = " ".join(text.split())
    if not text:
        raise NoteMissing
    anomaly = Anomaly.objects.select_for_update(of=("self",)).get(pk=anomaly.pk)
    if anomaly.state != State.OPEN:
        raise AlreadyDecided
    anomaly.state, anomaly.note, anomaly.by, anomaly.decided_at = state, text[:300], by, at
    anomaly.save(update_fields=["state", "note", "by", "decided_at"])
    return anomaly


def look_at_runs(*, runs: Sequence[Benchmark], at: datetime) -> None:
    """Accepted runs against their cards' own past. Precondition: in a transaction, their machine locked."""
    for run in runs:
        if not run.performance:
            continue
        before: list[float] = list(
            Benchmark.objects.filter(
                gpu=run.gpu_id, state=Benchmark.State.ACCEPTED, kernel_version=run.kernel_version, performance__gt=0
            )
            .exclude(pk=run.pk)
            .order_by("-requested_at", "-pk")
            .values_list("performance", flat=True)[:100]  # type: ignore[arg-type]  # above 0, so never None
        )
        if not before:
            continue
        machine, figures = run.gpu.machine, {"performance": round(run.performance, 1), "run": str(run.public_id)}
        if len(before) >= RUNS_LEAST and run.performance > TOO_GOOD * max(before):
            note(
                kind=Kind.TOO_GOOD,
                machine=machine,
                gpu=run.gpu,
                evidence=figures | {"best_before": round(max(before), 1)},
                at=at,
            )
        if abs(run.performance / before[0] - 1) > JUMP:
            note(
                kind=Kind.JUMP, machine=machine, gpu=run.gpu, evidence=figures | {"before": round(before[0], 1)}, at=at
            )


def look_at_rejected(*, machine: Machine, uuids: Iterable[str], at: datetime) -> None:
    """Cards of ``machine``'s report that another live machine holds."""
    for holder in Gpu.objects.present().filter(uuid__in=list(uuids)).exclude(machine=machine).select_related("machine"):
        evidence = {"uuid": holder.uuid, "held_by": str(holder.machine.public_id), "held_by_name": holder.machine.name}
        note(kind=Kind.DUPLICATE_UUID, machine=machine, evidence=evidence, at=at)


def look(*, at: datetime) -> int:
    """The sweep: clocks, numbers of cards, keys. Returns how many oddities stand."""
    found = [*_clocks(at), *_gpu_counts(at), *_many_machines(at)]
    for kind, machine, evidence in found:
        note(kind=kind, machine=machine, evidence=evidence, at=at)
    return len(found)


def _clocks(at: datetime) -> list[Oddity]:
    machines = Machine.objects.connected(at, Policy.load().offline_seconds).filter(
        Q(clock_offset_ms__gt=CLOCK_MS) | Q(clock_offset_ms__lt=-CLOCK_MS)
    )
    return [(Kind.CLOCK, machine, {"offset_ms": machine.clock_offset_ms}) for machine in machines]


def _gpu_counts(at: datetime) -> list[Oddity]:
    since = at - SETTLED
    machines = (
        Machine.objects.live()
        .filter(enrolled_at__lt=since)
        .annotate(
            came=Count("gpus", filter=Q(gpus__first_seen_at__gt=since, gpus__removed_at=None)),
            went=Count("gpus", filter=Q(gpus__removed_at__gt=since)),
        )
        .filter(Q(came__gt=0) | Q(went__gt=0))
        .exclude(came=F("went"))
    )
    return [(Kind.GPU_COUNT, machine, {"came": machine.came, "went": machine.went}) for machine in machines]


def _many_machines(at: datetime) -> list[Oddity]:
    keys = (
        EnrolmentKey.objects.annotate(
            enrolled=Count("machines", filter=Q(machines__enrolled_at__gt=at - SETTLED)), newest=Max("machines__pk")
        )
        .filter(enrolled__gt=MOST_MACHINES)
        .values_list("newest", "prefix", "enrolled")
    )
    rows = {newest: {"key": prefix, "machines": enrolled} for newest, prefix, enrolled in keys}
    return [(Kind.MANY_MACHINES, machine, rows[machine.pk]) for machine in Machine.objects.filter(pk__in=rows)]
