"""The books and corrections by hand, as administrators use them."""

from datetime import datetime, timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from billing import adjustments, debts, ledger, metering
from billing.ledger import Kind, Move
from billing.models import Adjustment, BalanceWarning, Meter, ProviderDebt, Transfer
from gpunex.accounts.models import Organisation, User

from .conftest import USDC, owned, person, start_meter
from .test_views import BACKEND, text_of

HOUR = timedelta(hours=1)


def client_for(user: User) -> Client:
    client = Client()
    client.force_login(user, backend=BACKEND)
    return client


@pytest.fixture
def first(db: None) -> User:
    return person("first", is_staff=True, is_superuser=True)


@pytest.fixture
def second(db: None) -> User:
    return person("second", is_staff=True, is_superuser=True)


def test_what_waits_says_its_state_in_words(renter: Organisation, first: User, noon: datetime) -> None:
    debit, credit = ledger.account(Kind.CREDITS), ledger.account(Kind.RENTER_BALANCE, organisation=renter)
    asked = adjustments.ask(kind=Adjustment.Kind.ADJUSTMENT, debit=debit, credit=credit, amount_micro=USDC, reason="goodwill", by=first, at=noon)  # fmt: skip
    page = text_of(client_for(first).get(reverse("admin:billing_adjustment_change", args=[asked.pk])).content)
    assert "State waiting for a second administrator" in page


@pytest.fixture
def charged(renter: Organisation, provider: Organisation, noon: datetime) -> Meter:
    meter = start_meter(renter, provider, at=noon)
    return metering.close_meter(meter=meter, ended_at=noon + HOUR, at=noon + HOUR)


def test_one_asks_and_another_makes_it_and_the_history_says_who(
    renter: Organisation, first: User, second: User
) -> None:
    asking, add = client_for(first), reverse("admin:billing_adjustment_add")
    assert asking.get(add).status_code == 200
    answer = asking.post(
        add,
        {
            "debit": "adjustments",
            "credit": "renter.balance",
            "credit_owner": str(renter.public_id),
            "amount": "2.50",
            "reason": "goodwill",
        },
    )
    asked = Adjustment.objects.get()
    page = reverse("admin:billing_adjustment_change", args=[asked.pk])
    assert answer.headers["Location"] == page
    assert owned(renter) == 100 * USDC
    own = asking.get(page).content.decode()
    assert 'value="withdraw"' in own
    assert 'value="make"' not in own
    assert asking.post(page, {"decision": "make"}).status_code == 302
    assert owned(renter) == 100 * USDC
    deciding = client_for(second)
    assert 'value="make"' in deciding.get(page).content.decode()
    assert deciding.post(page, {"decision": "make"}).status_code == 302
    assert owned(renter) == 102_500_000
    assert deciding.post(page, {"decision": "make"}).status_code == 302
    assert owned(renter) == 102_500_000
    told = LogEntry.objects.filter(object_id=str(asked.pk)).order_by("pk")
    assert [(entry.user, "goodwill" in str(entry.get_change_message())) for entry in told] == [
        (first, True),
        (second, False),
    ]


@pytest.mark.parametrize("amount", ["1e3", "NaN", "1.0000001", "-5", "0", "", "1,5"])
def test_an_amount_that_could_mean_anything_else_is_refused_beside_its_field(
    renter: Organisation, first: User, amount: str
) -> None:
    values = {
        "debit": "adjustments",
        "credit": "renter.balance",
        "credit_owner": str(renter.public_id),
        "amount": amount,
        "reason": "kept as typed",
    }
    page = client_for(first).post(reverse("admin:billing_adjustment_add"), values)
    assert page.status_code == 422
    assert "kept as typed" in page.content.decode()
    assert not Adjustment.objects.exists()


@pytest.mark.parametrize(("typed", "micro"), [(" 1.5 ", 1_500_000), ("١٫٥", 1_500_000), ("2.05", 2_050_000)])
def test_an_amount_that_means_exactly_one_thing_is_taken(
    renter: Organisation, first: User, typed: str, micro: int
) -> None:
    email = renter.members.get().email
    values = {
        "debit": "platform.loss",
        "credit": "renter.balance",
        "credit_owner": email,
        "amount": typed,
        "reason": "x",
    }
    assert client_for(first).post(reverse("admin:billing_adjustment_add"), values).status_code == 302
    assert Adjustment.objects.get().amount_micro == micro


def test_nobody_and_the_same_account_twice_are_refused(renter: Organisation, first: User) -> None:
    add = reverse("admin:billing_adjustment_add")
    values = {"debit": "adjustments", "credit": "renter.balance", "amount": "1", "reason": "x"}
    for owner in ("", "nobody@example.org", "no id"):
        page = client_for(first).post(add, values | {"credit_owner": owner})
        assert page.status_code == 422
        assert "This names no organisation" in text_of(page.content)
    page = client_for(first).post(add, values | {"credit": "adjustments"})
    assert "Name two" in text_of(page.content)


def test_a_refund_is_asked_for_on_the_meters_page_and_too_much_is_refused_there(
    charged: Meter, renter: Organisation, first: User, second: User
) -> None:
    page = reverse("admin:billing_meter_change", args=[charged.pk])
    asking = client_for(first)
    assert "at most 2.500000 USDC" in text_of(asking.get(page).content)
    sent = {"decision": "refund", "amount": "2.6", "source": "platform", "reason": "slow disk"}
    refused = asking.post(page, sent)
    assert refused.status_code == 422
    assert "Credits and refunds together never exceed it" in text_of(refused.content)
    assert asking.post(page, sent | {"amount": "0.5"}).status_code == 302
    asked = Adjustment.objects.get()
    assert (asked.kind, asked.meter, asked.debit.code) == (Adjustment.Kind.REFUND, charged, "platform.credits")
    client_for(second).post(reverse("admin:billing_adjustment_change", args=[asked.pk]), {"decision": "make"})
    assert owned(renter) == 98 * USDC


def test_a_charge_is_reversed_from_its_own_page_and_a_deposit_is_not(charged: Meter, first: User, second: User) -> None:
    charge, deposit = Transfer.objects.get(kind=Move.CHARGE), Transfer.objects.get(kind=Move.DEPOSIT)
    page = reverse("admin:billing_transfer_change", args=[charge.pk])
    assert client_for(first).post(page, {"decision": "reverse", "reason": ""}).status_code == 422
    assert client_for(first).post(page, {"decision": "reverse", "reason": "never ran"}).status_code == 302
    asked = Adjustment.objects.get()
    client_for(second).post(reverse("admin:billing_adjustment_change", args=[asked.pk]), {"decision": "make"})
    assert "Reversed by" in text_of(client_for(first).get(page).content)
    other = client_for(first).get(reverse("admin:billing_transfer_change", args=[deposit.pk])).content.decode()
    assert 'value="reverse"' not in other


def test_a_debt_is_written_off_from_its_own_page(
    provider: Organisation, first: User, second: User, noon: datetime
) -> None:
    debt = debts.owe(organisation=provider, reference="rental", amount_micro=USDC, at=noon)
    page = reverse("admin:billing_providerdebt_change", args=[debt.pk])
    assert client_for(first).post(page, {"decision": "write_off", "reason": "gone"}).status_code == 302
    asked = Adjustment.objects.get()
    client_for(second).post(reverse("admin:billing_adjustment_change", args=[asked.pk]), {"decision": "make"})
    debt.refresh_from_db()
    assert debt.state == ProviderDebt.State.WRITTEN_OFF


def test_a_refusal_is_said_above_the_button_and_the_note_is_needed(
    renter: Organisation, provider: Organisation, first: User, second: User, noon: datetime
) -> None:
    asked = adjustments.ask(
        kind=Adjustment.Kind.ADJUSTMENT,
        debit=ledger.account(Kind.PROVIDER_PAYABLE, organisation=provider),
        credit=ledger.account(Kind.RENTER_BALANCE, organisation=renter),
        amount_micro=USDC,
        reason="x",
        by=first,
        at=noon,
    )
    page = reverse("admin:billing_adjustment_change", args=[asked.pk])
    answer = client_for(second).post(page, {"decision": "make"})
    assert answer.status_code == 422
    assert "the balance is 0.00 USDC" in text_of(answer.content)
    assert client_for(second).post(page, {"decision": "refuse", "note": ""}).status_code == 422
    assert client_for(second).post(page, {"decision": "refuse", "note": "no"}).status_code == 302
    asked.refresh_from_db()
    assert asked.state == Adjustment.State.REFUSED


def test_staff_without_the_permission_see_and_cannot_ask_or_decide(charged: Meter, noon: datetime) -> None:
    from django.contrib.auth.models import Permission

    clerk = person("clerk", is_staff=True)
    clerk.user_permissions.set(
        Permission.objects.filter(codename__startswith="view_", content_type__app_label="billing")
    )
    client = client_for(clerk)
    page = reverse("admin:billing_meter_change", args=[charged.pk])
    assert 'value="refund"' not in client.get(page).content.decode()
    client.post(page, {"decision": "refund", "amount": "1", "source": "platform", "reason": "x"})
    assert client.get(reverse("admin:billing_adjustment_add")).status_code == 403
    assert not Adjustment.objects.exists()


def test_what_waits_is_on_top_and_no_list_asks_the_database_for_each_row(
    renter: Organisation, charged: Meter, first: User, second: User, noon: datetime, django_assert_max_num_queries
) -> None:
    def ask(reason: str) -> Adjustment:
        return adjustments.ask_refund(
            meter=charged, amount_micro=1000, from_earnings=False, reason=reason, by=first, at=noon
        )

    waiting = ask("waits")
    for _ in range(6):
        adjustments.make(adjustment=ask("made"), by=second, at=noon)
    BalanceWarning.objects.create(organisation=renter, hours=24, warned_at=noon)
    debts.owe(organisation=charged.payee, reference="r", amount_micro=5, at=noon)
    client = client_for(first)
    page = client.get(reverse("admin:billing_adjustment_changelist"))
    assert page.context["cl"].result_list[0] == waiting
    for model in ("adjustment", "providerdebt", "balancewarning", "meter", "transfer", "account"):
        with django_assert_max_num_queries(20):
            listed = client.get(reverse(f"admin:billing_{model}_changelist"))
        assert listed.status_code == 200


def test_transfers_are_found_by_reference(charged: Meter, first: User) -> None:
    found = client_for(first).get(reverse("admin:billing_transfer_changelist"), {"q": str(charged.public_id)})
    assert len(found.context["cl"].result_list) == 2
