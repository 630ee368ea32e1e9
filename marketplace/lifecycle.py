"""A rental from its start to its end: one table of states, each saying who moves it on and whether it costs.

    state      costs   may become   when
    ---------  ------  -----------  ------------------------------------------------------------------------
    starting   no      running      the machine first reports the container running: the meter opens
                       ending       the renter stops it, or its declared hours are over
                       ended        the job ended before it ran, or the machine is lost
    running    yes     ending       the renter stops it, or one of its limits is reached
                       ended        the machine reports the end, or is lost
    ending     no      ended        the machine reports the end, or is lost
    ended      no      nothing      it is final

A machine that answers and yet says nothing of the rental for as long as it takes to be lost ends it too: it never took it on,
no longer runs it, or does not stop it.

Charged is what ran: from the first "running" that was heard to the earliest of the end, the stop, the limit and, where the
provider's side broke it, the last proof of life. A start that fails costs nothing.

Locks, in this order everywhere: the machine, the rental, the payer, ledger accounts.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import transaction
from django.db.models import Q

from billing import metering
from gpunex.accounts.models import User
from gpunex.accounts.notices import Event, notify
from gpunex.kit.time import iso_z
from gpunex.policy.models import Policy
from marketplace import credits, limits, listings, notices
from marketplace.models import Job, Rental, RentalGpu, RentalQuerySet
from providers import claims, workloads
from providers.models import Gpu, Machine, Workload
from reliability.incidents import record_incident, record_outcome

log = structlog.get_logger(__name__)
State, Cause, Observed = Rental.State, Rental.Cause, Workload.Observed

ALLOWED: dict[str, frozenset[str]] = {
    State.STARTING: frozenset({State.RUNNING, State.ENDING, State.ENDED}),
    State.RUNNING: frozenset({State.ENDING, State.ENDED}),
    State.ENDING: frozenset({State.ENDED}),
    State.ENDED: frozenset(),
}


class ForbiddenTransition(Exception):
    """A step that the table does not have: a fault of ours."""


def move(rental: Rental, state: Rental.State) -> None:
    """Take a step of the table on a locked rental; the caller saves it. Raises ForbiddenTransition."""
    if state not in ALLOWED[rental.state]:
        raise ForbiddenTransition(f"{rental} is {rental.state} and cannot become {state}")
    rental.state = state


def _locked(key: int) -> Rental:
    """The rental by its primary key, its machine and itself locked. Precondition: in a transaction."""
    claims.lock_machines(set(Rental.objects.filter(pk=key).values_list("listing__machine_id", flat=True)))
    Rental.objects.select_for_update(no_key=True).only("pk").get(pk=key)
    return Rental.objects.with_work().select_related("provider__organisation", "listing__machine").get(pk=key)


@transaction.atomic
def ask_to_stop(*, rental: Rental, by: User | None, at: datetime) -> Rental:
    """Want the container stopped; nothing after ``at`` is charged. Stopping what has been stopped changes nothing."""
    rental = _locked(rental.pk)
    if rental.state in (State.STARTING, State.RUNNING):
        _stop(rental, cause=Cause.STOPPED, stops_at=at, at=at)
        log.info("rental_stopped", rental=str(rental.public_id), by=by.pk if by else None)
    return rental


def _stop(rental: Rental, *, cause: Rental.Cause, stops_at: datetime, at: datetime) -> None:
    """The meter stays open until the machine's word proves up to where it ran, and is closed no later than ``stops_at``."""
    move(rental, State.ENDING)
    rental.cause = cause
    rental.stop_asked_at = stops_at
    rental.save(update_fields=["state", "cause", "stop_asked_at"])
    workloads.ask_to_stop(workload=rental.job.workload, at=at)


@transaction.atomic
def heard(*, workload: Workload, at: datetime) -> Rental | None:
    """The machine said something about this job, and ``workloads.report`` kept it: open the meter, or end the rental.

    Repeating is harmless, and a sweep repeats it for what was missed. None for a workload that is no rental's.
    """
    key = Job.objects.filter(workload=workload).values_list("rental_id", flat=True).first()
    if key is None:
        return None
    rental = _locked(key)
    observed = rental.job.workload.observed
    if rental.state == State.ENDED:
        return rental
    if observed == Observed.FINISHED:
        _end(rental, at=at)
    elif observed == Observed.RUNNING and rental.state == State.STARTING:
        _run(rental, at=at)
    elif rental.state == State.RUNNING:
        _prove([rental])
    return rental


def _run(rental: Rental, *, at: datetime) -> None:
    """From the first report of the running container on, seconds count."""
    workload, machine = rental.job.workload, rental.listing.machine
    model = rental.listing.gpu_model.name
    gpus = [row.gpu for row in RentalGpu.objects.filter(rental=rental).select_related("gpu").order_by("position")]
    rental.running_at = workload.started_at or at
    rental.meter = metering.open_meter(
        payer=rental.organisation,
        payee=rental.provider.organisation,
        rate_micro_per_hour=rental.rate_micro_per_hour,
        quantity=rental.gpu_count,
        fee_bps=rental.fee_bps,
        reference=rental.public_id,
        labels=meter_labels(rental=rental, gpus=gpus),
        at=rental.running_at,
    )
    move(rental, State.RUNNING)
    rental.save(update_fields=["state", "meter", "running_at"])
    _keep_deadline(rental, at=at)
    notify(
        organisation=rental.provider.organisation,
        event=notices.FIRST_RENTAL,
        key=f"first_rental:{rental.provider.public_id}",
        data={"machine": machine.name, "gpus": rental.gpu_count, "model": model, "price_micro": rental.price_micro},
        at=at,
    )


def meter_labels(*, rental: Rental, gpus: Sequence[Gpu]) -> dict[str, Any]:
    """What a statement line says of a rental, frozen; its amount is split over the GPUs in this order."""
    return {
        "rental": str(rental.public_id),
        "model": rental.listing.gpu_model.name,
        "machine": rental.listing.machine.name,
        "gpus": [{"id": str(gpu.public_id), "index": gpu.index} for gpu in gpus],
        "image": rental.request.image,
    }


def _end(rental: Rental, *, at: datetime) -> None:
    """The workload is finished: close the meter, let the GPUs go, and, where the provider's side broke it, make it good."""
    workload, machine = rental.job.workload, rental.listing.machine
    limit = limits.of(rental=rental, request=rental.request, meter=rental.meter)
    said = Cause(workload.cause)
    if said == Cause.DEADLINE and limit is not None:
        said = limit.cause  # the machine knows that it had a deadline, we know which
    broken = said in Rental.PROVIDER_CAUSES and not rental.cause
    rental.cause = rental.cause or said
    rental.provider_fault = broken
    rental.ended_at = workload.finished_at or at
    move(rental, State.ENDED)
    rental.save(update_fields=["state", "cause", "provider_fault", "ended_at"])
    claims.release(reference=rental.public_id, at=at)
    if rental.meter is not None:
        bounds = [rental.ended_at, rental.stop_asked_at, limit.at if limit and limit.cause == Cause.DEADLINE else None]
        if broken:
            bounds.append(workload.proved_at)
        rental.meter = metering.close_meter(meter=rental.meter, ended_at=min(bound for bound in bounds if bound), at=at)
    record_outcome(
        machine=machine,
        reference=rental.public_id,
        cause=rental.cause,
        provider_fault=broken,
        at=rental.ended_at,
        recorded_at=at,
    )
    if broken:
        _make_good(rental, at=at)
    elif rental.cause == Cause.OUT_OF_MONEY:
        _tell(rental, notices.OUT_OF_MONEY, at=at)
    listings.refresh(at=at, machines=[machine])


def _make_good(rental: Rental, *, at: datetime) -> None:
    """The provider's side broke it: the incident with its evidence, the renter's credit, and the mail that says both."""
    workload = rental.job.workload
    record_incident(
        machine=rental.listing.machine,
        key=f"rental:{rental.public_id}",
        cause=rental.cause,
        at=rental.ended_at or at,
        reference=rental.public_id,
        evidence={
            "workload": str(workload.public_id),
            "attempt": workload.attempt,
            "exit_code": workload.exit_code,
            "message": workload.message,
            "last_proof_at": iso_z(workload.proved_at),
            "heard_at": iso_z(at),
        },
    )
    credited = credits.credit(rental=rental, meter=rental.meter, at=at) if rental.meter is not None else 0
    _tell(rental, notices.PROVIDER_BROKE, credit_micro=credited, at=at)


def _tell(rental: Rental, event: Event, *, at: datetime, **more: Any) -> None:
    notify(
        organisation=rental.organisation,
        event=event,
        key=f"{event.name}:{rental.public_id}",
        data={
            "rental": str(rental.public_id),
            "machine": rental.listing.machine.name,
            "gpus": rental.gpu_count,
            "model": rental.listing.gpu_model.name,
            "ended_at": (
                rental.meter.ended_at if rental.meter and rental.meter.ended_at else rental.ended_at or at
            ).isoformat(),
            "charged_micro": rental.meter.billed_gross_micro if rental.meter else 0,
            **more,
        },
        at=at,
    )


def _keep_deadline(rental: Rental, *, at: datetime) -> None:
    """What the machine enforces by itself follows what the rental may cost and last. Precondition: locked."""
    limit = limits.of(rental=rental, request=rental.request, meter=rental.meter)
    workloads.set_stop_at(workload=rental.job.workload, stop_at=limit.at if limit else None, at=at)


# --- sweeps ----------------------------------------------------------------------------------------------------------


def prove(*, at: datetime) -> int:
    """Meters follow their machines' heartbeats, deadlines follow the money. Returns how many meters moved."""
    running = list(Rental.objects.with_work().filter(state=State.RUNNING, meter__isnull=False))
    moved = _prove(running)
    for rental in running:
        limit = limits.of(rental=rental, request=rental.request, meter=rental.meter)
        if limits.differ(limit, rental.job.workload.stop_at):
            _each(_follow_limit, [rental.pk], at=at)
    return moved


def _prove(running: list[Rental]) -> int:
    until: dict[int, datetime] = {}
    for rental in running:
        proved, limit = (
            rental.job.workload.proved_at,
            limits.of(rental=rental, request=rental.request, meter=rental.meter),
        )
        if proved is None or rental.meter is None:
            continue
        if limit is not None and limit.cause == Cause.DEADLINE:
            proved = min(proved, limit.at)  # beyond it nobody pays; the end of the money the meter keeps by itself
        if proved > rental.meter.proved_until:
            until[rental.meter.pk] = proved
    return metering.prove(until=until)


def end_overdue(*, at: datetime) -> int:
    """End what is over though nobody says so: reports that were missed, machines lost or gone, limits that are reached."""
    unfinished = Rental.objects.open().exclude(job__workload__observed=Observed.FINISHED)
    missed = Rental.objects.open().filter(job__workload__observed=Observed.FINISHED).values_list("pk", flat=True)
    gone = unfinished.filter(Q(listing__machine__lost_at__isnull=False) | Q(listing__machine__retired_at__isnull=False))
    limited = [
        rental.pk
        for rental in Rental.objects.with_work().filter(state__in=(State.STARTING, State.RUNNING))
        if _over(limits.of(rental=rental, request=rental.request, meter=rental.meter), at)
    ]
    return (
        _each(_end_missed, missed, at=at)
        + _each(_end_gone, gone.values_list("pk", flat=True), at=at)
        + _each(_end_limited, limited, at=at)
        + _each(_end_unspoken, _unspoken(at).values_list("pk", flat=True), at=at)
    )


def _unspoken(at: datetime) -> RentalQuerySet:
    """Rentals that their machine has long said nothing of. A connection younger than that may be one after an outage of ours."""
    policy = Policy.load()
    long_ago = at - timedelta(seconds=policy.lost_seconds)
    talking = Machine.objects.connected(at, policy.offline_seconds).filter(
        connected_since__lte=long_ago, offline_since=None
    )
    return (
        Rental.objects.open()
        .filter(listing__machine__in=talking)
        .exclude(job__workload__observed=Observed.FINISHED)
        .filter(
            Q(state=State.STARTING, created_at__lte=long_ago, job__workload__observed=Observed.ASSIGNED)
            | Q(state=State.RUNNING, job__workload__proved_at__lte=long_ago)
            | Q(state=State.ENDING, stop_asked_at__lte=long_ago)
        )
    )


def _each(step: Callable[..., None], keys: Any, *, at: datetime) -> int:
    """A transaction a rental; one that cannot be ended never stops the rest."""
    done = 0
    for key in list(keys):
        try:
            with transaction.atomic():
                step(_locked(key), at=at)
            done += 1
        except Exception:
            log.exception("rental_sweep_failed", rental=key, step=step.__name__)
    return done


def _over(limit: limits.Limit | None, at: datetime) -> bool:
    return limit is not None and limit.at <= at


def _follow_limit(rental: Rental, *, at: datetime) -> None:
    if rental.state == State.RUNNING:
        _keep_deadline(rental, at=at)


def _end_missed(rental: Rental, *, at: datetime) -> None:
    if rental.state != State.ENDED and rental.job.workload.observed == Observed.FINISHED:
        _end(rental, at=at)


def _end_gone(rental: Rental, *, at: datetime) -> None:
    """Nobody is left who could report its end: it ended with the last proof of life."""
    workload, machine = rental.job.workload, rental.listing.machine
    if (
        rental.state == State.ENDED
        or workload.observed == Observed.FINISHED
        or not (machine.lost_at or machine.retired_at)
    ):
        return
    cause = Cause.AGENT_SHUTDOWN if machine.retired_at else Cause.MACHINE_LOST
    last = workload.proved_at or machine.last_seen_at or rental.created_at
    workloads.end_unseen(workload=workload, cause=cause, at=min(at, max(last, rental.created_at)))
    _end(rental, at=at)


def _end_unspoken(rental: Rental, *, at: datetime) -> None:
    """Its machine talks, of other things: it ended with the last proof of life, if there was one."""
    if not _unspoken(at).filter(pk=rental.pk).exists():
        return
    workload = rental.job.workload
    log.warning("rental_not_spoken_of", rental=str(rental.public_id), state=rental.state, observed=workload.observed)
    workloads.end_unseen(workload=workload, cause=rental.cause or Cause.MACHINE_LOST, at=workload.proved_at or at)
    _end(rental, at=at)


def _end_limited(rental: Rental, *, at: datetime) -> None:
    """Its limit is reached. The machine stops by itself; this says so to one that has not heard of its deadline."""
    limit = limits.of(rental=rental, request=rental.request, meter=rental.meter)
    if rental.state in (State.STARTING, State.RUNNING) and limit is not None and limit.at <= at:
        _stop(rental, cause=limit.cause, stops_at=limit.at, at=at)
