"""Random lives of renters, providers and administrators: the books hold after every step, and nothing anybody earned shrinks by itself."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test

from billing import adjustments, debts, ledger, metering
from billing.ledger import Kind, Move, NotEnoughMoney, Posting
from billing.metering import RefundTooLarge
from billing.models import Account, Adjustment, Meter, ProviderDebt, Transfer
from gpunex.accounts.models import Organisation
from gpunex.kit.refusals import Refusal

from .conftest import fund, organisation, person, start_meter

USDC = 1_000_000
two = st.integers(0, 1)


class Books(RuleBasedStateMachine):
    """Two renters, two providers, two administrators, a clock. What was deposited is the only source of money."""

    meters = Bundle("meters")
    payouts = Bundle("payouts")

    def __init__(self) -> None:
        super().__init__()
        self.life = transaction.atomic()
        self.life.__enter__()
        self.at = datetime(2026, 10, 14, 22, 0, tzinfo=UTC)
        self.renters = [organisation(f"renter{i}") for i in range(2)]
        self.providers = [organisation(f"provider{i}") for i in range(2)]
        self.staff = [person(f"staff{i}", is_staff=True) for i in range(2)]
        self.deposited = 0
        self.paid = 0

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.life.__exit__(None, None, None)

    # What is watched

    def pass_time(self, seconds: int) -> None:
        self.at += timedelta(seconds=seconds, microseconds=seconds * 137 % 1_000_000)

    def earned(self) -> list[int]:
        found = [metering.earning(org, at=self.at) for org in self.providers]
        return [earning.posted_micro + earning.accruing_micro for earning in found]

    def available(self) -> list[int]:
        return [metering.position(org, at=self.at).available_micro for org in self.renters]

    @contextmanager
    def earnings_only_grow(self) -> Iterator[None]:
        before = self.earned()
        yield
        assert all(after >= was for after, was in zip(self.earned(), before, strict=True))

    def renter_account(self, number: int) -> Account:
        return ledger.account(Kind.RENTER_BALANCE, organisation=self.renters[number])

    def payable(self, number: int) -> Account:
        return ledger.account(Kind.PROVIDER_PAYABLE, organisation=self.providers[number])

    # Renting

    @rule(renter=two, micro=st.integers(1, 5 * USDC))
    def deposit(self, renter: int, micro: int) -> None:
        with self.earnings_only_grow():
            fund(self.renters[renter], micro, at=self.at)
        self.deposited += micro

    @rule(target=meters, renter=two, provider=two, rate=st.integers(1, 8 * USDC), bps=st.integers(0, 1500))
    def start(self, renter: int, provider: int, rate: int, bps: int) -> Meter:
        with self.earnings_only_grow():
            return start_meter(self.renters[renter], self.providers[provider], at=self.at, rate=rate, fee_bps=bps)

    @rule(meter=meters, seconds=st.integers(0, 9000))
    def run(self, meter: Meter, seconds: int) -> None:
        self.pass_time(seconds)
        with self.earnings_only_grow():
            metering.prove(until={meter.pk: self.at})

    @rule(all_of_them=st.booleans())
    def settle(self, all_of_them: bool) -> None:
        """Posting what accrued changes what nobody has."""
        earned, available = self.earned(), self.available()
        if all_of_them:
            metering.settle_payees(at=self.at)
        else:
            metering.settle(at=self.at)
        assert (self.earned(), self.available()) == (earned, available)

    @rule(meter=meters, seconds=st.integers(-100, 4000))
    def stop(self, meter: Meter, seconds: int) -> None:
        before = metering.accrued(Meter.objects.get(pk=meter.pk))
        closed = metering.close_meter(meter=meter, ended_at=self.at + timedelta(seconds=seconds), at=self.at)
        assert closed.closed
        assert closed.billed_seconds >= before.seconds or closed.ended_at < self.at

    @rule(meter=meters, minutes=st.integers(1, 120), advance=st.booleans())
    def break_down(self, meter: Meter, minutes: int, advance: bool) -> None:
        """The provider's side breaks it: closed at its last proof, and credited."""
        row = Meter.objects.get(pk=meter.pk)
        closed = metering.close_meter(meter=meter, ended_at=row.proved_until, at=self.at)
        left = closed.billed_gross_micro - closed.refunded_micro
        amount = min(left, closed.rate_micro_per_hour * minutes // 60)
        if not amount:
            return
        given = debts.credit(meter=closed, amount_micro=amount, data={}, advance=advance, at=self.at)
        assert given == debts.credit(meter=closed, amount_micro=amount, data={}, advance=advance, at=self.at)

    # Getting paid

    @rule(target=payouts, provider=two, micro=st.integers(1, 3 * USDC), recover=st.booleans())
    def reserve(self, provider: int, micro: int, recover: bool) -> tuple[Organisation, str, int, Account]:
        org, payable = self.providers[provider], self.payable(provider)
        if recover:
            owed, have = debts.open_debt(org), ledger.balance(payable)
            assert debts.recover(organisation=org, at=self.at, limit_micro=micro) == min(owed, have, micro)
        return self.set_aside(org, payable, micro)

    @rule(target=payouts, renter=two, micro=st.integers(1, 2 * USDC))
    def ask_back(self, renter: int, micro: int) -> tuple[Organisation, str, int, Account]:
        return self.set_aside(self.renters[renter], self.renter_account(renter), micro)

    def set_aside(self, org: Organisation, source: Account, micro: int) -> tuple[Organisation, str, int, Account]:
        reference = str(uuid.uuid4())
        transit = ledger.account(Kind.IN_TRANSIT, organisation=org, reference=reference)
        posting = Posting(f"payout:{reference}", source, transit, micro, Move.PAYOUT, reference)
        with self.earnings_only_grow() if source.kind == Kind.RENTER_BALANCE else nothing():
            metering.settle_payer(organisation=org, at=self.at)
            enough = micro <= ledger.balance(source)
            try:
                if source.kind == Kind.RENTER_BALANCE:
                    metering.move_and_fund(organisation=org, postings=[posting], at=self.at)
                else:
                    ledger.post_all([posting], at=self.at)
            except NotEnoughMoney:
                assert not enough
                micro = 0
            else:
                assert enough
        return org, reference, micro, source

    @rule(payout=consumes(payouts), end=st.sampled_from([Kind.PAID_CHAIN, Kind.PAID_BANK, "back", "returned"]))
    def finish(self, payout: tuple[Organisation, str, int, Account], end: str) -> None:
        org, reference, micro, source = payout
        if not micro:
            return
        transit = ledger.account(Kind.IN_TRANSIT, organisation=org, reference=reference)
        bank = ledger.account(Kind.PAID_BANK)
        steps = {
            "back": [Posting(f"back:{reference}", transit, source, micro, Move.BACK, reference)],
            "returned": [
                Posting(f"paid:{reference}", transit, bank, micro, Move.PAID, reference),
                Posting(f"returned:{reference}", bank, source, micro, Move.RETURNED, reference),
            ],
        }.get(end)
        if steps is None:
            steps = [Posting(f"paid:{reference}", transit, ledger.account(Kind(end)), micro, Move.PAID, reference)]
            self.paid += micro
        renters = [org] if source.kind == Kind.RENTER_BALANCE else []
        with self.earnings_only_grow():
            for step in steps:
                metering.move_and_fund_all(organisations=renters, postings=[step], at=self.at)

    # Corrections

    def decide(self, asked: Adjustment, *, yes: bool) -> None:
        with pytest.raises(adjustments.SecondPersonNeeded):
            adjustments.make(adjustment=asked, by=self.staff[0], at=self.at)
        if yes:
            try:
                adjustments.make(adjustment=asked, by=self.staff[1], at=self.at)
            except Refusal:
                # What can't be made is not left waiting: the same may be asked for again.
                adjustments.refuse(adjustment=asked, by=self.staff[1], note="no", at=self.at)
                raise
        else:
            adjustments.refuse(adjustment=asked, by=self.staff[1], note="no", at=self.at)

    @rule(meter=meters, micro=st.integers(1, 3 * USDC), from_earnings=st.booleans(), yes=st.booleans())
    def refund(self, meter: Meter, micro: int, from_earnings: bool, yes: bool) -> None:
        row = Meter.objects.get(pk=meter.pk)
        left, have = row.billed_gross_micro - row.refunded_micro, self.of_payee(row)
        try:
            asked = adjustments.ask_refund(
                meter=row, amount_micro=micro, from_earnings=from_earnings, reason="fault", by=self.staff[0], at=self.at
            )
            self.decide(asked, yes=yes)
        except RefundTooLarge:
            assert micro > left
        except NotEnoughMoney:
            assert from_earnings
            assert micro > have

    def of_payee(self, meter: Meter) -> int:
        return ledger.balance(ledger.account(Kind.PROVIDER_PAYABLE, organisation=meter.payee))

    @rule(meter=meters, part=st.sampled_from([Move.CHARGE, Move.FEE, Move.REFUND]))
    def reverse(self, meter: Meter, part: Move) -> None:
        transfer = Transfer.objects.filter(reference=str(meter.public_id), kind=part).order_by("-pk").first()
        if transfer is None:
            return
        try:
            asked = adjustments.ask_reversal(transfer=transfer, reason="mistake", by=self.staff[0], at=self.at)
            self.decide(asked, yes=True)
        except Refusal as refusal:
            code = refusal.code
        else:
            return
        assert code in {"already_reversed", "asked_already", "not_enough_money", "refund_too_large"}

    @rule(micro=st.integers(1, 2 * USDC), whence=st.integers(0, 5), whither=st.integers(0, 5))
    def adjust(self, micro: int, whence: int, whither: int) -> None:
        accounts = [self.renter_account(0), self.renter_account(1), self.payable(0), self.payable(1)]
        accounts += [ledger.account(Kind.ADJUSTMENTS), ledger.account(Kind.LOSS)]
        if whence == whither:
            return
        debit, credit = accounts[whence], accounts[whither]
        asked = adjustments.ask(
            kind=Adjustment.Kind.ADJUSTMENT,
            debit=debit,
            credit=credit,
            amount_micro=micro,
            reason="correction",
            by=self.staff[0],
            at=self.at,
        )
        before = ledger.balance(debit)
        try:
            self.decide(asked, yes=True)
        except NotEnoughMoney:
            # What a renter's meters used until now is billed first, so there may be less than was posted before.
            assert micro > before or debit.kind == Kind.RENTER_BALANCE

    @rule()
    def write_off(self) -> None:
        debt = ProviderDebt.objects.filter(state=ProviderDebt.State.OPEN).order_by("pk").first()
        if debt is not None:
            asked = adjustments.ask_write_off(debt=debt, reason="left", by=self.staff[0], at=self.at)
            self.decide(asked, yes=True)

    # What holds after every step

    @invariant()
    def the_books_hold(self) -> None:
        assert ledger.verify_books().problems == []
        assert not Account.objects.filter(balance_micro__lt=0).exists()
        assert -ledger.balance(ledger.account(Kind.TREASURY)) == self.deposited
        gone = ledger.balance(ledger.account(Kind.PAID_CHAIN)) + ledger.balance(ledger.account(Kind.PAID_BANK))
        assert gone == self.paid

    @invariant()
    def every_bill_is_exact_and_its_parts_sum_to_it(self) -> None:
        for meter in Meter.objects.all():
            assert meter.billed_gross_micro == metering.gross_of(meter.rate_micro_per_hour, meter.billed_seconds)
            assert meter.billed_fee_micro == metering.fee_of(meter.billed_gross_micro, meter.fee_bps)
            assert 0 <= meter.refunded_micro <= meter.billed_gross_micro

    @invariant()
    def nobody_uses_more_than_there_is(self) -> None:
        assert all(micro >= 0 for micro in self.available())


@contextmanager
def nothing() -> Iterator[None]:
    yield


def _live(*, lives: int, steps: int) -> None:
    run_state_machine_as_test(
        Books,
        settings=settings(
            max_examples=lives, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_the_books_hold_whatever_happens(db: None) -> None:
    _live(lives=20, steps=20)


@pytest.mark.soak
def test_the_books_hold_whatever_happens_for_long(db: None) -> None:
    _live(lives=300, steps=60)
