"""Payouts while everything goes wrong: workers die anywhere, sends are lost, late or repeated, nodes hide, lag, lie and refuse.

Each seed is a week of twenty payouts: a run, off-cycle ones, returns. First the storm, with faults drawn anew at each pass; then the chain is
mended, a person lets go on what is held, and every payout must have ended: paid exactly once, or failed with its money back.
"""

import contextlib
import random
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from django.conf import settings as django_settings
from django.db import connections
from solders.keypair import Keypair

from billing import deposits, ledger, treasury
from billing.ledger import Kind, Move, Posting
from billing.models import Account, Transfer
from gpunex.accounts.models import Organisation, User
from gpunex.chain import faucet
from gpunex.chain.transfers import load_key, memo_of
from payouts import failpoints, returns, review, runs, usdc
from payouts.books import verify_books
from payouts.models import Attempt, Payout, PayoutMethod, PayoutPreference, PayoutRun, Rail
from tests import chainkit

from .conftest import USDC, organisation, owned, person

PAYOUTS_A_SEED = 20
STORM, CALM_MOST = 10, 40
FIRST_MONDAY = datetime(2025, 1, 6, tzinfo=UTC)
DEATH = 0.6  # a pass's chance that a death waits somewhere on its way
TWO_AT_ONCE = 0.2
OPEN = Payout.OPEN_STATES

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.spec("H1", "H2", "G3")]


class WorkerKilled(BaseException):
    """As SIGKILL: nothing catches it."""


@dataclass
class Week:
    """The people of one seed, and what became of their payouts."""

    number: int
    admin: User
    rng: random.Random
    deaths: Counter[str] = field(default_factory=Counter)
    weather: Counter[str] = field(default_factory=Counter)
    frozen: set[str] = field(default_factory=set)
    dust: Counter[str] = field(default_factory=Counter)  # by wallet, what strangers sent there
    owed: dict[int, int] = field(default_factory=dict)  # organisation → what it earned or put in
    asked: list[tuple[Organisation, int, str]] = field(default_factory=list)  # returns
    off_cycle: list[Organisation] = field(default_factory=list)
    missing_micro: int = 0  # what the treasury still lacks on chain

    @property
    def monday(self) -> datetime:
        return FIRST_MONDAY + timedelta(days=7 * self.number)

    # people

    def begin(self) -> None:
        before = self.monday - timedelta(days=1)
        shared = str(Keypair().pubkey())
        organisations = [organisation("chaos") for _ in range(PAYOUTS_A_SEED)]
        postings = []
        for place, org in enumerate(organisations):
            # Two providers of equal earnings share a wallet: equal payments on one blockhash must stay two.
            address = shared if place < 2 else str(Keypair().pubkey())
            self._connect(org, address, at=before)
            micro = 25 * USDC if place < 2 else self.rng.randrange(20 * USDC, 90 * USDC)
            returning = place >= PAYOUTS_A_SEED - 4
            kind = Kind.RENTER_BALANCE if returning else Kind.PROVIDER_PAYABLE
            account = ledger.account(kind, organisation=org)
            Account.objects.filter(pk=account.pk).update(created_at=before)
            self.owed[org.pk] = micro
            if returning:
                self.asked.append((org, micro, str(uuid.uuid4())))
            elif place in (2, 3):
                self.off_cycle.append(org)
            postings.append(Posting(str(uuid.uuid4()), ledger.account(Kind.UNMATCHED), account, micro, Move.ADJUSTMENT))
        ledger.post_all(postings, at=before)
        self.missing_micro = sum(self.owed.values())
        # Now and then the treasury holds too little until somebody fills it up.
        self._fill(self.missing_micro // 2 if self.rng.random() < 0.3 else self.missing_micro)

    def _connect(self, org: Organisation, address: str, *, at: datetime) -> None:
        PayoutMethod.objects.create(
            organisation=org,
            rail=Rail.USDC,
            address=address,
            created_by=org.created_by,
            verified_at=at,
            active_from=at,
            proof={"message": "", "signature": ""},
        )
        if self.rng.random() < 0.2:
            PayoutPreference.objects.create(organisation=org)

    def _fill(self, micro: int) -> None:
        micro = min(micro, self.missing_micro)
        if micro > 0:
            chainkit.give(treasury.address(), micro)
            self.missing_micro -= micro

    # one pass

    def act(self, at: datetime) -> None:
        runs.make_due(at=at)
        for org in self.off_cycle:
            if not Payout.objects.filter(organisation=org).exists():
                with contextlib.suppress(runs.NothingToPay):  # the other worker was first
                    runs.pay_off_cycle(organisation=org, by=self.admin, reason="chaos", at=at)
        for org, micro, key in self.asked:
            returns.ask_back(organisation=org, amount_micro=micro, by=org.created_by, at=at, key=key)
        usdc.advance(at=at)

    def passing(self, at: datetime) -> None:
        if self.rng.random() < DEATH:
            self._arm(after=self.rng.randrange(30))
        workers = 2 if self.rng.random() < TWO_AT_ONCE else 1
        at_once(workers, lambda: self.act(at))
        failpoints.arm(None)

    def _arm(self, *, after: int) -> None:
        """A worker dies at the place that it comes to after so many others."""
        left = [after]

        def hook(passed: str) -> None:
            left[0] -= 1
            if left[0] == -1:
                self.deaths[passed] += 1
                raise WorkerKilled

        failpoints.arm(hook)

    # the weather

    def change_the_weather(self) -> None:
        rng, node = self.rng, self.rng.choice(["/a", "/b", ""])
        if rng.random() < 0.5:
            chainkit.faults(release=True)  # what was late lands now, if it still can
        chainkit.faults(reset=True)
        if rng.random() < 0.2:
            self.freeze_somebody()
        if rng.random() < 0.3:
            self._fill(self.missing_micro)
        faults: list[tuple[str, dict[str, object]]] = [
            ("drop", {"drop": rng.randrange(1, 15)}),
            ("hold", {"hold": rng.randrange(1, 15)}),
            ("timeout", {"timeout_after_land": rng.randrange(1, 4)}),
            ("hide", {"hide_status_s": 0.4}),
            ("slot", {"height_as_slot": True}),
            ("busy", {"rate_limit": rng.randrange(1, 12), "retry_after_s": 0}),
            ("down", {"rpc_down": True}),
            ("liar", {"lie": rng.choice(["landed", "failed", "empty"])}),
        ]
        chosen = dict(rng.sample(faults, k=rng.randrange(4)))
        if "liar" in chosen and not node:
            node = "/a"  # two nodes that tell the same lie are the truth, as far as anybody can know
        for name, wanted in chosen.items():
            self.weather[name] += 1
            chainkit.faults(**wanted, only_path=node)
        if rng.random() < 0.6:
            chainkit.faults(advance_blocks=rng.choice([10, 100, 160, 200]))

    def freeze_somebody(self) -> None:
        wallet = self.rng.choice(list(PayoutMethod.objects.filter(organisation__in=self.owed).values_list("address")))[
            0
        ]
        if wallet in self.frozen:
            return
        chainkit.give(wallet, 1)  # an account has to be there
        self.dust[wallet] += 1
        self._set_frozen(wallet, frozen=True)
        self.weather["freeze"] += 1
        self.frozen.add(wallet)

    def _set_frozen(self, wallet: str, *, frozen: bool) -> None:
        key = load_key(django_settings.FAUCET_KEY_FILE)
        faucet.set_frozen(treasury.rpc(), key, treasury.mint(), wallet, frozen=frozen)

    def mend(self) -> None:
        chainkit.faults(reset=True)
        for wallet in self.frozen:
            self._set_frozen(wallet, frozen=False)
        self._fill(self.missing_micro)

    # the story

    def tell(self) -> None:
        self.begin()
        at = self.monday + timedelta(minutes=1)
        for _ in range(STORM):
            self.change_the_weather()
            surge = self.rng.random() < 0.3  # all that is sent is lost, and its time runs out
            if surge:
                chainkit.faults(drop=99)
            self.passing(at)
            if surge:
                self.weather["surge"] += 1
                chainkit.faults(advance_blocks=200)
                at += timedelta(seconds=61)
            at += timedelta(seconds=self.rng.randrange(1, 120))
        self.mend()
        for _ in range(CALM_MOST):
            for held in Payout.objects.filter(state=Payout.State.REVIEW):
                review.resume(payout=held, by=self.admin, reason="looked", at=at)
            self.act(at)
            chainkit.faults(advance_blocks=200)
            at += timedelta(seconds=70)
            if not self.payouts().filter(state__in=OPEN).exists():
                break

    def payouts(self) -> object:
        return Payout.objects.filter(organisation__in=self.owed)


def at_once(workers: int, act: Callable[[], None]) -> None:
    """One worker, or several in threads; each may be killed, and nothing else may go wrong."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except WorkerKilled:
            pass
        except BaseException as failure:
            failures.append(failure)
        finally:
            if workers > 1:
                connections.close_all()

    if workers == 1:
        run()
    else:
        threads = [threading.Thread(target=run) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


@dataclass
class Tally:
    payouts: int = 0
    paid: int = 0
    failed: int = 0
    attempts: int = 0
    paid_twice: int = 0
    lost: int = 0
    wrongly_marked: int = 0
    deaths: Counter[str] = field(default_factory=Counter)
    weather: Counter[str] = field(default_factory=Counter)

    def count(self, week: Week) -> None:
        self.deaths += week.deaths
        self.weather += week.weather
        gifts: Counter[str] = Counter()
        for payout in week.payouts():  # type: ignore[attr-defined]
            landed = sum(landed_with(attempt, payout.memo) for attempt in payout.attempts.all())
            self.payouts += 1
            self.attempts += payout.attempts.count()
            self.paid += payout.state == Payout.State.PAID
            self.failed += payout.state == Payout.State.FAILED
            self.paid_twice += landed > 1
            self.lost += payout.state in OPEN
            self.wrongly_marked += landed != (payout.state == Payout.State.PAID)
            gifts[payout.destination] += payout.amount_micro if payout.state == Payout.State.PAID else 0
        for wallet, micro in gifts.items():
            assert chainkit.held(wallet) == micro + week.dust[wallet], wallet
        for pk, micro in week.owed.items():
            self._nothing_is_lost(Organisation.objects.get(pk=pk), micro)

    def _nothing_is_lost(self, org: Organisation, micro: int) -> None:
        paid = Transfer.objects.filter(kind=Move.PAID, debit__organisation=org).values_list("amount_micro", flat=True)
        left = sum(
            owned(org, kind)
            for kind in (Kind.PROVIDER_PAYABLE, Kind.RENTER_BALANCE)
            if Account.objects.filter(kind=kind, organisation=org).exists()
        )
        self.lost += sum(paid) + left != micro

    def __str__(self) -> str:
        return (
            f"{self.payouts} payouts, {self.attempts} signatures: {self.paid} paid, {self.failed} failed with their money back; "
            f"{self.paid_twice} paid twice, {self.lost} lost, {self.wrongly_marked} wrongly marked; "
            f"{sum(self.deaths.values())} workers died at {len(self.deaths)} places; weather: {dict(sorted(self.weather.items()))}"
        )


def landed_with(attempt: Attempt, memo: str) -> bool:
    transaction = treasury.rpc().get_transaction(attempt.signature)
    return transaction is not None and transaction["meta"]["err"] is None and memo_of(transaction) == memo


def storm(seeds: range) -> Tally:
    admin, tally = person("admin", is_staff=True, is_superuser=True), Tally()
    faucet.give_sol(treasury.rpc(), treasury.address(), 90_000_000_000)
    for seed in seeds:
        week = Week(number=seed, admin=admin, rng=random.Random(seed))
        week.tell()
        tally.count(week)
        # What failed is its owner's again; a later week would pay it a second time, and rightly.
        _leave(week)
    deposits.find_deposits(at=FIRST_MONDAY)
    report = verify_books()
    assert report.problems == []
    assert report.drift_micro == 0
    return tally


def _leave(week: Week) -> None:
    PayoutMethod.objects.filter(organisation__in=week.owed).update(removed_at=week.monday)


def check(tally: Tally, seeds: int) -> None:
    sys.stdout.write(f"{tally}\n")
    assert tally.payouts >= seeds * PAYOUTS_A_SEED
    assert (tally.paid_twice, tally.lost, tally.wrongly_marked) == (0, 0, 0), str(tally)
    assert tally.paid + tally.failed == tally.payouts, str(tally)
    assert tally.paid > tally.payouts * 0.8, str(tally)
    assert sum(tally.deaths.values()) > seeds and tally.attempts > tally.payouts, str(tally)
    assert PayoutRun.objects.filter(cleared_at=None).count() == 0


@pytest.mark.case("money-F1", "money-F2", "money-F4", "money-F9", "money-F33")
def test_whatever_goes_wrong_each_of_200_payouts_is_paid_once_or_given_back() -> None:
    tally = storm(range(10))
    check(tally, 10)


@pytest.mark.soak
def test_whatever_goes_wrong_each_of_2000_payouts_is_paid_once_or_given_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tally = storm(range(1000, 1100))
    with capsys.disabled():
        sys.stdout.write(f"\nchaos: {tally}\n")
    check(tally, 100)
