"""Payouts as somebody would attack them: a node that lies, a stolen session, an administrator alone."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse
from solders.keypair import Keypair

from billing import deposits, treasury
from billing.ledger import Kind
from billing.models import Account, Deposit
from gpunex.accounts.models import Membership, Organisation, User
from gpunex.outbox.models import Message
from gpunex.policy.models import Policy
from payouts import approvals, methods, returns, runs, usdc, verify
from payouts.books import verify_books
from payouts.models import Payout, PayoutRun, Rail
from tests import chainkit
from tests.billing.test_views import BACKEND, client_of, text_of
from tests.payouts.bank.conftest import credit, quote, sepa_account
from tests.signin import confirm
from tests.wallets import connect_wallet

from .conftest import USDC, connect, earn, fill, organisation, owned, person, run_until_done


def off_cycle(org: Organisation, admin: User, at: datetime, micro: int | None = None) -> Payout:
    return runs.pay_off_cycle(organisation=org, by=admin, reason="asked for", at=at, amount_micro=micro)


def client_of_staff(user: User) -> Client:
    client = Client()
    client.force_login(user, backend=BACKEND)
    return client


# --- a node that lies ------------------------------------------------------------------------------------------------


@pytest.mark.case("money-F1", "money-F4")
def test_a_node_that_names_too_early_an_end_and_keeps_the_bytes_does_not_have_it_paid_twice(
    provider: Organisation, admin: User, at: datetime
) -> None:
    earn(provider, 30 * USDC, at=at)  # the treasury could pay twice
    payout = off_cycle(provider, admin, at, 30 * USDC)
    chainkit.faults(hold=1, short_life=190, only_path="/a")
    usdc.advance(at=at)
    chainkit.faults(advance_blocks=60)  # the blockhash lives on; by the lie it is long over
    for minute in (2, 4, 6):
        usdc.advance(at=at + timedelta(minutes=minute))
    chainkit.faults(release=True)
    assert run_until_done(payout, at=at + timedelta(minutes=8)).state == Payout.State.PAID
    assert (payout.attempts.count(), chainkit.held(payout.destination)) == (1, 30 * USDC)
    assert owned(provider, Kind.PROVIDER_PAYABLE) == 30 * USDC


# --- a stolen session ------------------------------------------------------------------------------------------------


@pytest.mark.spec("G3", "H2")
def test_a_wallet_connected_beside_a_bank_account_gets_no_balance_before_its_cool_down(at: datetime) -> None:
    """A second way to be paid is a change of where money goes, though nothing stood on that way before."""
    org = organisation("renter")
    fill(org, 50 * USDC, at=at)
    sepa_account(org, at=at - timedelta(days=90))
    wallet = connect_wallet(org, at=at)
    with pytest.raises(returns.WalletTooNew):
        returns.ask_back(organisation=org, amount_micro=None, by=org.created_by, at=at + timedelta(hours=47), key="a")
    assert owned(org) == 50 * USDC
    client = client_of(org)
    page = confirm(client, org.created_by).get(reverse("payouts:return_balance"))
    assert "connected beside the bank account" in text_of(page.content)
    payout = returns.ask_back(
        organisation=org, amount_micro=None, by=org.created_by, at=at + timedelta(hours=48), key="a"
    )
    assert payout.destination == wallet.address


@pytest.mark.spec("G3")
def test_a_first_wallet_and_its_successor_get_balance_as_soon_as_they_are_in_force(at: datetime) -> None:
    org = organisation("renter")
    first = connect_wallet(org, at=at)
    assert returns.destination(org, at) == first
    second = connect_wallet(org, at=at)
    assert returns.destination(org, at + timedelta(hours=47)) == first
    assert returns.destination(org, at + timedelta(hours=48)) == second


# --- an administrator alone ------------------------------------------------------------------------------------------


@pytest.mark.spec("H2", "G3")
def test_whoever_was_made_a_member_today_names_no_destination_that_counts_today(at: datetime) -> None:
    """Our own people make members: one of them alone must not get at a balance that has no wallet yet."""
    victim, thief = organisation("victim"), person("thief")
    fill(victim, 50 * USDC, at=at)
    Membership.objects.create(user=thief, organisation=victim, role=Membership.Role.OWNER, created_at=at)
    wallet = connect_wallet(victim, at=at, by=thief)
    assert wallet.active_from == at + timedelta(hours=48)
    with pytest.raises(returns.NoWalletToReturnTo):
        returns.ask_back(organisation=victim, amount_micro=None, by=thief, at=at, key="a")
    mail = Message.objects.get(event="balance_wallet_waits", to=victim.created_by.email)
    assert "new member" in mail.subject
    methods.cancel_change(organisation=victim, rail=Rail.USDC, by=victim.created_by, at=at)
    own = connect_wallet(victim, at=at)
    assert methods.active_method(victim, at) == own
    assert methods.active_method(victim, at + timedelta(days=9)) == own


@pytest.mark.spec("H2")
def test_a_member_of_old_names_a_first_destination_that_counts_at_once(at: datetime) -> None:
    org, colleague = organisation("provider"), person("colleague")
    joined = at - timedelta(hours=48)
    Membership.objects.create(user=colleague, organisation=org, role=Membership.Role.BILLING, created_at=joined)
    assert connect_wallet(org, at=at, by=colleague).active_from == at


def test_a_yes_to_a_run_does_not_hold_for_what_came_into_it_later(
    at: datetime, admin: User, second_admin: User
) -> None:
    Policy.load()
    Policy.objects.update(run_cap_micro=40 * USDC)
    monday = at.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=at.weekday())
    providers = [organisation("provider") for _ in range(3)]
    for org in providers:
        earn(org, 30 * USDC, at=monday - timedelta(days=1))
    for org in providers[:2]:
        connect(org, at=monday - timedelta(days=1))
    broken = Account.objects.filter(kind=Kind.PROVIDER_PAYABLE, organisation=providers[1])
    broken.update(balance_micro=31 * USDC)  # its turn fails: the statement does not come to the balance
    runs.make_due(at=at)
    run = PayoutRun.objects.get()
    assert (run.made_at, approvals.total_micro(run)) == (None, 30 * USDC)
    PayoutRun.objects.update(cleared_at=None)
    approvals.approve_run(run=run, by=admin, at=at)
    broken.update(balance_micro=30 * USDC)
    runs.make_due(at=at)
    assert approvals.total_micro(run) == 60 * USDC
    run = approvals.approve_run(run=run, by=second_admin, at=at)
    assert run.cleared_at is None, "the first saw half of it"
    assert approvals.approve_run(run=run, by=admin, at=at).cleared_at == at


@pytest.mark.case("money-F7")
def test_an_off_cycle_form_that_is_sent_twice_pays_once(provider: Organisation, admin: User) -> None:
    client = client_of_staff(admin)
    url = reverse("admin:payouts_payout_off_cycle", args=[provider.public_id])
    key = client.get(url).context["decisions"][0]["form"].initial["key"]
    for _press in range(2):
        assert client.post(url, {"reason": "asked for", "amount": "10", "key": key}).status_code == 302
    assert owned(provider, Kind.PROVIDER_PAYABLE) == 20 * USDC
    other = client.get(url).context["decisions"][0]["form"].initial["key"]
    assert client.post(url, {"reason": "asked for", "amount": "10", "key": other}).status_code == 302
    assert Payout.objects.count() == 2


@pytest.mark.spec("F2")
def test_nobody_gives_an_unmatched_deposit_to_an_organisation_of_his_own(at: datetime, admin: User) -> None:
    chainkit.give(treasury.address(), 5 * USDC)
    deposits.find_deposits(at=at)
    mine = organisation("mine")
    Membership.objects.create(user=admin, organisation=mine, role=Membership.Role.VIEWER)
    deposit = Deposit.objects.get()
    with pytest.raises(deposits.NotToYourself):
        deposits.give_unmatched(deposit=deposit, organisation=mine, by=admin, reason="it is mine", at=at)
    deposit.refresh_from_db()
    assert deposit.state == Deposit.State.UNMATCHED


# --- somebody who writes into the database ---------------------------------------------------------------------------


def untriggered(sql: str, values: Sequence[int | str], *, table: str) -> None:
    """As somebody with the owner's password would: the trigger is off for a moment."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        cursor.execute(sql, values)
        cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


def off(name: str, *, with_chain: bool = False) -> dict[str, int]:
    [check] = [check for check in verify_books(with_chain=with_chain).checks if check.name == name]
    return check.off


def two_deposits(at: datetime) -> list[Deposit]:
    found = []
    for micro in (7 * USDC, 5 * USDC):
        org = organisation("renter")
        signature = chainkit.give(deposits.address_for(org, at=at).owner, micro)
        deposits.find_deposits(at=at)
        found.append(Deposit.objects.get(signature=signature))
    return found


@pytest.mark.spec("F2")
def test_money_shifted_from_one_renters_deposit_to_anothers_is_found(at: datetime) -> None:
    """Balances, transfers and sums are changed alike, so they all agree; only the deposit says what came."""
    rich, poor = two_deposits(at)
    assert verify_books().problems == []
    for deposit, change in ((rich, -USDC), (poor, USDC)):
        untriggered(
            "UPDATE billing_transfer SET amount_micro = amount_micro + %s WHERE id = %s",
            [change, deposit.transfer_id],
            table="billing_transfer",
        )
        balance = Account.objects.get(kind=Kind.RENTER_BALANCE, organisation=deposit.organisation)
        balance.balance_micro += change
        balance.save()
    assert set(off("each deposit is on its owner's balance")) == {
        f"deposit {rich.public_id}",
        f"deposit {poor.public_id}",
    }


@pytest.mark.spec("F2")
def test_a_deposit_given_to_somebody_else_is_found(at: datetime) -> None:
    one, other = two_deposits(at)
    Deposit.objects.filter(pk=one.pk).update(organisation=other.organisation)
    assert set(off("each deposit is on its owner's balance")) == {f"deposit {one.public_id}"}


@pytest.mark.spec("F2")
def test_a_matched_deposit_is_no_fault(at: datetime, admin: User) -> None:
    chainkit.give(treasury.address(), 5 * USDC)
    deposits.find_deposits(at=at)
    name = "each deposit is on its owner's balance"
    assert off(name) == {}
    org = organisation("owner")
    deposit = Deposit.objects.get()
    deposits.give_unmatched(deposit=deposit, organisation=org, by=admin, reason="he showed the key", at=at)
    assert off(name) == {}
    Deposit.objects.filter(pk=deposit.pk).update(state=Deposit.State.UNMATCHED)
    assert set(off(name)) == {f"deposit {deposit.public_id}"}


def test_a_statement_that_was_made_away_with_leaves_a_gap_that_is_found(
    provider: Organisation, admin: User, at: datetime
) -> None:
    first, _second = (off_cycle(provider, admin, at, USDC) for _ in range(2))
    assert off("statements are numbered without a gap") == {}
    untriggered("DELETE FROM billing_statement WHERE reference = %s", [str(first.public_id)], table="billing_statement")
    assert off("statements are numbered without a gap") == {"series P": 1}


def test_a_bank_payout_called_paid_by_hand_is_found(at: datetime, admin: User) -> None:
    quote("EUR", 1_085_000, by=admin, at=at)
    org = organisation("provider")
    credit(org, 30 * USDC, at=at)
    sepa_account(org, at=at)
    payout = off_cycle(org, admin, at)
    name = "each bank payout stands where its transfer says"
    assert off(name) == {}
    Payout.objects.filter(pk=payout.pk).update(state=Payout.State.PAID)
    assert off(name) == {f"payout {payout.public_id}": payout.amount_micro}


@pytest.mark.spec("H2")
def test_a_payout_turned_to_another_wallet_is_found(provider: Organisation, admin: User, at: datetime) -> None:
    payout = off_cycle(provider, admin, at)
    Payout.objects.filter(pk=payout.pk).update(destination=str(Keypair().pubkey()))
    payout = run_until_done(payout, at=at)
    assert off("each payout goes where its owner said") == {f"payout {payout.public_id}": payout.amount_micro}
    assert any("its owner said" in problem for problem in verify.verify(payout).problems)
