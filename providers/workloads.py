"""What a machine should run, and what it says it runs. Knows neither rentals nor benchmarks.

The server writes ``wanted`` (run, stop) and ``stop_at``; the machine reads all of it whenever ``Machine.revision`` has
moved, and reports ``observed``. Neither side sends commands, so a lost, late or repeated message changes nothing.

    observed    may become                                           who says it
    ---------   --------------------------------------------------   -----------------------------
    assigned    accepted pulling creating running stopping finished  the machine
    accepted             pulling creating running stopping finished  the machine
    pulling                      creating running stopping finished  the machine
    creating                              running stopping finished  the machine
    running                                       stopping finished  the machine
    stopping                                               finished  the machine
    finished    nothing: it is final

A step may be skipped (its report was lost or came late) and is never taken back: reports arrive in any order. The server
itself moves a workload in one case: ``end_unseen``, when nobody is left who could say that it has ended.

``attempt`` fences: a report about another attempt than the current one is refused, and the machine ends that container.

Locks: the machine first, then the workload.
"""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Greatest
from django.utils.translation import gettext_lazy as _

from gpunex.kit.refusals import Refusal
from gpunex.kit.secrets import decrypt, encrypt
from providers.models import Gpu, Machine, Workload, WorkloadLog
from providers.nudges import nudge

Observed = Workload.Observed
ORDER = {state: step for step, state in enumerate(Observed.values)}
ALLOWED = {state: frozenset(later for later in ORDER if ORDER[later] > ORDER[state]) for state in ORDER}

# Why a workload ended, as machines say it.
RENTER_CAUSES = frozenset(
    {
        *("completed", "exit_nonzero", "oom", "stopped", "deadline"),
        *("image_missing", "image_denied", "image_invalid", "cuda_too_old", "spec_invalid"),
    }
)
PROVIDER_CAUSES = frozenset(
    {"gpu_lost", "docker_failed", "disk_full", "host_restart", "agent_shutdown", "gpu_unavailable"}
)
REPORTED_CAUSES = RENTER_CAUSES | PROVIDER_CAUSES | {"busy"}

MOST_LOG_BYTES = 6 * 1024 * 1024  # machines cut at 5 MiB and say so; this is for one that does not
_PIECES_A_READ = 2000


class UnknownWorkload(Refusal):
    code = "not_found"
    message = _("This machine has no such workload.")


class StaleAttempt(Refusal):
    code = "stale_attempt"
    message = _("Attempt %(attempt)s is not the current one. End its container.")


class WrongOffset(Refusal):
    code = "offset"
    message = _("The log is kept up to byte %(wanted)s. Send it from there.")

    @property
    def wanted(self) -> int:
        return self.fields["wanted"]


class LogFull(Refusal):
    code = "invalid"
    message = _("No more output of this workload is kept.")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a machine says about one attempt of a workload. Times are the machine's, in UTC."""

    attempt: int
    state: str
    sequence: int = 0
    at: datetime | None = None
    container_started_at: datetime | None = None
    finished_at: datetime | None = None
    exit_code: int | None = None
    cause: str = ""
    message: str = ""
    progress: float | None = None


@transaction.atomic
def assign(
    *,
    machine: Machine,
    kind: Workload.Kind,
    spec: dict[str, Any],
    gpus: Sequence[Gpu],
    stop_at: datetime | None = None,
    at: datetime,
) -> Workload:
    """Want ``spec`` (the protocol's spec of ``kind``) to run on ``gpus``. Whoever asks has claimed them, or does next."""
    if any(gpu.machine_id != machine.pk for gpu in gpus):
        raise ValueError("a workload runs on GPUs of one machine")
    _changed(machine)
    return Workload.objects.create(
        machine=machine,
        kind=kind,
        spec=encrypt(spec),
        gpu_uuids=[gpu.uuid for gpu in gpus],
        stop_at=stop_at,
        created_at=at,
    )


@transaction.atomic
def ask_to_stop(*, workload: Workload, at: datetime) -> None:
    """Want it stopped. It counts as ended only once the machine reports it, or ``end_unseen`` gives up on that."""
    _changed(workload.machine)
    Workload.objects.filter(pk=workload.pk).exclude(observed=Observed.FINISHED).update(wanted=Workload.Wanted.STOP)
    workload.refresh_from_db()


@transaction.atomic
def set_stop_at(*, workload: Workload, stop_at: datetime | None, at: datetime) -> None:
    """Move the deadline by which the machine ends it without hearing from us. An unchanged one moves nothing."""
    if workload.stop_at == stop_at:
        return
    _changed(workload.machine)
    Workload.objects.filter(pk=workload.pk).exclude(observed=Observed.FINISHED).update(stop_at=stop_at)
    workload.refresh_from_db()


@transaction.atomic
def report(*, machine: Machine, workload_id: UUID, report: Report, at: datetime) -> Workload:
    """Take in what the machine says, and return the workload as it is then. Repeats and late reports change nothing.

    ``started_at`` is when we first heard that it runs; ``finished_at`` is the machine's own time, never after ``at`` and
    never before ``started_at``. Raises UnknownWorkload, StaleAttempt.
    """
    ends = report.state == Observed.FINISHED
    if ends:
        lock(machine)
    workload = Workload.objects.select_for_update(no_key=True).filter(machine=machine, public_id=workload_id).first()
    if workload is None:
        raise UnknownWorkload
    if report.attempt != workload.attempt:
        raise StaleAttempt(attempt=report.attempt)
    if report.state == workload.observed == Observed.PULLING and report.progress is not None:
        workload.progress = max(workload.progress or 0.0, report.progress)
        workload.save(update_fields=["progress"])
        return workload
    if report.state not in ALLOWED[workload.observed]:
        return workload
    workload.observed = report.state
    workload.observed_at = at
    workload.progress = report.progress if report.state == Observed.PULLING else None
    workload.container_started_at = workload.container_started_at or report.container_started_at
    if report.state in {Observed.RUNNING, Observed.STOPPING} and workload.started_at is None:
        workload.started_at = at
    if report.state == Observed.RUNNING:
        workload.proved_at = at
    workload.message = report.message[:500]
    if ends:
        workload.cause = report.cause
        workload.exit_code = report.exit_code
        workload.finished_at = min(at, max(report.finished_at or at, workload.started_at or workload.created_at))
        _changed(machine)
    workload.save()
    return workload


@transaction.atomic
def end_unseen(*, workload: Workload, cause: str, at: datetime) -> None:
    """End it without the machine's word, as of ``at``: the machine is lost or gone. Should it come back, it is told so."""
    lock(workload.machine)
    current = Workload.objects.select_for_update(no_key=True).get(pk=workload.pk)
    if current.observed != Observed.FINISHED:
        current.observed = Observed.FINISHED
        current.observed_at = at
        current.finished_at = max(at, current.started_at or current.created_at)
        current.wanted = Workload.Wanted.STOP
        current.cause = cause
        current.progress = None
        current.save()
        _changed(workload.machine)
    workload.refresh_from_db()


@transaction.atomic
def prove(*, machine: Machine, running: dict[UUID, tuple[int, datetime | None]], at: datetime) -> int:
    """A heartbeat lists these as running: workload id → (attempt, container start). They are proved to run until ``at``.

    Only what we know as running, in that attempt and that container, is proved: a container that was started anew does not
    vouch for the gap before it. Returns how many were.
    """
    proved = []
    listed = Workload.objects.filter(machine=machine, public_id__in=running, observed=Observed.RUNNING)
    for workload in listed.select_for_update(no_key=True).order_by("pk"):
        attempt, started_at = running[workload.public_id]
        same_container = (
            started_at is None
            or workload.container_started_at is None
            or abs((started_at - workload.container_started_at).total_seconds()) < 1
        )
        if attempt == workload.attempt and same_container:
            proved.append(workload.pk)
    return Workload.objects.filter(pk__in=proved).update(proved_at=Greatest("proved_at", at)) if proved else 0


def spec_of(workload: Workload) -> dict[str, Any]:
    """The spec in clear text, for the machine that runs it."""
    return decrypt(workload.spec)


@transaction.atomic
def append_log(*, workload: Workload, attempt: int, offset: int, text: str, at: datetime) -> int:
    """Keep a piece of output that begins at byte ``offset``; the next offset. Raises StaleAttempt, WrongOffset, LogFull.

    A piece that is sent again after its answer was lost is told what is wanted, so nothing is kept twice.
    """
    current = Workload.objects.select_for_update(no_key=True).get(pk=workload.pk)
    if attempt != current.attempt:
        raise StaleAttempt(attempt=attempt)
    # Each replacement is as long as what it replaces: the machine counts the bytes it sent.
    kept = text.encode("utf-8", "replace").decode().replace("\x00", "?")
    length = len(kept.encode())
    last = WorkloadLog.objects.filter(workload=current, attempt=attempt).order_by("-offset").first()
    wanted = last.offset + last.length if last else 0
    if offset != wanted:
        raise WrongOffset(wanted=wanted)
    if wanted + length > MOST_LOG_BYTES:
        raise LogFull
    if length:
        WorkloadLog.objects.create(
            workload=current, attempt=attempt, offset=offset, length=length, text=kept, received_at=at
        )
    return wanted + length


def read_log(workload: Workload, *, after: int = 0, limit_bytes: int = 65536) -> tuple[str, int]:
    """Output of the current attempt from byte ``after`` on, at most ``limit_bytes``; and the byte to go on from.

    >>> pieces = [(0, "héllo ".encode()), (7, "wörld".encode())]
    >>> _cut(pieces, after=0, limit_bytes=9)
    ('héllo w', 8)
    >>> _cut(pieces, after=8, limit_bytes=100)
    ('örld', 13)
    """
    pieces = WorkloadLog.objects.filter(workload=workload, attempt=workload.attempt)
    first = pieces.filter(offset__lte=after).order_by("-offset").values_list("offset", flat=True).first() or 0
    rows = pieces.filter(offset__gte=first).order_by("offset").values_list("offset", "text").iterator(chunk_size=200)
    return _cut(
        [(offset, text.encode()) for offset, text in _enough(rows, after + limit_bytes)],
        after=after,
        limit_bytes=limit_bytes,
    )


def _enough(rows: Any, until: int) -> Any:
    for offset, text in islice(rows, _PIECES_A_READ):
        if offset >= until:
            return
        yield offset, text


def _cut(pieces: list[tuple[int, bytes]], *, after: int, limit_bytes: int) -> tuple[str, int]:
    """``read_log`` on pieces without gaps; never ends within a character."""
    start = pieces[0][0] if pieces else after
    data = b"".join(piece for _, piece in pieces)[max(0, after - start) :][:limit_bytes]
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    text = decoder.decode(data)
    return text, after + len(data) - len(decoder.getstate()[0])


def lock(machine: Machine) -> None:
    """Precondition: in a transaction. Comes before every lock of the machine's workloads."""
    Machine.objects.select_for_update(no_key=True).only("pk").get(pk=machine.pk)


def _changed(machine: Machine) -> None:
    """What ``machine`` should run has changed: it will read it again. Also locks it."""
    Machine.objects.filter(pk=machine.pk).update(revision=F("revision") + 1)
    nudge(machine.public_id)
