"""The receipt for whoever was paid, and the proof for anyone."""

import uuid
from datetime import datetime

import pytest
from django.core.cache import cache
from django.test import Client
from django.urls import reverse

from gpunex.accounts.models import Organisation, User
from payouts import runs
from payouts.models import Payout
from providers.models import Provider
from tests import chainkit
from tests.billing.test_views import client_of, text_of

from .conftest import USDC, connect, earn, organisation, run_until_done


@pytest.fixture
def earner(at: datetime) -> Organisation:
    org = organisation("Falcon Compute")
    Provider.objects.create(organisation=org, tier="community", approved_at=at, commitment_months=3)
    earn(org, 30 * USDC, at=at)
    connect(org, at=at)
    return org


@pytest.fixture
def waiting(earner: Organisation, admin: User, at: datetime) -> Payout:
    return runs.pay_off_cycle(organisation=earner, by=admin, reason="first payout", at=at)


@pytest.fixture
def paid(waiting: Payout, at: datetime) -> Payout:
    return run_until_done(waiting, at=at)


@pytest.fixture(autouse=True)
def forgotten() -> None:
    cache.clear()


def receipt(payout: Payout) -> str:
    return reverse("providers:payout", args=[payout.public_id])


def proof(payout: Payout) -> str:
    return reverse("payouts:verify", args=[payout.public_id])


@pytest.mark.spec("G2", "H2")
def test_a_receipt_says_what_was_paid_to_where_by_what_and_how_to_check_it(paid: Payout, earner: Organisation) -> None:
    page = client_of(earner).get(receipt(paid)).content.decode()
    text = text_of(page.encode())
    attempt = paid.attempts.get()
    for part in (
        "30.000000 USDC",
        paid.destination,
        attempt.signature,
        paid.memo,
        "P-000001",
        paid.statement_sha256,
        "SOL",
        "Final on chain",
        f"http://testserver{proof(paid)}",
    ):
        assert part in text
    assert reverse("billing:statement", args=[earner.statements.get().public_id]) in page


def test_a_receipt_is_nobody_elses(paid: Payout) -> None:
    assert client_of(organisation("stranger")).get(receipt(paid)).status_code == 404
    assert Client().get(receipt(paid)).status_code == 302


def test_a_receipt_follows_the_payout_until_it_is_paid(waiting: Payout, earner: Organisation, at: datetime) -> None:
    client = client_of(earner)
    live = client.get(receipt(waiting), {"live": "1"}, headers={"HX-Request": "true"}).content.decode()
    assert 'hx-trigger="every 3s"' in live
    run_until_done(waiting, at=at)
    assert (
        "every 3s" not in client.get(receipt(waiting), {"live": "1"}, headers={"HX-Request": "true"}).content.decode()
    )


@pytest.mark.spec("H2", "J1")
@pytest.mark.parametrize("language", ["en", "ar"])
def test_anyone_sees_the_proof_of_a_payout_without_an_account(paid: Payout, language: str) -> None:
    client = Client()
    client.cookies["django_language"] = language
    response = client.get(proof(paid))
    assert response.status_code == 200
    text = text_of(response.content)
    for part in ("30.000000", str(paid.public_id), paid.statement_sha256, paid.attempts.get().signature):
        assert part in text
    if language == "en":
        assert "This payout is proved" in text
        assert text.count("passed") >= 5


def test_the_proof_names_nobody(paid: Payout, earner: Organisation) -> None:
    page = Client().get(proof(paid)).content.decode()
    for private in (paid.destination, earner.name, earner.created_by.email, str(earner.public_id), "P-000001"):
        assert private not in page


def test_an_unknown_payout_has_no_proof(db: None) -> None:
    assert Client().get(reverse("payouts:verify", args=[uuid.uuid4()])).status_code == 404


def test_the_chain_is_asked_once_a_minute_and_again_when_the_state_changes(waiting: Payout, at: datetime) -> None:
    assert "Nothing is off so far" in text_of(Client().get(proof(waiting)).content)
    paid = run_until_done(waiting, at=at)
    assert "This payout is proved" in text_of(Client().get(proof(paid)).content)
    chainkit.faults(rpc_down=True)
    assert "This payout is proved" in text_of(Client().get(proof(paid)).content)
    cache.clear()
    assert "Not everything could be checked" in text_of(Client().get(proof(paid)).content)


def test_what_does_not_fit_is_said_plainly(paid: Payout) -> None:
    Payout.objects.filter(pk=paid.pk).update(amount_micro=29 * USDC)
    text = text_of(Client().get(proof(paid)).content)
    assert "Something does not fit" in text
    assert "does not fit" in text
