"""Where money goes: the first destination at once, a change after the cool-down, another rail no way around it."""

from datetime import datetime, timedelta

import pytest
from solders.keypair import Keypair

from gpunex.accounts.models import Membership, Notice, Organisation, User
from gpunex.kit import secrets
from gpunex.outbox.models import Message
from gpunex.policy.models import Policy
from payouts import methods
from payouts.models import Cadence, PayoutMethod, PayoutPreference, Rail
from tests.billing.test_ledger import together
from tests.wallets import connect_wallet

from .conftest import organisation, person

IBAN = {"name": "Layla Mansour", "iban": "DE89370400440532013000", "bic": ""}
OTHER_IBAN = {"name": "Layla Mansour", "iban": "FR1420041010050500013M02606", "bic": ""}


@pytest.fixture
def org(at: datetime) -> Organisation:
    return organisation("layla")


def enter_bank(org: Organisation, details: dict[str, str], *, at: datetime) -> PayoutMethod:
    return methods.keep_method(
        organisation=org,
        rail=Rail.SEPA,
        details=details,
        masked=f"…{details['iban'][-4:]}",
        country=details["iban"][:2],
        by=org.created_by,
        at=at,
    )


def role_of(org: Organisation, role: str) -> User:
    user = person(role)
    Membership.objects.create(user=user, organisation=org, role=role)
    return user


@pytest.mark.spec("H2")
def test_the_first_wallet_counts_at_once_and_is_kept_with_its_proof(org: Organisation, at: datetime) -> None:
    method = connect_wallet(org, at=at)
    assert methods.active_method(org, at) == method
    assert method.verified_at == at
    assert method.address in method.proof["message"]
    assert Message.objects.get().to == org.created_by.email


@pytest.mark.spec("H2")
def test_a_change_waits_for_the_hours_of_the_policy_while_the_old_wallet_stands(
    org: Organisation, at: datetime
) -> None:
    Policy.load()
    Policy.objects.update(wallet_cool_down_hours=72)
    first = connect_wallet(org, at=at)
    second = connect_wallet(org, at=at)
    assert methods.active_method(org, at + timedelta(hours=72) - timedelta(microseconds=1)) == first
    assert methods.active_method(org, at + timedelta(hours=72)) == second
    mail = Message.objects.order_by("pk").last()
    assert "about to change" in mail.subject


def test_a_second_change_takes_the_place_of_the_one_that_waits(org: Organisation, at: datetime) -> None:
    first, second, third = (connect_wallet(org, at=at) for _ in range(3))
    assert methods.waiting_method(org, at) == third
    assert methods.active_method(org, at + timedelta(days=9)) == third
    second.refresh_from_db()
    assert second.removed_at == at
    assert methods.active_method(org, at) == first


def test_the_wallet_that_stands_cannot_be_connected_once_more(org: Organisation, at: datetime) -> None:
    key = Keypair()
    connect_wallet(org, at=at, key=key)
    with pytest.raises(methods.ConnectedAlready):
        connect_wallet(org, at=at, key=key)
    assert PayoutMethod.objects.count() == 1


def test_a_wallet_of_before_proofs_is_proven_where_it_stands(org: Organisation, at: datetime) -> None:
    key = Keypair()
    old = connect_wallet(org, at=at, key=key)
    PayoutMethod.objects.filter(pk=old.pk).update(proof={}, verified_at=None)
    later = at + timedelta(days=3)
    again = connect_wallet(org, at=later, key=key)
    assert (again.pk, again.verified_at, again.active_from) == (old.pk, later, at)
    assert methods.active_method(org, later) == old


def test_a_change_is_cancelled_by_mail_to_the_owners_and_only_once(org: Organisation, at: datetime) -> None:
    first = connect_wallet(org, at=at)
    connect_wallet(org, at=at)
    methods.cancel_change(organisation=org, rail=Rail.USDC, by=org.created_by, at=at)
    assert methods.active_method(org, at + timedelta(days=9)) == first
    assert "cancelled" in Message.objects.order_by("pk").last().subject
    with pytest.raises(methods.NothingToCancel):
        methods.cancel_change(organisation=org, rail=Rail.USDC, by=org.created_by, at=at)


def test_a_change_in_force_is_cancelled_no_more(org: Organisation, at: datetime) -> None:
    connect_wallet(org, at=at)
    connect_wallet(org, at=at)
    with pytest.raises(methods.NothingToCancel):
        methods.cancel_change(organisation=org, rail=Rail.USDC, by=org.created_by, at=at + timedelta(hours=48))


@pytest.mark.parametrize("role", ["member", "viewer"])
def test_members_and_viewers_change_nothing(org: Organisation, at: datetime, role: str) -> None:
    user = role_of(org, role)
    with pytest.raises(methods.NotForThisRole):
        connect_wallet(org, at=at, by=user)
    with pytest.raises(methods.NotForThisRole):
        methods.cancel_change(organisation=org, rail=Rail.USDC, by=user, at=at)
    with pytest.raises(methods.NotForThisRole):
        methods.choose_rail(organisation=org, rail=Rail.SEPA, by=user, at=at)
    with pytest.raises(methods.NotForThisRole):
        methods.choose_cadence(organisation=org, cadence=Cadence.MONTHLY, by=user, at=at)
    assert not PayoutMethod.objects.exists() and not PayoutPreference.objects.exists()
    assert user not in methods.who_may_change(org)


def test_somebody_with_the_billing_role_may(org: Organisation, at: datetime) -> None:
    user = role_of(org, "billing")
    assert connect_wallet(org, at=at, by=user).created_by == user
    assert set(methods.who_may_change(org)) == {org.created_by, user}


def test_a_stranger_changes_nothing(org: Organisation, at: datetime) -> None:
    with pytest.raises(methods.NotForThisRole):
        connect_wallet(org, at=at, by=organisation("stranger").created_by)


@pytest.mark.django_db(transaction=True)
def test_two_changes_at_once_leave_one_waiting(org: Organisation, at: datetime) -> None:
    first = connect_wallet(org, at=at)
    together(4, lambda _number: connect_wallet(org, at=at))
    standing = PayoutMethod.objects.standing(at).filter(organisation=org)
    assert standing.count() == 2
    assert methods.active_method(org, at) == first


@pytest.mark.django_db(transaction=True)
def test_two_first_wallets_at_once_leave_one_in_force_and_one_waiting(org: Organisation, at: datetime) -> None:
    together(2, lambda _number: connect_wallet(org, at=at))
    in_force = PayoutMethod.objects.in_force(at).filter(organisation=org)
    assert in_force.count() == 1
    assert methods.waiting_method(org, at) is not None


@pytest.mark.spec("H2")
def test_a_bank_account_is_stored_encrypted_and_shown_masked(org: Organisation, at: datetime) -> None:
    method = enter_bank(org, IBAN, at=at)
    assert IBAN["iban"].encode() not in bytes(PayoutMethod.objects.get().details)
    assert methods.details_of(PayoutMethod.objects.get()) == IBAN
    assert method.shown == "…3000"
    told = Message.objects.get()
    assert IBAN["iban"] not in str(secrets.decrypt(told.body)) + str(Notice.objects.get().data)
    with pytest.raises(methods.ConnectedAlready):
        enter_bank(org, IBAN, at=at)


def test_the_first_destination_of_all_makes_its_rail_the_one_to_be_paid_by(org: Organisation, at: datetime) -> None:
    method = enter_bank(org, IBAN, at=at)
    assert methods.rail_of(org) == Rail.SEPA
    assert methods.active_method(org, at) == method
    assert methods.active_method(org, at, Rail.USDC) is None


def test_each_rail_has_a_destination_and_a_waiting_change_of_its_own(org: Organisation, at: datetime) -> None:
    wallet = connect_wallet(org, at=at)
    bank = enter_bank(org, IBAN, at=at)
    other_bank, other_wallet = enter_bank(org, OTHER_IBAN, at=at), connect_wallet(org, at=at)
    assert methods.active_method(org, at) == wallet
    assert methods.active_method(org, at, Rail.SEPA) == bank
    assert methods.waiting_method(org, at, Rail.SEPA) == other_bank
    methods.cancel_change(organisation=org, rail=Rail.SEPA, by=org.created_by, at=at)
    assert methods.waiting_method(org, at, Rail.SEPA) is None
    assert methods.waiting_method(org, at, Rail.USDC) == other_wallet


@pytest.mark.spec("H1")
def test_another_rail_counts_from_the_next_period(org: Organisation, at: datetime) -> None:
    connect_wallet(org, at=at)
    enter_bank(org, IBAN, at=at)
    methods.choose_rail(organisation=org, rail=Rail.SEPA, by=org.created_by, at=at)
    assert methods.rail_of(org) == Rail.USDC
    methods.take_up_choices(organisation=org, cut_off=at + timedelta(days=7), at=at + timedelta(days=7))
    assert methods.rail_of(org) == Rail.SEPA
    assert methods.cadence_of(org).next_rail == ""


@pytest.mark.spec("H2")
def test_another_rail_is_no_way_around_the_cool_down(org: Organisation, at: datetime) -> None:
    """A bank account entered an hour before the cut-off is not paid to at this cut-off, nor skipped: the wallet stands."""
    connect_wallet(org, at=at - timedelta(days=30))
    enter_bank(org, IBAN, at=at)
    methods.choose_rail(organisation=org, rail=Rail.SEPA, by=org.created_by, at=at)
    methods.take_up_choices(organisation=org, cut_off=at + timedelta(hours=1), at=at + timedelta(hours=1))
    assert methods.rail_of(org) == Rail.USDC
    methods.take_up_choices(organisation=org, cut_off=at + timedelta(days=7), at=at + timedelta(days=7))
    assert methods.rail_of(org) == Rail.SEPA


def test_a_rail_that_leads_nowhere_is_not_chosen(org: Organisation, at: datetime) -> None:
    connect_wallet(org, at=at)
    with pytest.raises(methods.NoDestinationThere):
        methods.choose_rail(organisation=org, rail=Rail.ACH, by=org.created_by, at=at)


def test_going_back_to_the_rail_in_force_takes_the_choice_back(org: Organisation, at: datetime) -> None:
    connect_wallet(org, at=at)
    enter_bank(org, IBAN, at=at)
    methods.choose_rail(organisation=org, rail=Rail.SEPA, by=org.created_by, at=at)
    assert methods.choose_rail(organisation=org, rail=Rail.USDC, by=org.created_by, at=at).next_rail == ""


def test_cadence_and_rail_are_taken_up_together_and_for_who_chose_nothing_nothing_happens(
    org: Organisation, at: datetime
) -> None:
    methods.take_up_choices(organisation=organisation("silent"), cut_off=at, at=at)
    assert not PayoutPreference.objects.exists()
    methods.choose_cadence(organisation=org, cadence=Cadence.MONTHLY, by=org.created_by, at=at)
    methods.take_up_choices(organisation=org, cut_off=at, at=at + timedelta(hours=1))
    assert methods.cadence_of(org).cadence == Cadence.WEEKLY, "picked at the cut-off is not before it"
    methods.take_up_choices(organisation=org, cut_off=at + timedelta(days=7), at=at + timedelta(days=7))
    assert methods.cadence_of(org).cadence == Cadence.MONTHLY


def test_a_wallet_without_proof_and_a_bank_account_without_details_are_never_kept(
    org: Organisation, at: datetime
) -> None:
    for rail, address in ((Rail.USDC, str(Keypair().pubkey())), (Rail.SEPA, "")):
        with pytest.raises(ValueError):
            methods.keep_method(organisation=org, rail=rail, address=address, by=org.created_by, at=at)
    assert not PayoutMethod.objects.exists()
