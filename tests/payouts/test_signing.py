"""Before and around signing: whole runs, what the treasury can pay, what an account costs, and how people are told."""

import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from django.utils import translation
from django.utils.translation import gettext_lazy
from pytest_django import Settings
from solders.keypair import Keypair
from solders.transaction import VersionedTransaction

from billing import treasury
from billing.ledger import Kind
from gpunex.accounts.models import Notice, Organisation, User
from gpunex.accounts.notices import in_words
from gpunex.chain import faucet
from gpunex.chain.transfers import CU_LIMIT, load_key
from gpunex.kit.secrets import decrypt
from gpunex.outbox.models import Message
from gpunex.policy.models import Policy
from payouts import review, runs, signing, usdc
from payouts.books import verify_books
from payouts.models import Payout
from payouts.notices import alert
from tests import chainkit
from tests.conftest import Devchain
from tests.server import ROOT, database_url

from .conftest import USDC, owned, provider_with, run_until_done


def off_cycle(org: Organisation, admin: User, at: datetime, micro: int | None = None) -> Payout:
    return runs.pay_off_cycle(organisation=org, by=admin, reason="asked for", at=at, amount_micro=micro)


# --- runs, purse and fees ----------------------------------------------------------------------------------------------


def test_a_run_that_the_treasury_cannot_pay_holds_up_no_later_one(admin: User, at: datetime) -> None:
    large, small = provider_with(50 * USDC, at=at), provider_with(USDC, at=at)
    stuck, later = off_cycle(large, admin, at), off_cycle(small, admin, at)
    # More was promised than the treasury holds.
    elsewhere = faucet.send_usdc(treasury.rpc(), treasury.key(), treasury.mint(), chainkit.wallet(), 40 * USDC)
    assert run_until_done(later, at=at).state == Payout.State.PAID
    stuck.refresh_from_db()
    assert (stuck.state, stuck.attempts.count()) == (Payout.State.APPROVED, 0)
    assert elsewhere in str(verify_books().problems)
    chainkit.give(treasury.address(), 40 * USDC)
    assert run_until_done(stuck, at=at + timedelta(minutes=1)).state == Payout.State.PAID


def test_frozen_ones_in_front_hold_up_nobody_behind(admin: User, at: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing, "SIGNED_A_PASS", 1)
    payouts = [off_cycle(provider_with(USDC, at=at), admin, at) for _ in range(3)]
    for payout in payouts[:2]:
        chainkit.give(payout.destination, 1)
        faucet.set_frozen(
            treasury.rpc(), load_key(django_settings.FAUCET_KEY_FILE), treasury.mint(), payout.destination, frozen=True
        )
    assert usdc.advance(at=at) == 3
    assert [Payout.objects.get(pk=payout.pk).state for payout in payouts] == [
        Payout.State.FAILED,
        Payout.State.FAILED,
        Payout.State.SIGNED,
    ]


@pytest.mark.case("money-F45")
def test_the_price_of_an_account_is_asked_for_and_not_known_by_heart(
    provider: Organisation, admin: User, at: datetime, tmp_path: Path, settings: Settings
) -> None:
    """A treasury that could open an account at one price and not at another one is stopped by the other one alone."""
    rpc, size = treasury.rpc(), 165
    dear = rpc.rent_exempt_minimum(size)
    settings.TREASURY_KEY_FILE = chainkit.open_treasury(tmp_path, lamports=dear - 1_000)
    chainkit.give(treasury.address(), 30 * USDC)
    payout = off_cycle(provider, admin, at)
    assert usdc.advance(at=at) == 0
    try:
        for per_byte in (2_575, 696):
            chainkit.faults(rent_lamports_per_byte=per_byte)
            assert rpc.rent_exempt_minimum(size) == (128 + size) * per_byte
        assert run_until_done(payout, at=at + timedelta(seconds=1)).state == Payout.State.PAID
    finally:
        chainkit.faults(rent_lamports_per_byte=dear // (128 + size))


def test_an_account_that_we_opened_and_its_owner_closed_is_not_paid_for_again_without_a_look(
    admin: User, at: datetime
) -> None:
    key = Keypair()
    org = provider_with(2 * USDC, at=at, key=key)
    first = run_until_done(off_cycle(org, admin, at, USDC), at=at)
    assert first.attempts.get().evidence == {"opens_account": True}
    faucet.give_sol(treasury.rpc(), str(key.pubkey()), 100_000_000)
    faucet.close_account_of(treasury.rpc(), key, treasury.mint(), chainkit.wallet())
    second = off_cycle(org, admin, at, USDC)
    usdc.advance(at=at)
    second.refresh_from_db()
    assert (second.state, second.state_reason) == (Payout.State.REVIEW, Payout.Reason.ACCOUNT_CLOSED)
    assert Message.objects.filter(event="payouts_need_attention", to=admin.email).count() == 1
    assert owned(org, Kind.PROVIDER_PAYABLE) == 0
    review.resume(payout=second, by=admin, reason="the wallet was moved to another app", at=at)
    assert run_until_done(second, at=at + timedelta(minutes=1)).state == Payout.State.PAID
    assert chainkit.held(second.destination) == USDC


def test_a_transfer_asks_for_the_units_that_it_needs_and_shows_nobody_its_signature_before(
    provider: Organisation, admin: User, at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[bytes] = []
    real = treasury.rpc().simulate_units
    monkeypatch.setattr(treasury.rpc(), "simulate_units", lambda raw: tried.append(raw) or real(raw))
    payout = off_cycle(provider, admin, at)
    usdc.advance(at=at)
    attempt = payout.attempts.get()
    signed = VersionedTransaction.from_bytes(bytes(attempt.raw))
    limit = int.from_bytes(bytes(signed.message.instructions[0].data)[1:5], "little")
    used = run_until_done(payout, at=at + timedelta(seconds=5)).attempts.get()
    landed = treasury.rpc().get_transaction(used.signature)
    assert landed["meta"]["computeUnitsConsumed"] <= limit < CU_LIMIT
    assert [set(map(str, VersionedTransaction.from_bytes(raw).signatures)) for raw in tried] == [{"1" * 64}]


def test_the_kill_switch_sends_nothing_that_was_signed_before(
    provider: Organisation, admin: User, at: datetime
) -> None:
    payout = off_cycle(provider, admin, at)
    chainkit.faults(drop=1)
    usdc.advance(at=at)
    Policy.load()
    Policy.objects.update(payouts_paused=True)
    for step in range(1, 4):
        usdc.advance(at=at + timedelta(seconds=5 * step))
    assert payout.attempts.get().sends == 1
    Policy.objects.update(payouts_paused=False)
    assert run_until_done(payout, at=at + timedelta(seconds=30)).state == Payout.State.PAID


# --- people ------------------------------------------------------------------------------------------------------------


def test_why_a_payout_failed_is_told_in_the_readers_language(provider: Organisation, admin: User, at: datetime) -> None:
    User.objects.filter(pk=admin.pk).update(language="ar")
    payout = off_cycle(provider, admin, at)
    chainkit.give(payout.destination, 1)
    faucet.set_frozen(
        treasury.rpc(), load_key(django_settings.FAUCET_KEY_FILE), treasury.mint(), payout.destination, frozen=True
    )
    run_until_done(payout, at=at)
    notice = Notice.objects.get(event="payout_failed")
    assert notice.data["reason"] == "frozen"
    with translation.override("ar"):
        reason = str(dict(Payout.Reason.choices)["frozen"])
        assert reason in " ".join(in_words(notice)["paragraphs"])
        assert reason != "the wallet's USDC account is frozen by its issuer"
    alert(key="x", what="x", detail=gettext_lazy("%(reason)s"), data={"reason": Payout.Reason.FROZEN.label}, at=at)
    with translation.override("ar"):
        told = gettext_lazy("the wallet's USDC account is frozen by its issuer")
        assert str(told) in decrypt(Message.objects.get(event="payouts_need_attention").body)["text"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.case("money-F35")
def test_without_redis_the_sweep_by_hand_still_pays(at: datetime, admin: User, devchain: Devchain) -> None:
    provider = provider_with(USDC, at=at)
    payout = off_cycle(provider, admin, at)
    environment = {
        **os.environ,
        "DATABASE_URL": database_url(),
        "REDIS_URL": "redis://127.0.0.1:9/0",
        "TREASURY_KEY_FILE": str(django_settings.TREASURY_KEY_FILE),
    }
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "manage.py", "sweep", "payouts"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
    payout.refresh_from_db()
    assert payout.state == Payout.State.PAID
    assert chainkit.held(payout.destination) == USDC
