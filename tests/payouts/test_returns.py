"""Unused balance goes back: to a proven wallet, once per request, never what running rentals need."""

import uuid
from datetime import datetime, timedelta

import pytest
from django.conf import settings as django_settings
from django.test import Client
from django.urls import reverse
from solders.keypair import Keypair

from billing import ledger, metering, treasury
from billing.models import Meter, Statement
from gpunex.accounts.models import Membership, Notice, Organisation, User
from gpunex.chain import faucet
from gpunex.chain.transfers import load_key
from gpunex.policy.models import Policy
from payouts import approvals, methods, returns
from payouts.books import verify_books
from payouts.models import Payout, PayoutMethod, PayoutRun, Rail
from tests import chainkit
from tests.billing.conftest import fund, start_meter
from tests.billing.test_ledger import together
from tests.billing.test_views import BACKEND, client_of, text_of
from tests.signin import confirm
from tests.wallets import connect_wallet

from .conftest import USDC, fill, organisation, owned, person, run_until_done

pytestmark = pytest.mark.spec("G3")


@pytest.fixture
def renter(at: datetime) -> Organisation:
    org = organisation("renter")
    fill(org, 10 * USDC, at=at)
    connect_wallet(org, at=at)
    return org


def ask(org: Organisation, micro: int | None, *, at: datetime, key: str = "", by: User | None = None) -> Payout:
    return returns.ask_back(
        organisation=org, amount_micro=micro, by=by or org.created_by, at=at, key=key or str(uuid.uuid4())
    )


def test_unused_balance_reaches_the_wallet_with_a_statement_and_the_books_balance(
    renter: Organisation, at: datetime
) -> None:
    payout = run_until_done(ask(renter, 4 * USDC, at=at), at=at)
    assert (payout.state, payout.run.kind) == (Payout.State.PAID, PayoutRun.Kind.RETURN)
    assert chainkit.held(payout.destination) == 4 * USDC
    assert owned(renter) == 6 * USDC
    statement = Statement.objects.get(reference=str(payout.public_id))
    assert payout.memo.endswith(statement.sha256)
    assert (statement.body["account"], statement.body["amount_micro"]) == ("renter.balance", 4 * USDC)
    assert set(Notice.objects.filter(organisation=renter).values_list("event", flat=True)) >= {
        "return_asked",
        "return_paid",
    }
    assert verify_books().problems == []


def test_everything_goes_back_and_nothing_is_left(renter: Organisation, at: datetime) -> None:
    payout = ask(renter, None, at=at)
    assert (payout.amount_micro, owned(renter)) == (10 * USDC, 0)
    with pytest.raises(returns.NothingUnused):
        ask(renter, None, at=at)


def test_what_running_rentals_need_for_their_next_hour_stays(renter: Organisation, at: datetime) -> None:
    meter = start_meter(renter, organisation("provider"), at=at, rate=3 * USDC)
    later = at + timedelta(minutes=20)
    metering.prove(until={meter.pk: later})
    assert returns.unused(renter, at=later) == returns.Unused(available_micro=9 * USDC, needed_micro=3 * USDC)
    with pytest.raises(returns.MoreThanUnused):
        ask(renter, 6 * USDC + 1, at=later)
    payout = ask(renter, None, at=later)
    assert payout.amount_micro == 6 * USDC
    # The rental is funded for the hour that stayed, and no longer.
    assert Meter.objects.get().funded_until - later == timedelta(hours=1)
    with pytest.raises(returns.NothingUnused):
        ask(renter, USDC, at=later)
    assert ledger.verify_books().drift_micro == 0


@pytest.mark.parametrize("micro", [1, USDC - 1])
def test_less_than_the_least_is_refused_unless_it_is_everything(micro: int, renter: Organisation, at: datetime) -> None:
    with pytest.raises(returns.LessThanLeast):
        ask(renter, micro, at=at)
    assert ask(renter, USDC, at=at).amount_micro == USDC
    small = organisation("small")
    connect_wallet(small, at=at)
    fund(small, 300_000, at=at)
    with pytest.raises(returns.LessThanLeast):
        ask(small, 299_999, at=at)
    assert ask(small, None, at=at).amount_micro == 300_000


@pytest.mark.case("money-F7")
def test_the_same_request_twice_is_one_return_and_another_amount_under_it_is_refused(
    renter: Organisation, at: datetime
) -> None:
    first = ask(renter, 2 * USDC, at=at, key="pressed twice")
    assert ask(renter, 2 * USDC, at=at + timedelta(seconds=1), key="pressed twice") == first
    with pytest.raises(returns.AnotherRequest):
        ask(renter, 3 * USDC, at=at, key="pressed twice")
    assert owned(renter) == 8 * USDC
    assert ask(renter, 2 * USDC, at=at, key="another page") != first
    stranger = organisation("stranger")
    connect_wallet(stranger, at=at)
    fund(stranger, 2 * USDC, at=at)
    assert ask(stranger, 2 * USDC, at=at, key="pressed twice").organisation == stranger


@pytest.mark.case("money-F11")
def test_a_request_that_failed_pays_nothing_when_it_is_sent_again(renter: Organisation, at: datetime) -> None:
    payout = ask(renter, 2 * USDC, at=at, key="K")
    chainkit.give(payout.destination, 1)
    key = load_key(django_settings.FAUCET_KEY_FILE)
    faucet.set_frozen(treasury.rpc(), key, treasury.mint(), payout.destination, frozen=True)
    assert run_until_done(payout, at=at).state == Payout.State.FAILED
    assert owned(renter) == 10 * USDC
    faucet.set_frozen(treasury.rpc(), key, treasury.mint(), payout.destination, frozen=False)
    again = ask(renter, 2 * USDC, at=at, key="K")
    assert (again.pk, again.state, owned(renter)) == (payout.pk, Payout.State.FAILED, 10 * USDC)
    assert run_until_done(again, at=at).state == Payout.State.FAILED
    assert chainkit.held(payout.destination) == 1
    assert Notice.objects.filter(event="return_failed").count() == 1
    assert verify_books().problems == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.case("money-F22", "money-F27")
def test_two_tabs_at_once_return_no_more_than_there_is(at: datetime) -> None:
    org = organisation("renter")
    fund(org, 10 * USDC, at=at)
    connect_wallet(org, at=at)
    results = together(4, lambda n: ask(org, 6 * USDC, at=at, key=f"tab {n}"))
    assert sum(isinstance(result, Payout) for result in results) == 1
    same = together(4, lambda _n: ask(org, 4 * USDC, at=at, key="double click"))
    assert len({result.pk for result in same if isinstance(result, Payout)}) == 1
    assert owned(org) == 0
    assert ledger.verify_books().drift_micro == 0


def test_only_to_a_wallet_in_force_that_was_proven(at: datetime) -> None:
    org = organisation("renter")
    fund(org, 10 * USDC, at=at)
    with pytest.raises(returns.NoWalletToReturnTo):
        ask(org, USDC, at=at)
    key = Keypair()
    connect_wallet(org, at=at, key=key)
    PayoutMethod.objects.update(verified_at=None, proof={})
    with pytest.raises(returns.WalletNotProven):
        ask(org, USDC, at=at)
    connect_wallet(org, at=at, key=key)  # now it signs
    assert ask(org, USDC, at=at).destination == str(key.pubkey())
    waiting = connect_wallet(org, at=at)
    assert methods.waiting_method(org, at, Rail.USDC) == waiting
    assert ask(org, USDC, at=at).destination == str(key.pubkey())


def test_only_an_owner_or_the_billing_role_asks(renter: Organisation, at: datetime) -> None:
    for role, may in (("viewer", False), ("member", False), ("billing", True)):
        user = person(role)
        Membership.objects.create(user=user, organisation=renter, role=role)
        if may:
            assert ask(renter, USDC, at=at, by=user).run.created_by == user
        else:
            with pytest.raises(methods.NotForThisRole):
                ask(renter, USDC, at=at, by=user)


def test_returns_stand_under_the_caps(renter: Organisation, at: datetime, admin: User, second_admin: User) -> None:
    Policy.load()
    Policy.objects.update(payout_cap_micro=3 * USDC, run_cap_micro=5 * USDC)
    states = [ask(renter, micro * USDC, at=at).state for micro in (3, 2, 1)]
    assert states == [Payout.State.APPROVED, Payout.State.APPROVED, Payout.State.RESERVED]
    last = Payout.objects.order_by("-pk").first()
    for by in (admin, second_admin):
        approvals.approve(payout=last, by=by, at=at)
    assert run_until_done(last, at=at).state == Payout.State.PAID


# --- the page --------------------------------------------------------------------------------------------------------


@pytest.fixture
def page() -> str:
    return reverse("payouts:return_balance")


def test_the_page_asks_for_a_confirmation_first(renter: Organisation, page: str) -> None:
    client = Client()
    client.force_login(renter.created_by, backend=BACKEND)
    User.objects.filter(pk=renter.created_by.pk).update(password="of no hasher")
    confirm(client, renter.created_by, seconds_ago=3600)
    response = client.get(page)
    assert response.status_code == 302
    assert "reauthenticate" in response.url
    assert client.post(page, {"key": str(uuid.uuid4()), "how": "everything"}).status_code == 302
    assert not Payout.objects.exists()


def test_an_amount_is_sent_back_from_the_page(renter: Organisation, page: str, at: datetime) -> None:
    client = client_of(renter)
    shown = client.get(page)
    assert "10.000000" in text_of(shown.content)
    key = str(shown.context["form"]["key"].value())
    form = {"key": key, "how": "amount", "amount": "2.5"}
    for _ in range(2):  # pressed twice
        assert client.post(page, form, follow=True).status_code == 200
    payout = Payout.objects.get()
    assert payout.amount_micro == 2_500_000
    run_until_done(payout, at=at)
    listed = client.get(page).content.decode()
    assert payout.attempts.get().signature in listed
    assert "Paid, final on chain" in listed
    assert reverse("payouts:return_balance") in client.get(reverse("billing:balance")).content.decode()


@pytest.mark.parametrize("typed", ["1e3", "NaN", "1.0000001", "-5", "", "0.5", "999"])
def test_an_amount_that_cannot_be_sent_is_refused_beside_the_field_and_kept(
    typed: str, renter: Organisation, page: str
) -> None:
    response = client_of(renter).post(page, {"key": str(uuid.uuid4()), "how": "amount", "amount": typed})
    assert response.status_code == 422
    assert response.context["form"].errors["amount"]
    assert typed in response.content.decode()
    assert not Payout.objects.exists()


def test_an_amount_beside_everything_is_asked_about_and_nothing_is_sent(renter: Organisation, page: str) -> None:
    """Whoever writes 2.50 and forgets to choose it must not get the whole balance back."""
    response = client_of(renter).post(page, {"key": str(uuid.uuid4()), "how": "everything", "amount": "2.5"})
    assert response.status_code == 422
    assert response.context["form"].errors["amount"]
    assert 'value="2.5"' in response.content.decode()
    assert not Payout.objects.exists()


@pytest.mark.parametrize("typed", [" 1.5 ", "١٫٥"])
def test_an_amount_as_people_write_it_is_read(typed: str, renter: Organisation, page: str) -> None:
    assert client_of(renter).post(page, {"key": str(uuid.uuid4()), "how": "amount", "amount": typed}).status_code == 302
    assert Payout.objects.get().amount_micro == 1_500_000


@pytest.mark.django_db
def test_without_a_wallet_the_page_says_how_to_connect_one(page: str) -> None:
    org = organisation("renter")
    shown = client_of(org).get(page)
    assert reverse("payouts:connect_wallet") in shown.content.decode()
    assert shown.status_code == 200


def test_a_viewer_sees_it_and_cannot_ask(renter: Organisation, page: str) -> None:
    viewer = person("viewer")
    Membership.objects.create(user=viewer, organisation=renter, role="viewer")
    client = Client()
    client.force_login(viewer, backend=BACKEND)
    session = client.session
    session["organisation"] = str(renter.public_id)
    session.save()
    shown = client.get(page)
    assert shown.status_code == 200
    assert "form" not in shown.context or not shown.context.get("form")
    assert client.post(page, {"key": str(uuid.uuid4()), "how": "everything"}).status_code == 422
    assert not Payout.objects.exists()


def test_the_page_of_many_returns_asks_few_questions(
    renter: Organisation, page: str, at: datetime, django_assert_max_num_queries: object
) -> None:
    for _ in range(3):
        ask(renter, USDC, at=at)
    client = client_of(renter)
    client.get(page)
    with django_assert_max_num_queries(30):  # type: ignore[operator]
        client.get(page)
