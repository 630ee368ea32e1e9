"""The Payouts tab, the wallet form and the administration, as people use them."""

from datetime import datetime, timedelta

import pytest
from django.test import Client
from django.urls import reverse
from solders.keypair import Keypair

from billing import treasury
from gpunex.accounts.models import Membership, Organisation, User
from gpunex.chain.addresses import ata
from gpunex.policy.models import Policy
from payouts import methods, runs, usdc
from payouts.models import Attempt, Payout, PayoutMethod
from providers.models import Provider
from tests import chainkit
from tests.billing.test_views import BACKEND, client_of, text_of

from .conftest import USDC, earn, organisation, person, run_until_done


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


@pytest.mark.spec("H2")
def test_a_wallet_is_connected_and_shown(earner: Organisation) -> None:
    client, wallet = client_of(earner), chainkit.wallet()
    page = client.get(reverse("providers:payouts"))
    assert "No wallet is connected" in text_of(page.content)
    assert b'name="last_characters"' in page.content
    page = client.post(
        reverse("providers:connect_wallet"), {"address": wallet, "last_characters": wallet[-6:]}, follow=True
    )
    assert page.status_code == 200
    assert wallet in text_of(page.content)
    assert "No wallet is connected" not in text_of(page.content)


@pytest.mark.spec("H2")
@pytest.mark.case("money-F44")
@pytest.mark.parametrize("kind", ["typo", "empty", "token account", "mint", "program", "ours", "off the curve", "0x"])
def test_each_address_that_is_no_wallet_is_refused_beside_the_field_and_kept(earner: Organisation, kind: str) -> None:
    wallet = chainkit.wallet()
    chainkit.give(wallet, 1)
    address = {
        "typo": "0" + wallet[1:],  # no digit of base58
        "empty": "",
        "token account": ata(wallet, treasury.mint()),
        "mint": treasury.mint(),
        "program": "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA",
        "ours": treasury.address(),
        "off the curve": ata(chainkit.wallet(), treasury.mint()),
        "0x": "0x52908400098527886E0F7030069857D2E4169EE7",
    }[kind]
    page = client_of(earner).post(
        reverse("providers:connect_wallet"), {"address": address, "last_characters": address[-6:]}
    )
    assert page.status_code == 422
    assert page.context["form"].errors.get("address")
    assert b'class="error"' in page.content
    assert address in page.content.decode()
    assert not PayoutMethod.objects.exists()


def test_other_last_characters_are_refused(earner: Organisation) -> None:
    page = client_of(earner).post(
        reverse("providers:connect_wallet"), {"address": chainkit.wallet(), "last_characters": "aaaaaa"}
    )
    assert page.status_code == 422
    assert page.context["form"].errors.get("last_characters")


def test_a_silent_chain_is_said_and_nothing_is_changed(earner: Organisation) -> None:
    chainkit.faults(rpc_down=True)
    wallet = chainkit.wallet()
    page = client_of(earner).post(
        reverse("providers:connect_wallet"), {"address": wallet, "last_characters": wallet[-6:]}
    )
    assert page.status_code == 422
    assert "did not answer" in text_of(page.content)
    assert not PayoutMethod.objects.exists()


def test_a_viewer_may_look_and_not_change(earner: Organisation, at: datetime) -> None:
    viewer = person("viewer")
    Membership.objects.create(user=viewer, organisation=earner, role=Membership.Role.VIEWER)
    client = Client()
    client.force_login(viewer, backend=BACKEND)
    assert b'name="address"' not in client.get(reverse("providers:payouts")).content
    wallet = chainkit.wallet()
    assert (
        client.post(
            reverse("providers:connect_wallet"), {"address": wallet, "last_characters": wallet[-6:]}
        ).status_code
        == 422
    )
    client.post(reverse("providers:cadence"), {"cadence": "monthly"})
    assert methods.cadence_of(earner).next_cadence == ""
    assert not PayoutMethod.objects.exists()


def test_a_change_waits_and_can_be_cancelled(earner: Organisation, at: datetime) -> None:
    client, first, second = client_of(earner), chainkit.wallet(), chainkit.wallet()
    for wallet in (first, second):
        client.post(reverse("providers:connect_wallet"), {"address": wallet, "last_characters": wallet[-6:]})
    page = client.get(reverse("providers:payouts"))
    assert "A change is waiting" in text_of(page.content)
    assert methods.active_method(earner, at + timedelta(minutes=1)).address == first
    client.post(reverse("providers:cancel_wallet"))
    assert "A change is waiting" not in text_of(client.get(reverse("providers:payouts")).content)
    assert methods.active_method(earner, at + timedelta(days=9)).address == first


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
    wallet = str(Keypair().pubkey())
    methods.connect_wallet(organisation=earner, address=wallet, by=earner.created_by, at=at)
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
    assert "No wallet is connected" in text_of(page.content)
    assert client_of(earner).post(url, {"reason": "x"}).status_code in (302, 403, 404)
    assert not Payout.objects.exists()


def test_above_the_cap_two_admins_approve_in_the_queue(
    earner: Organisation, admin: User, second_admin: User, at: datetime
) -> None:
    methods.connect_wallet(organisation=earner, address=chainkit.wallet(), by=earner.created_by, at=at)
    Policy.load()
    Policy.objects.update(payout_cap_micro=USDC)
    payout = runs.pay_off_cycle(organisation=earner, by=admin, reason="large", at=at)
    assert payout.state == Payout.State.RESERVED
    url = reverse("admin:payouts_payout_change", args=[payout.pk])
    assert admin_client(admin).post(url, {"decision": "approve"}).status_code == 422
    assert admin_client(second_admin).post(url, {"decision": "approve"}).status_code == 302
    assert run_until_done(payout, at=at).state == Payout.State.PAID


def test_an_admin_takes_back_or_lets_go_on(earner: Organisation, admin: User, at: datetime) -> None:
    methods.connect_wallet(organisation=earner, address=chainkit.wallet(), by=earner.created_by, at=at)
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
    methods.connect_wallet(organisation=earner, address=chainkit.wallet(), by=earner.created_by, at=at)
    runs.pay_off_cycle(organisation=earner, by=admin, reason="x", at=at)
    client = admin_client(admin)
    for model in ("payout", "payoutrun", "payoutmethod", "payoutpreference"):
        assert client.get(reverse(f"admin:payouts_{model}_changelist")).status_code == 200, model
