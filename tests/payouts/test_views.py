"""The Payouts tab and the administration, as people use them."""

from datetime import datetime, timedelta

import pytest
from django.test import Client
from django.urls import reverse

from gpunex.accounts.models import Organisation, User
from gpunex.policy.models import Policy
from payouts import methods, runs, usdc
from payouts.models import Attempt, Payout
from providers.models import Provider
from tests import chainkit
from tests.billing.test_views import BACKEND, client_of, text_of
from tests.wallets import connect_wallet

from .conftest import USDC, earn, organisation, run_until_done


@pytest.fixture
def earner(at: datetime) -> Organisation:
    org = organisation("provider")
    Provider.objects.create(organisation=org, tier="community", approved_at=at, commitment_months=3)
    earn(org, 30 * USDC, at=at)
    return org


def admin_client(admin: User) -> Client:
    client = Client()
    client.force_login(admin, backend=BACKEND)
    return client


def test_the_cadence_is_chosen_for_the_next_period(earner: Organisation) -> None:
    client = client_of(earner)
    assert client.post(reverse("providers:cadence"), {"cadence": "monthly"}).status_code == 302
    preference = methods.cadence_of(earner)
    assert (preference.cadence, preference.next_cadence) == ("weekly", "monthly")
    client.post(reverse("providers:cadence"), {"cadence": "weekly"})
    assert methods.cadence_of(earner).next_cadence == ""


@pytest.mark.spec("H1", "H2")
def test_an_admin_pays_off_cycle_from_the_providers_page_and_the_receipt_shows_it(
    earner: Organisation, admin: User, at: datetime
) -> None:
    wallet = connect_wallet(earner, at=at).address
    client = admin_client(admin)
    provider_page = client.get(reverse("admin:providers_provider_change", args=[earner.provider.pk]))
    assert b"off-cycle" in provider_page.content
    url = reverse("admin:payouts_payout_off_cycle", args=[earner.public_id])
    assert "30.000000" in text_of(client.get(url).content)
    assert client.post(url, {"reason": ""}).status_code == 422
    assert client.post(url, {"reason": "x", "amount": "1e3"}).status_code == 422
    assert client.post(url, {"reason": "x", "amount": "31"}).status_code == 422
    assert client.post(url, {"reason": "first payout"}).status_code == 302
    payout = run_until_done(Payout.objects.get(), at=at)
    signature = Attempt.objects.get().signature
    owner = client_of(earner)
    assert signature in owner.get(reverse("providers:payouts")).content.decode()
    assert "Paid, final on chain" in text_of(owner.get(reverse("providers:earnings")).content)
    receipt = text_of(owner.get(reverse("providers:payout", args=[payout.public_id])).content)
    for part in (signature, wallet, f"gpunex:{payout.public_id}", "30.000000 USDC", "SOL"):
        assert part in receipt
    assert (
        client_of(organisation("stranger")).get(reverse("providers:payout", args=[payout.public_id])).status_code == 404
    )


def test_an_off_cycle_payout_needs_a_wallet_and_staff(earner: Organisation, admin: User) -> None:
    url = reverse("admin:payouts_payout_off_cycle", args=[earner.public_id])
    page = admin_client(admin).post(url, {"reason": "x"})
    assert page.status_code == 422
    assert "nowhere to pay to" in text_of(page.content)
    assert client_of(earner).post(url, {"reason": "x"}).status_code in (302, 403, 404)
    assert not Payout.objects.exists()


def test_above_the_cap_two_admins_approve_in_the_queue(
    earner: Organisation, admin: User, second_admin: User, at: datetime
) -> None:
    connect_wallet(earner, at=at)
    Policy.load()
    Policy.objects.update(payout_cap_micro=USDC)
    payout = runs.pay_off_cycle(organisation=earner, by=admin, reason="large", at=at)
    assert payout.state == Payout.State.RESERVED
    url = reverse("admin:payouts_payout_change", args=[payout.pk])
    assert admin_client(admin).post(url, {"decision": "approve"}).status_code == 422
    assert admin_client(second_admin).post(url, {"decision": "approve"}).status_code == 302
    assert run_until_done(payout, at=at).state == Payout.State.PAID


def test_an_admin_takes_back_or_lets_go_on(earner: Organisation, admin: User, at: datetime) -> None:
    connect_wallet(earner, at=at)
    payout = runs.pay_off_cycle(organisation=earner, by=admin, reason="x", at=at, amount_micro=USDC)
    client = admin_client(admin)
    url = reverse("admin:payouts_payout_change", args=[payout.pk])
    assert client.post(url, {"decision": "take_back", "reason": ""}).status_code == 422
    assert client.post(url, {"decision": "resume", "reason": "x"}).status_code == 422
    assert client.post(url, {"decision": "take_back", "reason": "asked by mail"}).status_code == 302
    payout.refresh_from_db()
    assert (payout.state, payout.reason_text) == (Payout.State.FAILED, "asked by mail")
    held = runs.pay_off_cycle(organisation=earner, by=admin, reason="x", at=at, amount_micro=USDC)
    chainkit.faults(drop=1)
    usdc.advance(at=at)
    Payout.objects.filter(pk=held.pk).update(state=Payout.State.REVIEW)
    url = reverse("admin:payouts_payout_change", args=[held.pk])
    assert client.post(url, {"decision": "take_back", "reason": "its transaction may still land"}).status_code == 422
    assert client.post(url, {"decision": "resume", "reason": "looked at the chain"}).status_code == 302
    assert run_until_done(held, at=at + timedelta(seconds=5)).state == Payout.State.PAID


def test_the_admin_pages_of_payouts_open(earner: Organisation, admin: User, at: datetime) -> None:
    connect_wallet(earner, at=at)
    runs.pay_off_cycle(organisation=earner, by=admin, reason="x", at=at)
    client = admin_client(admin)
    for model in ("payout", "payoutrun", "payoutmethod", "payoutpreference"):
        assert client.get(reverse(f"admin:payouts_{model}_changelist")).status_code == 200, model
