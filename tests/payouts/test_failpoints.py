"""A worker dies at each place of the payout path, is started again, and what was due is paid exactly once."""

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from django.conf import settings as django_settings

from billing import debts, treasury
from billing.ledger import Kind
from billing.models import Statement, Transfer
from gpunex.accounts.models import Organisation, User
from gpunex.chain import faucet
from gpunex.chain.transfers import load_key
from payouts import failpoints, returns, review, runs, usdc
from payouts.books import verify_books
from payouts.models import Payout, PayoutPreference
from tests import chainkit
from tests.server import ROOT, database_url

from .conftest import USDC, connect, fill, organisation, owned, provider_with

MONDAY = datetime(2026, 10, 19, tzinfo=UTC)
WEEK = timedelta(days=7)
STEPS = 14
APART = timedelta(seconds=70)  # longer than what a dead attempt is waited for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.spec("H1", "H2")]


class WorkerKilled(BaseException):
    """As SIGKILL: nothing catches it."""


def die_once_at(name: str) -> list[str]:
    died: list[str] = []

    def hook(passed: str) -> None:
        if passed == name and not died:
            died.append(name)
            raise WorkerKilled

    failpoints.arm(hook)
    return died


def walk(act: Callable[[datetime], None], *, monday: datetime) -> None:
    """Pass after pass, whatever dies."""
    for step in range(STEPS):
        with contextlib.suppress(WorkerKilled):
            act(monday + step * APART)
        if not Payout.objects.filter(state__in=Payout.OPEN_STATES).exists() and step > 1:
            break


def each(names: Iterable[str]) -> Iterator[tuple[str, datetime]]:
    """Each name with a Monday of its own, and the chain mended in between."""
    for number, name in enumerate(names):
        yield name, MONDAY + number * WEEK
        chainkit.faults(reset=True)
        failpoints.arm(None)


def a_cycle(at: datetime) -> None:
    runs.make_due(at=at)
    usdc.advance(at=at)


def provider_of_the_run(monday: datetime) -> Organisation:
    """Thirty earned, of which one is owed."""
    before = monday - timedelta(days=2)
    org = provider_with(30 * USDC, at=before)
    debts.owe(organisation=org, reference=str(uuid.uuid4()), amount_micro=USDC, at=before)
    return org


def paid_once(org: Organisation, micro: int) -> Payout:
    payout = Payout.objects.get(organisation=org)
    assert payout.state == Payout.State.PAID
    assert payout.amount_micro == micro
    assert chainkit.held(payout.destination) == micro
    assert payout.attempts.filter(dead=False).count() == 1
    assert Transfer.objects.filter(reference=str(payout.public_id), kind="payout_paid").count() == 1
    assert Statement.objects.filter(organisation=org, kind=Statement.Kind.PAYOUT).count() == 1
    return payout


@pytest.mark.case("money-F2")
def test_a_run_whose_worker_dies_anywhere_pays_once() -> None:
    for name, monday in each([*failpoints.MAKING, *failpoints.PAYING]):
        org = provider_of_the_run(monday)
        died = die_once_at(name)
        walk(a_cycle, monday=monday)
        assert died, name
        payout = paid_once(org, 29 * USDC)
        assert payout.run.made_at is not None and payout.run.cleared_at is not None
        assert owned(org, Kind.PROVIDER_PAYABLE) == 0
    assert verify_books().problems == []


@pytest.mark.case("money-F2", "money-F4")
def test_a_worker_that_dies_anywhere_while_sends_are_lost_pays_once() -> None:
    def act(at: datetime) -> None:
        chainkit.faults(advance_blocks=200)
        a_cycle(at)

    for name, monday in each([*failpoints.PAYING, "proven dead", "before dead is committed"]):
        org = provider_of_the_run(monday)
        died = die_once_at(name)
        chainkit.faults(drop=1)
        walk(act, monday=monday)
        assert died, name
        paid_once(org, 29 * USDC)
    assert verify_books().problems == []


@pytest.mark.case("money-F11", "money-F36")
def test_a_worker_that_dies_giving_back_gives_back_once() -> None:
    key = load_key(django_settings.FAUCET_KEY_FILE)
    for name, monday in each(["seen as final", "before dead is committed", "before giving back is committed"]):
        org = provider_of_the_run(monday)
        died = die_once_at(name)
        chainkit.faults(hold=1)
        with contextlib.suppress(WorkerKilled):
            a_cycle(monday)
        payout = Payout.objects.get(organisation=org)
        chainkit.give(payout.destination, 1)
        faucet.set_frozen(treasury.rpc(), key, treasury.mint(), payout.destination, frozen=True)
        chainkit.faults(release=True)
        walk(lambda at: usdc.advance(at=at) and None, monday=monday)  # not into the next period
        payout.refresh_from_db()
        assert died, name
        assert payout.state == Payout.State.FAILED
        assert owned(org, Kind.PROVIDER_PAYABLE) == 29 * USDC
        assert chainkit.held(payout.destination) == 1
        PayoutPreference.objects.filter(organisation=org).update(since=monday + 99 * WEEK)  # out of the next Mondays
    assert verify_books().problems == []


def test_a_worker_that_dies_holding_a_payout_holds_it(admin: User) -> None:
    for name, monday in each(["seen as final", "before holding is committed"]):
        org = provider_of_the_run(monday)
        died = die_once_at(name)
        chainkit.faults(lie="empty", only_path="/b")
        for step in range(4):
            with contextlib.suppress(WorkerKilled):
                a_cycle(monday + step * APART)
        payout = Payout.objects.get(organisation=org)
        assert died, name
        assert payout.state == Payout.State.REVIEW
        chainkit.faults(reset=True)
        review.resume(payout=payout, by=admin, reason="both nodes tell the same now", at=monday)
        walk(a_cycle, monday=monday)
        paid_once(org, 29 * USDC)
    assert verify_books().problems == []


@pytest.mark.spec("G3")
@pytest.mark.case("money-F7")
def test_a_return_whose_worker_dies_anywhere_is_paid_once() -> None:
    making = ["the statement was issued", "before reserving is committed", "reserved and committed"]
    for name, monday in each([*making, *failpoints.PAYING]):
        org, key = organisation("renter"), str(uuid.uuid4())
        connect(org, at=monday)
        fill(org, 5 * USDC, at=monday)
        died = die_once_at(name)

        def act(at: datetime, org: Organisation = org, key: str = key) -> None:
            returns.ask_back(organisation=org, amount_micro=4 * USDC, by=org.created_by, at=at, key=key)
            usdc.advance(at=at)

        walk(act, monday=monday)
        assert died, name
        paid_once(org, 4 * USDC)
        assert owned(org, Kind.RENTER_BALANCE) == USDC
    assert verify_books().problems == []


@pytest.mark.case("money-F2")
def test_a_process_that_is_killed_by_the_system_pays_once_after_its_restart() -> None:
    places = ["before reserving is committed", "signed and committed", "sent", "before paid is committed"]
    for name, monday in each(places):
        org = provider_of_the_run(monday)
        assert work(monday, name) == -signal.SIGKILL, name
        assert work(monday) == 0
        paid_once(org, 29 * USDC)
    assert verify_books().problems == []


def work(monday: datetime, place: str = "") -> int:
    """Run a worker on the tests' database and chain; how it ended."""
    environment = {
        **os.environ,
        "DATABASE_URL": database_url(),
        "TREASURY_KEY_FILE": str(django_settings.TREASURY_KEY_FILE),
        "DJANGO_SETTINGS_MODULE": "gpunex.settings",
        "PYTHONPATH": str(ROOT),
        "LOG_LEVEL": "WARNING",
    }
    command = [sys.executable, "-m", "tests.payouts.worker", (monday + timedelta(hours=1)).isoformat()]
    return subprocess.run(
        command + ([place] if place else []), cwd=ROOT, env=environment, timeout=120, check=False
    ).returncode
