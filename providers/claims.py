"""Who holds a GPU. ``claim_gpus`` and ``release`` are the only way to take one and to let it go, for everybody.

The exclusion constraint ``gpu_claimed_once`` decides: no two claims of one GPU and lane overlap in time, whoever writes
them. Claimers also lock the machines of the GPUs first, in the order of their keys, so that two of them meet in a queue
and never in a deadlock. Everything that locks a machine does it before it touches the machine's GPUs or workloads.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import Exists, OuterRef
from django.utils.translation import gettext_lazy as _

from gpunex.kit.refusals import Refusal
from providers.models import Gpu, GpuClaim, Machine
from providers.models.machines import GpuQuerySet

ONCE = "gpu_claimed_once"


class GpusTaken(Refusal):
    code = "gpus_taken"
    message = _("Somebody else took these GPUs a moment ago. Nothing was charged. Choose another offer.")


@transaction.atomic
def claim_gpus(*, gpus: Sequence[Gpu], kind: GpuClaim.Kind, reference: UUID, at: datetime) -> list[GpuClaim]:
    """Hold ``gpus`` for ``reference`` from ``at`` until ``release``: all of them, or GpusTaken and none.

    Ends with the caller's transaction: a claim that is rolled back never was.
    """
    lock_machines({gpu.machine_id for gpu in gpus})
    lane = 1 if kind == GpuClaim.Kind.RESERVATION else 0
    claims = [
        GpuClaim(gpu=gpu, period=DateTimeTZRange(at, None), lane=lane, kind=kind, reference=reference)
        for gpu in sorted(gpus, key=lambda gpu: gpu.pk)
    ]
    try:
        with transaction.atomic():  # a savepoint: after the refusal the caller's transaction goes on
            return GpuClaim.objects.bulk_create(claims)
    except IntegrityError as error:
        if constraint_of(error) != ONCE:
            raise
        raise GpusTaken from error


def release(*, reference: UUID, at: datetime) -> int:
    """End the claims of ``reference`` that are still open; the number of GPUs let go. Repeating it is harmless.

    A claim that would have no length is deleted. One that begins after ``at`` (a clock that went back) is, too.
    """
    released = 0
    with transaction.atomic():
        for claim in (
            GpuClaim.objects.select_for_update().filter(reference=reference, period__endswith=None).order_by("pk")
        ):
            if claim.period.lower >= at:
                claim.delete()
            else:
                claim.period = DateTimeTZRange(claim.period.lower, at)
                claim.save(update_fields=["period"])
            released += 1
    return released


def unclaimed(gpus: GpuQuerySet, at: datetime) -> GpuQuerySet:
    """Those of ``gpus`` that nothing runs on: no claim of lane 0 now or later."""
    running = GpuClaim.objects.filter(gpu=OuterRef("pk"), lane=0).filter(period__endswith=None)
    return gpus.exclude(Exists(running)).exclude(
        Exists(GpuClaim.objects.current(at).filter(gpu=OuterRef("pk"), lane=0))
    )


def free_gpus(machine: Machine, at: datetime) -> Any:
    """GPUs of ``machine`` that could be rented now as far as claims and health tell: offerable, and nothing runs on them."""
    return unclaimed(Gpu.objects.offerable().filter(machine=machine), at)


def held_by(reference: UUID) -> Any:
    """The GPUs that ``reference`` holds now, until it releases them."""
    return (
        Gpu.objects.filter(claims__reference=reference, claims__period__endswith=None)
        .distinct()
        .order_by("machine", "index")
    )


def lock_machines(pks: set[int]) -> None:
    """Precondition: in a transaction. Serialises everything that gives work to these machines."""
    list(Machine.objects.select_for_update(no_key=True).filter(pk__in=pks).order_by("pk").values_list("pk", flat=True))


def constraint_of(error: IntegrityError) -> str:
    """The name of the constraint that PostgreSQL says was violated; "" if it does not say."""
    diagnostics = getattr(error.__cause__, "diag", None)
    return getattr(diagnostics, "constraint_name", None) or ""
