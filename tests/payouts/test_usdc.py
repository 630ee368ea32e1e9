"""Paying USDC on the development chain: once, whatever dies, lies or lags."""

from datetime import datetime, timedelta

import pytest
from django.conf import settings as django_settings

from billing import treasury
from billing.ledger import Kind
from billing.models import Transfer
from gpunex.accounts.models import Notice, Organisation, User
from gpunex.chain import faucet
from gpunex.chain.transfers import load_key, memo_of
from gpunex.outbox.models import Message
from gpunex.policy.models import Policy
from payouts import resolving, review, runs, usdc
from payouts.books import verify_books
from payouts.models import Attempt, Payout
from tests import chainkit
from tests.billing.test_ledger import together

from .conftest import USDC, owned, provider_with, run_until_done

PAST_THE_WINDOW = 200


def off_cycle(org: Organisation, admin: User, at: datetime, micro: int | None = None) -> Payout:
    return runs.pay_off_cycle(organisation=org, by=admin, reason="asked for", at=at, amount_micro=micro)


@pytest.mark.spec("H1", "H2")
def test_an_off_cycle_payout_reaches_the_wallet_with_its_memo_and_the_books_balance(
    provider: Organisation, admin: User, at: datetime
) -> None:
    payout = run_until_done(off_cycle(provider, admin, at), at=at)
    assert payout.state == Payout.State.PAID
    assert chainkit.held(payout.destination) == 30 * USDC
    attempt = payout.attempts.get()
    assert memo_of(treasury.rpc().get_transaction(attempt.signature)) == payout.memo
    assert payout.memo == f"gpunex:{payout.public_id}:{payout.statement_sha256}"
    assert attempt.fee_lamports > 0
    assert owned(provider, Kind.PROVIDER_PAYABLE) == 0
    assert Notice.objects.filter(organisation=provider, event="payout_paid").count() == 1
    report = verify_books()
    assert report.problems == []
    assert report.drift_micro == 0


@pytest.mark.case("money-F8")
def test_two_equal_payouts_to_one_wallet_are_both_paid(provider: Organisation, admin: User, at: datetime) -> None:
    payouts = [off_cycle(provider, admin, at, USDC) for _ in range(2)]
    usdc.advance(at=at)
    assert len(set(Attempt.objects.values_list("blockhash", flat=True))) == 1
    for payout in payouts:
        assert run_until_done(payout, at=at).state == Payout.State.PAID
    assert chainkit.held(payouts[0].destination) == 2 * USDC


@pytest.mark.case("money-F1", "money-F2")
def test_a_timeout_after_it_landed_pays_once(provider: Organisation, admin: User, at: datetime) -> None:
    payout = off_cycle(provider, admin, at)
    chainkit.faults(timeout_after_land=1)
    assert run_until_done(payout, at=at).state == Payout.State.PAID
    assert (payout.attempts.count(), chainkit.held(payout.destination)) == (1, 30 * USDC)


@pytest.mark.case("money-F1", "money-F3", "money-F6")
def test_a_hidden_status_is_waited_for_and_not_signed_anew(provider: Organisation, admin: User, at: datetime) -> None:
    payout = off_cycle(provider, admin, at)
    usdc.advance(at=at)
    chainkit.faults(hide_status_s=3600.0)
    for step in range(1, 4):
        usdc.advance(at=at + timedelta(seconds=5 * step))
    assert payout.attempts.count() == 1
    chainkit.faults(hide_status_s=0.0)
    assert run_until_done(payout, at=at + timedelta(minutes=1)).state == Payout.State.PAID
    assert chainkit.held(payout.destination) == 30 * USDC


@pytest.mark.case("money-F6")
def test_what_one_node_still_hides_after_expiry_is_not_signed_anew(
    provider: Organisation, admin: User, at: datetime
) -> None:
    payout = off_cycle(provider, admin, at)
    usdc.advance(at=at)
    chainkit.faults(hide_status_s=3600.0, only_path="/a", advance_blocks=PAST_THE_WINDOW)
    for step in range(1, 4):
        usdc.advance(at=at + timedelta(seconds=5 * step))
    payout.refresh_from_db()
    assert (payout.state, payout.attempts.count()) == (Payout.State.SIGNED, 1)
    chainkit.faults(reset=True)
    assert run_until_done(payout, at=at + timedelta(minutes=1)).state == Payout.State.PAID
    assert chainkit.held(payout.destination) == 30 * USDC


@pytest.mark.case("money-F3", "money-F6")
def test_what_both_nodes_hide_at_once_after_its_window_is_not_signed_anew(
    provider: Organisation, admin: User, at: datetime
) -> None:
    """As when the history that both keep their transactions in is away for a while: they know nothing at all then."""
    payout = off_cycle(provider, admin, at)
    usdc.advance(at=at)
    chainkit.faults(hide_status_s=3600.0, advance_blocks=PAST_THE_WINDOW)
    for step in range(1, 5):
        usdc.advance(at=at + timedelta(minutes=2 * step))
    assert payout.attempts.get().dead is False
    chainkit.faults(reset=True)
    assert run_until_done(payout, at=at + timedelta(minutes=20)).state == Payout.State.PAID
    assert (payout.attempts.count(), chainkit.held(payout.destination)) == (1, 30 * USDC)


@pytest.mark.case("money-F5")
def test_a_node_that_answers_with_the_slot_expires_nothing(provider: Organisation, admin: User, at: datetime) -> None:
    payout = off_cycle(provider, admin, at)
    chainkit.faults(hold=1, height_as_slot=True, only_path="/b")
    for step in range(3):
        usdc.advance(at=at + timedelta(seconds=step))
    assert payout.attempts.filter(dead=False).count() == 1
    chainkit.faults(height_as_slot=False, release=True)
    assert run_until_done(payout, at=at + timedelta(minutes=1)).state == Payout.State.PAID
    assert payout.attempts.count() == 1


@pytest.mark.case("money-F4", "money-F9")
def test_a_dropped_transaction_is_signed_anew_only_after_its_window(
    provider: Organisation, admin: User, at: datetime
) -> None:
    payout = off_cycle(provider, admin, at)
    chainkit.faults(drop=1)
    usdc.advance(at=at)
    usdc.advance(at=at + timedelta(seconds=1))
    assert payout.attempts.get().sends == 1
    chainkit.faults(drop=9, advance_blocks=PAST_THE_WINDOW)
    usdc.advance(at=at + timedelta(seconds=59))
    assert not payout.attempts.get().dead  # its blocks have passed, and no minute yet
    chainkit.faults(reset=True)
    usdc.advance(at=at + timedelta(seconds=61))
    assert not payout.attempts.get().dead  # nor for one look alone
    usdc.advance(at=at + timedelta(seconds=121))
    first = payout.attempts.get(number=1)
    assert first.dead
    assert first.evidence["histories"] == 2
    assert run_until_done(payout, at=at + timedelta(seconds=122)).state == Payout.State.PAID
    assert chainkit.held(payout.destination) == 30 * USDC
    assert verify_books().problems == []


def test_the_same_bytes_are_sent_again_while_they_can_land(provider: Organisation, admin: User, at: datetime) -> None:
    payout = off_cycle(provider, admin, at)
    chainkit.faults(drop=1)
    usdc.advance(at=at)
    usdc.advance(at=at + timedelta(seconds=3))
    attempt = payout.attempts.get()
    assert attempt.sends == 2
    assert run_until_done(payout, at=at + timedelta(seconds=6)).state == Payout.State.PAID


@pytest.mark.case("money-F12", "money-F39")
def test_what_never_lands_is_held_for_review_with_an_alert_and_its_money_stays_reserved(
    provider: Organisation, admin: User, at: datetime
) -> None:
    payout = off_cycle(provider, admin, at)
    chainkit.faults(drop=1000)
    for step in range(3 * resolving.ATTEMPTS_MOST):
        usdc.advance(at=at + timedelta(seconds=61 * step))
        chainkit.faults(advance_blocks=PAST_THE_WINDOW)
    payout.refresh_from_db()
    assert payout.state == Payout.State.REVIEW
    assert payout.attempts.filter(dead=True).count() == resolving.ATTEMPTS_MOST
    assert Message.objects.filter(event="payouts_need_attention", to=admin.email).count() == 1
    assert owned(provider, Kind.PROVIDER_PAYABLE) == 0


@pytest.mark.case("money-F36")
def test_a_frozen_wallet_fails_by_name_and_the_money_is_earnings_again(
    provider: Organisation, admin: User, at: datetime
) -> None:
    payout = off_cycle(provider, admin, at)
    chainkit.give(payout.destination, 1)
    faucet_key = load_key(django_settings.FAUCET_KEY_FILE)
    faucet.set_frozen(treasury.rpc(), faucet_key, treasury.mint(), payout.destination, frozen=True)
    run_until_done(payout, at=at)
    assert (payout.state, payout.state_reason) == (Payout.State.FAILED, Payout.Reason.FROZEN)
    assert owned(provider, Kind.PROVIDER_PAYABLE) == 30 * USDC
    assert Notice.objects.filter(organisation=provider, event="payout_failed").count() == 1
    assert verify_books().problems == []


@pytest.mark.case("money-F36", "money-F40")
def test_a_wallet_frozen_after_signing_is_not_called_paid(provider: Organisation, admin: User, at: datetime) -> None:
    payout = off_cycle(provider, admin, at)
    chainkit.give(payout.destination, 1)
    chainkit.faults(hold=1)
    usdc.advance(at=at)
    faucet_key = load_key(django_settings.FAUCET_KEY_FILE)
    faucet.set_frozen(treasury.rpc(), faucet_key, treasury.mint(), payout.destination, frozen=True)
    chainkit.faults(release=True)
    run_until_done(payout, at=at + timedelta(seconds=3))
    assert (payout.state, payout.state_reason) == (Payout.State.FAILED, Payout.Reason.FROZEN)
    assert payout.attempts.get().dead
    assert owned(provider, Kind.PROVIDER_PAYABLE) == 30 * USDC


@pytest.mark.case("money-F37")
def test_a_wallet_that_never_held_usdc_is_paid_and_its_account_opened(
    provider: Organisation, admin: User, at: datetime
) -> None:
    payout = off_cycle(provider, admin, at)
    assert chainkit.held(payout.destination) == 0
    run_until_done(payout, at=at)
    assert chainkit.held(payout.destination) == 30 * USDC


def test_a_treasury_that_holds_too_little_pauses_the_run_and_pays_once_it_is_filled(
    provider: Organisation, admin: User, at: datetime
) -> None:
    payout = off_cycle(provider, admin, at)
    # More than the treasury has is promised elsewhere, and on its way.
    other = Payout.objects.create(
        run=payout.run,
        organisation=admin_organisation(at),
        amount_micro=chainkit.held(treasury.address()),
        rail="usdc",
        destination=payout.destination,
        state=Payout.State.SIGNED,
        reserved_at=at,
    )
    signed = Attempt.objects.create(
        payout=other, number=1, raw=b"", signature="1" * 88, blockhash="", last_valid_block_height=2**60, signed_at=at
    )
    assert usdc.advance(at=at) == 0
    payout.refresh_from_db()
    assert payout.state == Payout.State.APPROVED
    usdc.advance(at=at + timedelta(minutes=11))
    assert Message.objects.filter(event="payouts_need_attention").exists()
    signed.delete()
    other.delete()
    assert run_until_done(payout, at=at + timedelta(minutes=12)).state == Payout.State.PAID


def admin_organisation(at: datetime) -> Organisation:
    from tests.billing.conftest import organisation

    return organisation("other")


def test_the_kill_switch_signs_nothing_and_still_finds_what_landed(
    provider: Organisation, admin: User, at: datetime
) -> None:
    first, second = off_cycle(provider, admin, at, USDC), None
    usdc.advance(at=at)
    Policy.load()
    Policy.objects.update(payouts_paused=True)
    second = off_cycle(provider, admin, at, USDC)
    for step in range(1, 4):
        usdc.advance(at=at + timedelta(seconds=5 * step))
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.state, second.state) == (Payout.State.PAID, Payout.State.APPROVED)
    Policy.objects.update(payouts_paused=False)
    assert run_until_done(second, at=at + timedelta(minutes=1)).state == Payout.State.PAID


def test_silent_nodes_change_nothing(provider: Organisation, admin: User, at: datetime) -> None:
    payout = off_cycle(provider, admin, at)
    chainkit.faults(rpc_down=True)
    assert usdc.advance(at=at) == 0
    payout.refresh_from_db()
    assert payout.state == Payout.State.APPROVED
    chainkit.faults(reset=True)
    usdc.advance(at=at)
    chainkit.faults(rpc_down=True, only_path="/b")
    usdc.advance(at=at + timedelta(seconds=5))
    payout.refresh_from_db()
    assert payout.state == Payout.State.SIGNED
    chainkit.faults(reset=True)
    assert run_until_done(payout, at=at + timedelta(seconds=10)).state == Payout.State.PAID


@pytest.mark.case("money-F42")
def test_a_run_asks_for_few_blockhashes(admin: User, at: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    payouts = [off_cycle(provider_with(USDC, at=at), admin, at) for _ in range(5)]
    asked = []
    real = treasury.rpc().get_latest_blockhash
    monkeypatch.setattr(treasury.rpc(), "get_latest_blockhash", lambda: asked.append(1) or real())
    usdc.advance(at=at)
    usdc.advance(at=at + timedelta(seconds=5))
    assert len(asked) == 1
    assert {Payout.objects.get(pk=payout.pk).state for payout in payouts} == {Payout.State.PAID}


@pytest.mark.django_db(transaction=True)
@pytest.mark.case("money-F10", "money-F33")
def test_many_workers_at_once_pay_once(at: datetime, admin: User) -> None:
    provider = provider_with(5 * USDC, at=at)
    payout = off_cycle(provider, admin, at)
    for step in range(4):
        results = together(4, lambda _n, step=step: usdc.advance(at=at + timedelta(seconds=5 * step)))
        assert not [result for result in results if isinstance(result, Exception)]
    payout.refresh_from_db()
    assert payout.state == Payout.State.PAID
    assert payout.attempts.count() == 1
    assert chainkit.held(payout.destination) == 5 * USDC
    assert Transfer.objects.filter(reference=str(payout.public_id), kind="payout_paid").count() == 1


def test_money_that_leaves_the_treasury_by_no_payout_is_found(provider: Organisation, at: datetime) -> None:
    assert verify_books().problems == []
    signature = faucet.send_usdc(treasury.rpc(), treasury.key(), treasury.mint(), chainkit.wallet(), 7)
    report = verify_books()
    assert any(signature in problem for problem in report.problems)
    assert report.drift_micro == 7


def test_the_date_of_execution_is_waited_for(provider: Organisation, admin: User, at: datetime) -> None:
    payout = off_cycle(provider, admin, at)
    payout.run.execute_on = (at + timedelta(days=2)).date()
    payout.run.save()
    assert usdc.advance(at=at) == 0
    assert run_until_done(payout, at=at + timedelta(days=2)).state == Payout.State.PAID


# --- what a node may say, and what it does not change ------------------------------------------------------------------


@pytest.mark.case("money-F5")
def test_two_nodes_that_both_answer_with_the_slot_expire_nothing(
    provider: Organisation, admin: User, at: datetime
) -> None:
    payout = off_cycle(provider, admin, at)
    chainkit.faults(hold=1, height_as_slot=True)
    for step in range(4):
        usdc.advance(at=at + timedelta(minutes=step))
    assert payout.attempts.filter(dead=False).count() == 1
    chainkit.faults(height_as_slot=False, release=True)
    assert run_until_done(payout, at=at + timedelta(minutes=5)).state == Payout.State.PAID
    assert (payout.attempts.count(), chainkit.held(payout.destination)) == (1, 30 * USDC)


@pytest.mark.case("money-F1", "money-F40")
@pytest.mark.parametrize("lie", ["landed", "failed", "empty"])
def test_a_node_that_lies_marks_nothing_paid_and_signs_nothing_anew(
    lie: str, provider: Organisation, admin: User, at: datetime
) -> None:
    payout = off_cycle(provider, admin, at)
    chainkit.faults(hold=99, lie=lie, only_path="/a")
    for step in range(3):
        usdc.advance(at=at + timedelta(seconds=5 * step))
    payout.refresh_from_db()
    assert payout.state == Payout.State.SIGNED
    chainkit.faults(hold=0, release=True)
    for step in range(3, 6):
        usdc.advance(at=at + timedelta(seconds=5 * step))
    payout.refresh_from_db()
    assert payout.attempts.get().dead is False
    if payout.state == Payout.State.REVIEW:  # the nodes do not agree on what it did
        chainkit.faults(reset=True)
        review.resume(payout=payout, by=admin, reason="both nodes tell the same now", at=at)
    chainkit.faults(reset=True)
    assert run_until_done(payout, at=at + timedelta(minutes=1)).state == Payout.State.PAID
    assert (payout.attempts.count(), chainkit.held(payout.destination)) == (1, 30 * USDC)
    assert verify_books().problems == []


@pytest.mark.case("money-F42")
def test_a_node_that_asks_for_patience_is_left_alone_and_nothing_changes(
    provider: Organisation, admin: User, at: datetime
) -> None:
    payout = off_cycle(provider, admin, at)
    chainkit.faults(rate_limit=2, retry_after_s=60)
    assert usdc.advance(at=at) == 0
    payout.refresh_from_db()
    assert (payout.state, payout.attempts.count()) == (Payout.State.APPROVED, 0)
    # Both asked for a minute: until then no call is made at all.
    chainkit.faults(rate_limit=0)
    assert usdc.advance(at=at + timedelta(seconds=2)) == 0
    assert payout.attempts.count() == 0
    treasury.rpc().wake()  # the minute is over
    assert run_until_done(payout, at=at + timedelta(minutes=1)).state == Payout.State.PAID


@pytest.mark.case("money-F42")
def test_a_node_that_refuses_in_the_middle_of_a_run_loses_nothing(admin: User, at: datetime) -> None:
    payouts = [off_cycle(provider_with(USDC, at=at), admin, at) for _ in range(4)]
    chainkit.faults(rate_limit=1, retry_after_s=0, rpc_down=True, only_path="/b")
    for step in range(3):
        chainkit.faults(rate_limit=3, retry_after_s=0, rpc_down=False, only_path="")
        usdc.advance(at=at + timedelta(seconds=3 * step))
    chainkit.faults(reset=True)
    for payout in payouts:
        assert run_until_done(payout, at=at + timedelta(minutes=1)).state == Payout.State.PAID
        assert chainkit.held(payout.destination) == USDC
    assert verify_books().problems == []


@pytest.mark.case("money-F13")
def test_what_answered_nothing_is_found_a_day_later_and_not_paid_again(
    provider: Organisation, admin: User, at: datetime
) -> None:
    payout = off_cycle(provider, admin, at)
    chainkit.faults(timeout_after_land=2)
    usdc.advance(at=at)
    chainkit.faults(reset=True)
    assert owned(provider, Kind.PROVIDER_PAYABLE) == 0
    assert run_until_done(payout, at=at + timedelta(hours=25)).state == Payout.State.PAID
    assert (payout.attempts.count(), chainkit.held(payout.destination)) == (1, 30 * USDC)


@pytest.mark.case("money-F26")
def test_a_send_that_works_and_fails_twenty_times_pays_once(
    provider: Organisation, admin: User, at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = treasury.rpc().send_raw

    def works_and_fails(raw: bytes, **options: bool) -> str:
        real(raw, **options)
        raise RuntimeError("the answer was lost in between")

    payout = off_cycle(provider, admin, at)
    chainkit.faults(hide_status_s=3600.0)
    monkeypatch.setattr(treasury.rpc(), "send_raw", works_and_fails)
    for step in range(20):
        usdc.advance(at=at + timedelta(seconds=5 * step))
    monkeypatch.undo()
    chainkit.faults(reset=True)
    assert run_until_done(payout, at=at + timedelta(minutes=5)).state == Payout.State.PAID
    assert (payout.attempts.count(), chainkit.held(payout.destination)) == (1, 30 * USDC)


@pytest.mark.case("money-F12")
def test_one_that_is_neither_found_nor_dead_is_told_to_the_admins(
    provider: Organisation, admin: User, at: datetime
) -> None:
    off_cycle(provider, admin, at)
    usdc.advance(at=at)
    chainkit.faults(hide_status_s=3600.0, only_path="/a")
    for minutes in (5, 31, 32, 40):
        usdc.advance(at=at + timedelta(minutes=minutes))
    assert Message.objects.filter(event="payouts_need_attention", to=admin.email).count() == 1
