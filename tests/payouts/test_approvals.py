"""Caps: what leaves without a second look, and what two administrators approve first."""

from datetime import datetime, timedelta

import pytest

from gpunex.accounts.models import User
from gpunex.outbox.models import Message
from gpunex.policy.models import Policy
from payouts import approvals, review, runs, usdc
from payouts.models import Payout, PayoutRun
from tests.billing.test_ledger import together
from tests.wallets import connect_wallet

from .conftest import USDC, organisation, person, provider_with, run_until_done
from .test_runs import BEFORE, MONDAY, WEEK, credit, earner


def caps(*, payout: int = 10_000 * USDC, run: int = 50_000 * USDC) -> None:
    Policy.load()
    Policy.objects.update(payout_cap_micro=payout, run_cap_micro=run)


@pytest.mark.spec("H1")
def test_a_payout_above_its_cap_waits_for_two_different_admins(admin: User, second_admin: User) -> None:
    caps(payout=25 * USDC)
    earner(30 * USDC, at=BEFORE)
    runs.make_due(at=MONDAY)
    payout = Payout.objects.get()
    assert payout.state == Payout.State.RESERVED
    assert Message.objects.filter(event="payouts_need_attention").count() == 2
    with pytest.raises(approvals.StaffOnly):
        approvals.approve(payout=payout, by=payout.organisation.created_by, at=MONDAY)
    assert approvals.approve(payout=payout, by=admin, at=MONDAY).state == Payout.State.RESERVED
    with pytest.raises(approvals.ApprovedAlready):
        approvals.approve(payout=payout, by=admin, at=MONDAY)
    approved = approvals.approve(payout=payout, by=second_admin, at=MONDAY)
    assert (approved.state, approved.approved_at) == (Payout.State.APPROVED, MONDAY)
    with pytest.raises(approvals.NotWaiting):
        approvals.approve(payout=payout, by=second_admin, at=MONDAY)


@pytest.mark.spec("H1")
def test_a_run_above_its_cap_is_signed_only_after_two_admins_cleared_it(
    admin: User, second_admin: User, at: datetime
) -> None:
    caps(run=50 * USDC)
    for _ in range(2):
        earner(30 * USDC, at=BEFORE)
    assert runs.make_due(at=MONDAY) == 2
    run = PayoutRun.objects.get()
    assert (run.made_at, run.cleared_at) == (MONDAY, None)
    assert set(Payout.objects.values_list("state", flat=True)) == {Payout.State.APPROVED}
    assert usdc.advance(at=at) == 0
    with pytest.raises(approvals.StaffOnly):
        approvals.approve_run(run=run, by=person("nobody"), at=at)
    assert approvals.approve_run(run=run, by=admin, at=at).cleared_at is None
    with pytest.raises(approvals.ApprovedAlready):
        approvals.approve_run(run=run, by=admin, at=at)
    assert approvals.approve_run(run=run, by=second_admin, at=at).cleared_at == at
    assert set(run.approved_by.all()) == {admin, second_admin}
    with pytest.raises(approvals.RunNotWaiting):
        approvals.approve_run(run=run, by=admin, at=at)


@pytest.mark.django_db
def test_a_run_within_its_cap_is_cleared_when_it_is_made() -> None:
    caps(run=60 * USDC)
    for _ in range(2):
        earner(30 * USDC, at=BEFORE)
    runs.make_due(at=MONDAY)
    run = PayoutRun.objects.get()
    assert run.cleared_at == run.made_at == MONDAY
    assert approvals.total_micro(run) == 60 * USDC


@pytest.mark.django_db
def test_what_comes_into_a_cleared_run_later_waits_if_the_total_is_above_the_cap() -> None:
    caps(run=50 * USDC)
    first, late = earner(30 * USDC, at=BEFORE), earner(30 * USDC, at=BEFORE, wallet=False)
    runs.make_due(at=MONDAY)
    run = PayoutRun.objects.get()
    assert run.cleared_at is not None
    connect_wallet(late, at=MONDAY)
    PayoutRun.objects.update(made_at=None)  # as if its turn had failed before
    assert runs.make_due(at=MONDAY + timedelta(minutes=5)) == 1
    assert Payout.objects.get(organisation=first).state == Payout.State.APPROVED
    assert Payout.objects.get(organisation=late).state == Payout.State.RESERVED


def test_an_off_cycle_payout_above_the_cap_has_its_asker_as_the_first_of_two(
    admin: User, second_admin: User, at: datetime
) -> None:
    caps(payout=USDC, run=USDC)
    org = provider_with(3 * USDC, at=at)
    payout = runs.pay_off_cycle(organisation=org, by=admin, reason="x", at=at)
    assert (payout.state, payout.run.cleared_at) == (Payout.State.RESERVED, None)
    assert usdc.advance(at=at) == 0
    with pytest.raises(approvals.ApprovedAlready):
        approvals.approve(payout=payout, by=admin, at=at)
    approvals.approve(payout=payout, by=second_admin, at=at)
    payout.run.refresh_from_db()
    assert payout.run.cleared_at == at
    assert run_until_done(payout, at=at).state == Payout.State.PAID


def test_many_small_off_cycle_payouts_drain_no_more_than_one_large_one_may(
    admin: User, second_admin: User, at: datetime
) -> None:
    caps(payout=10 * USDC, run=25 * USDC)
    org = earner(100 * USDC, at=at)
    made = [
        runs.pay_off_cycle(organisation=org, by=admin, reason="small", at=at, amount_micro=10 * USDC) for _ in range(4)
    ]
    states = [payout.state for payout in made]
    assert states == [Payout.State.APPROVED] * 2 + [Payout.State.RESERVED] * 2
    # What a second one approved does not count, nor what failed, nor what is older than a day.
    approvals.approve(payout=made[2], by=second_admin, at=at)
    assert approvals.alone_lately(at) == 20 * USDC
    review.take_back(payout=made[0], by=admin, reason="wrong", at=at)
    assert approvals.alone_lately(at) == 10 * USDC
    later = runs.pay_off_cycle(organisation=org, by=admin, reason="small", at=at, amount_micro=10 * USDC)
    assert later.state == Payout.State.APPROVED
    assert approvals.alone_lately(at + timedelta(hours=25)) == 0


@pytest.mark.django_db(transaction=True)
def test_two_at_once_do_not_both_find_the_same_room_under_the_cap(at: datetime) -> None:
    caps(run=25 * USDC)
    admins = [person("admin", is_staff=True) for _ in range(4)]
    orgs = [earner(20 * USDC, at=at) for _ in range(4)]
    made = together(4, lambda n: runs.pay_off_cycle(organisation=orgs[n], by=admins[n], reason="now", at=at))
    assert [payout.state for payout in made if isinstance(payout, Payout)].count(Payout.State.APPROVED) == 1


def test_a_cap_that_is_lowered_holds_nothing_that_was_approved(at: datetime, admin: User) -> None:
    org = organisation("provider")
    credit(org, 30 * USDC, at=BEFORE)
    connect_wallet(org, at=BEFORE)
    payout = runs.pay_off_cycle(organisation=org, by=admin, reason="x", at=at)
    caps(payout=USDC, run=USDC)
    payout.refresh_from_db()
    assert payout.state == Payout.State.APPROVED
    assert runs.make_due(at=MONDAY + WEEK) == 0
