"""The administration of payouts: the queue says what to do next, a run above its cap is approved by two, the kill switch is seen."""

from datetime import datetime, timedelta

import pytest
from django.conf import settings as django_settings
from django.test import Client
from django.urls import reverse

from billing import treasury
from gpunex.accounts.models import User
from gpunex.chain import faucet
from gpunex.chain.transfers import load_key
from gpunex.policy.models import Policy
from payouts import runs, usdc
from payouts.models import Payout, PayoutRun, Rail
from tests import chainkit
from tests.billing.test_views import text_of
from tests.signin import confirm

from .conftest import USDC, provider_with
from .test_approvals import caps
from .test_runs import BEFORE, MONDAY, earner, quote


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return confirm(client, user)


def page_of(row: Payout | PayoutRun) -> str:
    return reverse(f"admin:payouts_{row._meta.model_name}_change", args=[row.pk])


@pytest.mark.spec("H1")
def test_a_run_above_its_cap_is_approved_on_its_page_by_two(admin: User, second_admin: User) -> None:
    caps(run=50 * USDC)
    for _ in range(2):
        earner(30 * USDC, at=BEFORE)
    runs.make_due(at=MONDAY)
    run, first, second = PayoutRun.objects.get(), client_of(admin), client_of(second_admin)
    shown = text_of(first.get(page_of(run)).content)
    assert "It comes to 60.00 USDC; above 50.00 USDC two administrators approve the whole run." in shown
    assert "waits for two approvals" in text_of(first.get(reverse("admin:payouts_payoutrun_changelist")).content)
    assert first.post(page_of(run), {"decision": "approve"}).status_code == 302
    again = first.post(page_of(run), {"decision": "approve"})
    assert again.status_code == 422
    assert "a second administrator has to" in text_of(again.content)
    assert "Its run waits" in text_of(first.get(page_of(Payout.objects.first())).content)
    assert second.post(page_of(run), {"decision": "approve"}).status_code == 302
    run.refresh_from_db()
    assert run.cleared_at is not None
    shown = text_of(second.get(page_of(run)).content)
    assert admin.email in shown and second_admin.email in shown
    assert second.post(page_of(run), {"decision": "approve"}).status_code == 422


def test_nobody_but_staff_approves(admin: User) -> None:
    caps(run=USDC)
    org = earner(30 * USDC, at=BEFORE)
    runs.make_due(at=MONDAY)
    run = PayoutRun.objects.get()
    assert client_of(org.created_by).post(page_of(run), {"decision": "approve"}).status_code in (302, 403, 404)
    run.refresh_from_db()
    assert run.cleared_at is None and not run.approved_by.exists()


def test_the_queue_says_what_to_do_in_each_state(admin: User, at: datetime) -> None:
    client = client_of(admin)
    payout = runs.pay_off_cycle(organisation=provider_with(USDC, at=at), by=admin, reason="x", at=at)

    def note() -> str:
        payout.refresh_from_db()
        return text_of(client.get(page_of(payout)).content)

    assert "Signed and sent by the next sweep" in note()
    usdc.advance(at=at)
    assert "waiting for the chain" in note()
    Policy.load()
    Policy.objects.update(payouts_paused=True)
    assert "Payouts are paused" in note()
    for name in ("payout", "payoutrun"):
        listed = client.get(reverse(f"admin:payouts_{name}_changelist"))
        assert "Payouts are paused by the kill switch" in text_of(listed.content)
    Policy.objects.update(payouts_paused=False)
    usdc.advance(at=at + timedelta(seconds=5))
    payout.refresh_from_db()
    assert payout.state == Payout.State.PAID
    Payout.objects.update(state=Payout.State.REVIEW, state_reason=Payout.Reason.ACCOUNT_CLOSED)
    assert "its owner closed it" in note()
    Payout.objects.update(state=Payout.State.RESERVED, state_reason="")
    assert f"Approvals so far: {admin.email}" in note()


def test_the_queue_shows_why_and_puts_what_needs_a_person_first(admin: User, at: datetime) -> None:
    frozen = runs.pay_off_cycle(organisation=provider_with(USDC, at=at), by=admin, reason="x", at=at)
    chainkit.give(frozen.destination, 1)
    key = load_key(django_settings.FAUCET_KEY_FILE)
    faucet.set_frozen(treasury.rpc(), key, treasury.mint(), frozen.destination, frozen=True)
    usdc.advance(at=at)
    listed = text_of(client_of(admin).get(reverse("admin:payouts_payout_changelist")).content)
    assert "frozen by its issuer" in listed
    assert "money back in your earnings" in listed


def test_a_bank_payout_says_that_it_goes_into_a_file(admin: User) -> None:
    earner(30 * USDC, at=BEFORE, rail=Rail.SEPA)
    quote("EUR", 1_085_000, at=MONDAY)
    runs.make_due(at=MONDAY)
    shown = text_of(client_of(admin).get(page_of(Payout.objects.get())).content)
    assert "into the file of its run" in shown
    assert "GPX" in shown


@pytest.mark.django_db
def test_lists_of_many_runs_and_payouts_ask_few_questions(
    admin: User, at: datetime, django_assert_max_num_queries: object
) -> None:
    for _ in range(4):
        org = earner(3 * USDC, at=at)
        runs.pay_off_cycle(organisation=org, by=admin, reason="x", at=at)
    client = client_of(admin)
    for name in ("payout", "payoutrun"):
        url = reverse(f"admin:payouts_{name}_changelist")
        client.get(url)
        with django_assert_max_num_queries(25):  # type: ignore[operator]
            client.get(url)
