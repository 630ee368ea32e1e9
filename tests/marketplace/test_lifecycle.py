"""From the first "running" to the end: what is charged, whose fault it is, and what is made good."""

import itertools
from datetime import datetime, timedelta

import pytest

from billing import adjustments, debts, ledger, metering
from billing.ledger import Kind
from billing.metering import gross_of
from billing.models import Meter, Transfer
from gpunex.accounts.models import Notice, Organisation
from gpunex.outbox.models import Message
from marketplace import lifecycle, rentals
from marketplace.lifecycle import ALLOWED, ForbiddenTransition, move
from marketplace.models import Listing, Rental
from providers import workloads
from providers.models import GpuClaim, Machine, Schedule, Workload
from providers.workloads import Report
from reliability.models import Incident, Outcome
from tests.marketplace.conftest import (
    USDC,
    fund,
    heartbeat,
    offer,
    owned,
    person,
    provider,
    rent,
    renter_with,
    report,
    run_for,
)

State, Cause = Rental.State, Rental.Cause


@pytest.mark.case("marketplace-49")
@pytest.mark.parametrize(("before", "after"), list(itertools.product(State, State)))
def test_every_pair_of_states_is_allowed_by_the_table_or_refused(before: State, after: State):
    rental = Rental(state=before)
    if after in ALLOWED[before]:
        move(rental, after)
        assert rental.state == after
    else:
        with pytest.raises(ForbiddenTransition):
            move(rental, after)
        assert rental.state == before


def test_the_table_of_the_docstring_is_the_table_of_the_code():
    told: dict[str, set[str]] = {state: set() for state in State}
    current = ""
    for line in (lifecycle.__doc__ or "").splitlines():
        words = line.split()
        if len(words) >= 3 and words[0] in told and words[1] in ("no", "yes"):
            current = words[0]
            words = words[2:]
        if current and words and words[0] in told and line.startswith(" "):
            told[current].add(words[0])
        if not line.strip() and current:
            break
    assert told == {state: set(allowed) for state, allowed in ALLOWED.items()}


@pytest.mark.parametrize("state", State)
def test_only_running_costs(state: State):
    assert Rental(state=state).billable == (state == State.RUNNING)


@pytest.mark.spec("F3", "G1")
@pytest.mark.case("marketplace-2", "marketplace-6")
def test_a_job_that_ends_is_charged_by_the_second_from_running_to_its_end(
    renter: Organisation, listing: Listing, noon: datetime
):
    rental = rent(renter, listing, at=noon, gpu_count=2)
    for seconds, state in ((1, "accepted"), (2, "pulling"), (30, "creating")):
        rental = report(rental, state, at=noon + timedelta(seconds=seconds))
        assert (rental.state, rental.meter) == (State.STARTING, None)
    start = noon + timedelta(seconds=41)
    report(rental, "running", at=start)
    end = start + timedelta(seconds=1234)
    rental = report(rental, "finished", at=end + timedelta(seconds=3), finished_at=end, cause="completed", exit_code=0)
    assert (rental.state, rental.cause, rental.provider_fault, rental.ended_at) == (
        State.ENDED,
        Cause.COMPLETED,
        False,
        end,
    )
    assert rental.job.workload.exit_code == 0
    charged = gross_of(2 * USDC, 1234)
    assert rental.meter.billed_gross_micro == charged
    assert owned(renter) == 100 * USDC - charged
    assert owned(listing.machine.provider.organisation, Kind.PROVIDER_PAYABLE) == charged - charged * 1000 // 10_000
    assert rental.meter.labels["gpus"] == [
        {"id": str(gpu.public_id), "index": gpu.index} for gpu in listing.machine.gpus.order_by("index")
    ]


@pytest.mark.case("marketplace-22")
def test_the_cards_are_free_as_soon_as_the_job_has_ended(renter: Organisation, listing: Listing, noon: datetime):
    rental = rent(renter, listing, at=noon, gpu_count=2)
    listing.refresh_from_db()
    assert listing.gpus_free == 0
    report(rental, "running", at=noon)
    report(rental, "finished", at=noon + timedelta(minutes=5), cause="completed", exit_code=0)
    listing.refresh_from_db()
    assert listing.gpus_free == 2
    Machine.objects.filter(pk=listing.machine_id).update(last_seen_at=noon + timedelta(minutes=5))
    rent(renter, listing, at=noon + timedelta(minutes=5), gpu_count=2)


@pytest.mark.case("marketplace-2")
@pytest.mark.parametrize("cause", ["image_missing", "image_denied", "cuda_too_old", "docker_failed", "gpu_unavailable"])
def test_a_start_that_fails_costs_nothing_whosever_fault(
    renter: Organisation, listing: Listing, noon: datetime, cause: str
):
    rental = rent(renter, listing, at=noon)
    report(rental, "pulling", at=noon + timedelta(seconds=5))
    rental = report(rental, "finished", at=noon + timedelta(minutes=10), cause=cause)
    assert (rental.state, rental.cause, rental.meter) == (State.ENDED, cause, None)
    assert owned(renter) == 100 * USDC
    assert rental.provider_fault == (cause in Rental.PROVIDER_CAUSES)
    assert Incident.objects.filter(reference=rental.public_id).exists() == rental.provider_fault
    assert Outcome.objects.get(reference=rental.public_id).provider_fault == rental.provider_fault


def test_repeated_and_late_reports_change_nothing(renter: Organisation, listing: Listing, noon: datetime):
    rental = rent(renter, listing, at=noon)
    report(rental, "running", at=noon)
    report(rental, "running", at=noon + timedelta(seconds=50))
    ended = report(rental, "finished", at=noon + timedelta(seconds=60), cause="exit_nonzero", exit_code=3)
    again = report(rental, "finished", at=noon + timedelta(seconds=90), cause="completed", exit_code=0)
    late = report(rental, "pulling", at=noon + timedelta(seconds=95))
    assert (again.cause, again.ended_at, late.state) == (ended.cause, ended.ended_at, State.ENDED)
    assert again.meter.billed_seconds == 60


@pytest.mark.case("marketplace-4")
def test_a_stop_ends_the_charge_at_once_and_the_rental_when_the_machine_says_so(
    renter: Organisation, listing: Listing, noon: datetime
):
    rental = rent(renter, listing, at=noon)
    at = run_for(rental, 600, at=noon)
    stopped = rentals.ask_to_stop(rental=rental, by=renter.created_by, at=at)
    assert (stopped.state, stopped.cause) == (State.ENDING, Cause.STOPPED)
    assert rental.job.workload.__class__.objects.get(pk=rental.job.workload.pk).wanted == Workload.Wanted.STOP
    again = rentals.ask_to_stop(rental=rental, by=renter.created_by, at=at + timedelta(seconds=5))
    assert again.stop_asked_at == at
    heartbeat(rental, at=at + timedelta(seconds=20))  # it is still winding down: free
    ended = report(rental, "finished", at=at + timedelta(seconds=25), cause="stopped", exit_code=143)
    assert (ended.state, ended.cause, ended.meter.billed_seconds) == (State.ENDED, Cause.STOPPED, 600)
    assert rentals.ask_to_stop(rental=rental, by=renter.created_by, at=at + timedelta(hours=1)).state == State.ENDED


def test_a_stop_before_it_runs_costs_nothing_even_if_it_ran_meanwhile(
    renter: Organisation, listing: Listing, noon: datetime
):
    rental = rent(renter, listing, at=noon)
    rentals.ask_to_stop(rental=rental, by=renter.created_by, at=noon + timedelta(seconds=2))
    assert report(rental, "running", at=noon + timedelta(seconds=3)).meter is None
    ended = report(rental, "finished", at=noon + timedelta(seconds=9), cause="stopped")
    assert (ended.state, ended.meter, owned(renter)) == (State.ENDED, None, 100 * USDC)


@pytest.mark.case("marketplace-5")
def test_stop_after_is_kept_by_the_machine_and_by_us(renter: Organisation, listing: Listing, noon: datetime):
    rental = rent(renter, listing, at=noon, stop_after_seconds=3600)
    report(rental, "running", at=noon + timedelta(minutes=1))
    limit = noon + timedelta(minutes=61)
    assert Workload.objects.get(job__rental=rental).stop_at == limit
    heartbeat(rental, at=limit + timedelta(seconds=30))  # a machine that runs on
    assert rentals.end_overdue(at=limit - timedelta(seconds=1)) == 0
    assert rentals.end_overdue(at=limit + timedelta(seconds=30)) == 1
    rental.refresh_from_db()
    assert (rental.state, rental.cause) == (State.ENDING, Cause.DEADLINE)
    ended = report(rental, "finished", at=limit + timedelta(seconds=40), cause="stopped", exit_code=143)
    assert (ended.cause, ended.meter.billed_seconds, ended.provider_fault) == (Cause.DEADLINE, 3600, False)


@pytest.mark.case("marketplace-5")
def test_spend_at_most_is_never_passed_by_a_micro(renter: Organisation, listing: Listing, noon: datetime):
    rental = rent(renter, listing, at=noon, gpu_count=2, spend_at_most_micro=700_001)
    report(rental, "running", at=noon)
    stop_at = Workload.objects.get(job__rental=rental).stop_at
    ended = report(rental, "finished", at=stop_at + timedelta(minutes=1), cause="deadline", exit_code=143)
    assert ended.cause == Cause.DEADLINE
    assert 700_001 - 2 * USDC / 3600 < ended.meter.billed_gross_micro <= 700_001


@pytest.mark.spec("D2")
def test_a_rental_stops_with_the_hours_it_began_in_and_a_later_schedule_changes_nothing(
    renter: Organisation, listing: Listing, noon: datetime
):
    Schedule.objects.filter(machine=listing.machine).update(always=False, windows=[[2, "08:00", "14:00"]])
    rental = rent(renter, listing, at=noon)
    Schedule.objects.create(
        machine=listing.machine, effective_from=noon, timezone="UTC", always=False, windows=[[0, "00:00", "01:00"]]
    )
    report(rental, "running", at=noon)
    assert rentals.end_overdue(at=noon + timedelta(hours=1, minutes=59)) == 0
    assert rentals.end_overdue(at=noon + timedelta(hours=2)) == 1


@pytest.mark.case("marketplace-23")
def test_when_the_money_is_used_up_it_stops_and_nobody_owes_anything(noon: datetime, db: None):
    listing, poor = offer(at=noon), renter_with(USDC, at=noon)
    rental = rent(poor, listing, at=noon)
    report(rental, "running", at=noon)
    assert Workload.objects.get(job__rental=rental).stop_at == noon + timedelta(hours=1)
    late = noon + timedelta(hours=1, minutes=5)
    heartbeat(rental, at=late)
    assert rentals.end_overdue(at=late) == 1
    ended = report(rental, "finished", at=late + timedelta(seconds=10), cause="deadline", exit_code=143)
    assert (ended.cause, ended.provider_fault) == (Cause.OUT_OF_MONEY, False)
    assert (owned(poor), ended.meter.billed_gross_micro) == (0, USDC)
    assert Notice.objects.filter(organisation=poor, event="marketplace.out_of_money").count() == 1


def test_a_deposit_moves_the_deadline_of_what_runs(noon: datetime, db: None):
    listing, poor = offer(at=noon), renter_with(USDC, at=noon)
    rental = rent(poor, listing, at=noon)
    at = run_for(rental, 600, at=noon)
    fund(poor, USDC, at=at)
    rentals.prove(at=at)
    assert Workload.objects.get(job__rental=rental).stop_at == noon + timedelta(hours=2)
    revision = Machine.objects.get(pk=listing.machine_id).revision
    rentals.prove(at=at + timedelta(seconds=5))
    assert Machine.objects.get(pk=listing.machine_id).revision == revision  # nothing new is not told again


@pytest.mark.spec("F3")
@pytest.mark.parametrize(("tier", "minutes"), [("community", 30), ("enterprise", 120)])
def test_a_lost_machine_ends_the_charge_at_its_last_proof_and_the_tiers_credit_is_paid(
    renter: Organisation, noon: datetime, tier: str, minutes: int
):
    listing = offer(at=noon, owner=provider(at=noon, tier=tier))
    rental = rent(renter, listing, at=noon)
    last = run_for(rental, 10_000, at=noon)
    lost = last + timedelta(minutes=10)
    assert rentals.end_overdue(at=lost) == 0
    Machine.objects.filter(pk=listing.machine_id).update(lost_at=lost)
    assert rentals.end_overdue(at=lost) == 1
    rental.refresh_from_db()
    assert (rental.state, rental.cause, rental.provider_fault, rental.ended_at) == (
        State.ENDED,
        Cause.MACHINE_LOST,
        True,
        last,
    )
    charged, credit = gross_of(USDC, 10_000), USDC * minutes // 60
    assert rental.meter.billed_gross_micro == charged
    assert owned(renter) == 100 * USDC - charged + credit
    net = charged - charged * rental.fee_bps // 10_000
    covered = min(net, credit)
    assert owned(listing.machine.provider.organisation, Kind.PROVIDER_PAYABLE) == net - covered
    assert ledger.balance(ledger.account(Kind.CREDITS)) == covered - credit  # the platform bears the rest
    incident = Incident.objects.get(reference=rental.public_id)
    assert incident.evidence["last_proof_at"] == last.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    assert Outcome.objects.get(reference=rental.public_id).provider_fault
    assert Message.objects.filter(event="marketplace.provider_broke", to=renter.created_by.email).count() == 1
    assert not GpuClaim.objects.current(lost).filter(reference=rental.public_id).exists()
    assert rentals.end_overdue(at=lost + timedelta(minutes=1)) == 0
    assert Transfer.objects.filter(kind="credit").count() == (2 if covered else 1)


def test_what_the_earnings_do_not_cover_of_a_credit_is_advanced_and_becomes_the_providers_debt(
    renter: Organisation, noon: datetime
):
    owner = provider(at=noon, tier="enterprise")
    rental = rent(renter, offer(at=noon, owner=owner), at=noon)
    last = run_for(rental, 7200, at=noon)
    metering.settle_payees(payees=[owner.organisation], at=last)
    payable = ledger.account(Kind.PROVIDER_PAYABLE, organisation=owner.organisation)
    transit = ledger.account(Kind.IN_TRANSIT, organisation=owner.organisation, reference="payout-1")
    taken = ledger.balance(payable) - 300_000
    ledger.post(key="out", debit=payable, credit=transit, amount_micro=taken, kind="payout", at=last)
    report(rental, "finished", at=last, cause="gpu_lost")
    assert owned(renter) == 100 * USDC  # two hours at one USDC were charged and, in this tier, credited whole, at once
    assert debts.open_debt(owner.organisation) == 2 * USDC - 300_000
    assert Message.objects.filter(event="debt_owed", to=owner.organisation.created_by.email).count() == 1
    assert Meter.objects.get().refunded_micro == 2 * USDC
    assert ledger.verify_books().problems == []


def test_a_refund_before_the_break_is_part_of_what_is_given_back(
    renter: Organisation, listing: Listing, noon: datetime
):
    rental = rent(renter, listing, at=noon)
    at = run_for(rental, 900, at=noon)
    metering.settle_payees(at=at)
    rental.refresh_from_db()
    staff = [person(name, is_staff=True) for name in ("first", "second")]
    asked = adjustments.ask_refund(
        meter=rental.meter, amount_micro=200_000, from_earnings=False, reason="slow", by=staff[0], at=at
    )
    adjustments.make(adjustment=asked, by=staff[1], at=at)
    report(rental, "finished", at=at, cause="gpu_lost")
    assert owned(renter) == 100 * USDC  # never more than the 250,000 that were charged
    assert ledger.verify_books().problems == []


def test_the_credit_is_never_more_than_was_charged(renter: Organisation, listing: Listing, noon: datetime):
    rental = rent(renter, listing, at=noon)
    at = run_for(rental, 60, at=noon)
    ended = report(rental, "finished", at=at, cause="gpu_lost", message="fell off the bus")
    assert (ended.provider_fault, ended.meter.billed_seconds) == (True, 60)
    assert owned(renter) == 100 * USDC


def test_a_break_told_late_is_charged_to_the_last_proof_only(renter: Organisation, listing: Listing, noon: datetime):
    rental = rent(renter, listing, at=noon)
    proved = run_for(rental, 3600 * 3, at=noon)
    back = proved + timedelta(minutes=6)
    ended = report(rental, "finished", at=back, finished_at=back, cause="host_restart")
    assert ended.meter.billed_seconds == 3600 * 3


def test_a_machine_that_comes_back_in_time_has_proved_the_gap(renter: Organisation, listing: Listing, noon: datetime):
    rental = rent(renter, listing, at=noon)
    run_for(rental, 100, at=noon)
    heartbeat(rental, at=noon + timedelta(seconds=500))
    rental.refresh_from_db()
    assert metering.accrued(rental.meter).seconds == 500


def test_silence_is_never_charged(renter: Organisation, listing: Listing, noon: datetime):
    rental = rent(renter, listing, at=noon)
    run_for(rental, 100, at=noon)
    rentals.prove(at=noon + timedelta(hours=1))
    rental.refresh_from_db()
    assert metering.accrued(rental.meter).seconds == 100


def test_a_host_that_leaves_ends_its_rentals_as_its_own_fault(renter: Organisation, listing: Listing, noon: datetime):
    rental = rent(renter, listing, at=noon)
    at = run_for(rental, 100, at=noon)
    Machine.objects.filter(pk=listing.machine_id).update(retired_at=at)
    rentals.end_overdue(at=at)
    rental.refresh_from_db()
    assert (rental.cause, rental.provider_fault, rental.meter.billed_seconds) == (Cause.AGENT_SHUTDOWN, True, 100)


def test_a_rental_that_was_being_stopped_is_not_the_hosts_fault_when_it_vanishes(
    renter: Organisation, listing: Listing, noon: datetime
):
    rental = rent(renter, listing, at=noon)
    at = run_for(rental, 100, at=noon)
    rentals.ask_to_stop(rental=rental, by=renter.created_by, at=at)
    Machine.objects.filter(pk=listing.machine_id).update(lost_at=at + timedelta(minutes=10))
    rentals.end_overdue(at=at + timedelta(minutes=10))
    rental.refresh_from_db()
    assert (rental.state, rental.cause, rental.provider_fault, rental.meter.billed_seconds) == (
        State.ENDED,
        Cause.STOPPED,
        False,
        100,
    )


def test_a_report_that_nobody_acted_on_is_made_up_for_by_the_sweep(
    renter: Organisation, listing: Listing, noon: datetime
):
    rental = rent(renter, listing, at=noon)
    report(rental, "running", at=noon)
    workload = rental.job.workload
    end = noon + timedelta(seconds=77)
    said = Report(attempt=1, state="finished", cause="completed", exit_code=0, finished_at=end)
    workloads.report(machine=workload.machine, workload_id=workload.public_id, report=said, at=end)
    assert rentals.end_overdue(at=noon + timedelta(minutes=5)) == 1
    rental.refresh_from_db()
    assert (rental.state, rental.meter.billed_seconds) == (State.ENDED, 77)


def test_one_rental_that_cannot_be_ended_never_stops_the_rest(
    renter: Organisation, noon: datetime, monkeypatch: pytest.MonkeyPatch
):
    first, second = (rent(renter, offer(at=noon), at=noon) for _ in range(2))
    Machine.objects.all().update(lost_at=noon)
    real = lifecycle.record_outcome

    def broken(*, reference, **rest):
        if reference == first.public_id:
            raise RuntimeError("a bug")
        return real(reference=reference, **rest)

    monkeypatch.setattr(lifecycle, "record_outcome", broken)
    assert rentals.end_overdue(at=noon + timedelta(minutes=11)) == 1
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.state, second.state) == (State.STARTING, State.ENDED)


def test_the_first_rental_is_told_to_its_provider_once(renter: Organisation, listing: Listing, noon: datetime):
    for _ in range(2):
        report(rent(renter, listing, at=noon), "running", at=noon)
    assert (
        Notice.objects.filter(
            organisation=listing.machine.provider.organisation, event="marketplace.first_rental"
        ).count()
        == 1
    )


def test_a_workload_that_is_no_rentals_is_nothing_to_the_marketplace(listing: Listing, noon: datetime):
    workload = workloads.assign(machine=listing.machine, kind=Workload.Kind.BENCHMARK, spec={}, gpus=[], at=noon)
    assert rentals.heard(workload=workload, at=noon) is None


# --- a machine that talks, and not of the rental -----------------------------------------------------------------------


def talking(rental: Rental, *, since: datetime, at: datetime) -> None:
    """Heartbeats that do not list the rental's workload."""
    machine = Machine.objects.filter(pk=rental.listing.machine_id)
    machine.update(connected_since=since, offline_since=None, last_seen_at=at)


def test_a_stop_that_the_machine_never_confirms_ends_by_itself(renter: Organisation, listing: Listing, noon: datetime):
    rental = rent(renter, listing, at=noon)
    last = run_for(rental, 600, at=noon)
    asked = last + timedelta(seconds=5)
    rentals.ask_to_stop(rental=rental, by=None, at=asked)
    soon, late = asked + timedelta(minutes=9), asked + timedelta(minutes=10)
    talking(rental, since=noon, at=soon)
    assert rentals.end_overdue(at=soon) == 0
    talking(rental, since=noon, at=late)
    assert rentals.end_overdue(at=late) == 1
    rental.refresh_from_db()
    assert (rental.state, rental.cause, rental.provider_fault) == (State.ENDED, Cause.STOPPED, False)
    assert (rental.meter.closed, rental.meter.billed_seconds) == (True, 600)
    assert not GpuClaim.objects.current(late).filter(reference=rental.public_id).exists()


def test_a_rental_that_the_machine_never_took_on_ends_and_costs_nothing(
    renter: Organisation, listing: Listing, noon: datetime
):
    rental = rent(renter, listing, at=noon)
    late = noon + timedelta(minutes=10)
    talking(rental, since=noon, at=late)
    assert rentals.end_overdue(at=late) == 1
    rental.refresh_from_db()
    assert (rental.state, rental.cause, rental.provider_fault) == (State.ENDED, Cause.MACHINE_LOST, True)
    assert (rental.meter, owned(renter)) == (None, 100 * USDC)


def test_a_long_pull_is_no_silence(renter: Organisation, listing: Listing, noon: datetime):
    rental = rent(renter, listing, at=noon)
    report(rental, "pulling", at=noon + timedelta(seconds=5))
    late = noon + timedelta(hours=1)
    talking(rental, since=noon, at=late)
    assert rentals.end_overdue(at=late) == 0


def test_a_job_that_the_machine_no_longer_speaks_of_is_broken_as_of_its_last_proof(
    renter: Organisation, listing: Listing, noon: datetime
):
    rental = rent(renter, listing, at=noon)
    last = run_for(rental, 3600, at=noon)
    late = last + timedelta(minutes=10)
    talking(rental, since=noon, at=late)
    assert rentals.end_overdue(at=late) == 1
    rental.refresh_from_db()
    assert (rental.state, rental.provider_fault, rental.ended_at) == (State.ENDED, True, last)
    assert rental.meter.billed_seconds == 3600


def test_nothing_is_ended_for_a_silence_of_ours(renter: Organisation, listing: Listing, noon: datetime):
    """After an outage the first heartbeat comes before what it proves is written: its connection is young then."""
    rental = rent(renter, listing, at=noon)
    last = run_for(rental, 3600, at=noon)
    back = last + timedelta(hours=1)
    talking(rental, since=back, at=back)
    assert rentals.end_overdue(at=back) == 0


# --- one hand on both sides --------------------------------------------------------------------------------------------


def test_who_rents_their_own_gpus_gets_no_credit_from_the_platform(renter: Organisation, noon: datetime):
    """Rent one's own, be paid out, pull the plug: the platform would pay the credit out of its own pocket, again and again."""
    owner = provider(at=noon, tier="enterprise")
    owner.organisation.members.add(renter.created_by)
    rental = rent(renter, offer(at=noon, owner=owner), at=noon)
    last = run_for(rental, 7200, at=noon)
    metering.settle_payees(payees=[owner.organisation], at=last)
    payable = ledger.account(Kind.PROVIDER_PAYABLE, organisation=owner.organisation)
    ledger.post(  # as a payout takes it away
        key="gone",
        debit=payable,
        credit=ledger.account(Kind.PAID_CHAIN),
        amount_micro=ledger.balance(payable),
        kind="payout",
        at=last,
    )
    report(rental, "finished", at=last, cause="gpu_lost")
    assert ledger.balance(ledger.account(Kind.CREDITS)) == 0
    assert owned(renter) == 100 * USDC - gross_of(USDC, 7200)
