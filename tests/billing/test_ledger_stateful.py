"""Random lives of renters and providers: the books hold after every step."""

import uuid
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from billing import ledger, metering
from billing.ledger import Kind, Move, NotEnoughMoney, Posting
from billing.models import Account, Meter

from .conftest import fund, organisation, start_meter

USDC = 1_000_000


class Books(RuleBasedStateMachine):
    """Two renters, two providers, a clock. What was deposited is the only source of money."""

    meters = Bundle("meters")

    def __init__(self) -> None:
        super().__init__()
        self.life = transaction.atomic()
        self.life.__enter__()
        self.at = datetime(2026, 10, 14, 22, 0, tzinfo=UTC)
        self.renters = [organisation(f"renter{i}") for i in range(2)]
        self.providers = [organisation(f"provider{i}") for i in range(2)]
        self.deposited = 0

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.life.__exit__(None, None, None)

    def pass_time(self, seconds: int) -> None:
        self.at += timedelta(seconds=seconds, microseconds=seconds * 137 % 1_000_000)

    @rule(renter=st.integers(0, 1), micro=st.integers(1, 5 * USDC))
    def deposit(self, renter: int, micro: int) -> None:
        fund(self.renters[renter], micro, at=self.at)
        self.deposited += micro

    @rule(
        target=meters,
        renter=st.integers(0, 1),
        provider=st.integers(0, 1),
        rate=st.integers(1, 8 * USDC),
        bps=st.integers(0, 1500),
    )
    def start(self, renter: int, provider: int, rate: int, bps: int) -> Meter:
        return start_meter(self.renters[renter], self.providers[provider], at=self.at, rate=rate, fee_bps=bps)

    @rule(meter=meters, seconds=st.integers(0, 9000))
    def run(self, meter: Meter, seconds: int) -> None:
        self.pass_time(seconds)
        metering.prove(until={meter.pk: self.at})

    @rule(all_of_them=st.booleans())
    def settle(self, all_of_them: bool) -> None:
        if all_of_them:
            metering.settle_payees(at=self.at)
        else:
            metering.settle(at=self.at)

    @rule(meter=meters, seconds=st.integers(-100, 4000))
    def stop(self, meter: Meter, seconds: int) -> None:
        before = metering.accrued(Meter.objects.get(pk=meter.pk))
        closed = metering.close_meter(meter=meter, ended_at=self.at + timedelta(seconds=seconds), at=self.at)
        assert closed.closed
        assert closed.billed_seconds >= before.seconds or closed.ended_at < self.at

    @rule(provider=st.integers(0, 1), micro=st.integers(1, 3 * USDC))
    def pay_out(self, provider: int, micro: int) -> None:
        org, reference = self.providers[provider], uuid.uuid4()
        transit = ledger.account(Kind.IN_TRANSIT, organisation=org, reference=reference)
        payable = ledger.account(Kind.PROVIDER_PAYABLE, organisation=org)
        enough = micro <= ledger.balance(payable)
        with nullcontext() if enough else pytest.raises(NotEnoughMoney):
            ledger.post(
                key=f"payout:{reference}",
                debit=payable,
                credit=transit,
                amount_micro=micro,
                kind=Move.PAYOUT,
                at=self.at,
            )
        if not enough:
            return
        goes, kind = (ledger.account(Kind.PAID_CHAIN), Move.PAID) if micro % 2 else (payable, Move.BACK)
        ledger.post(key=f"paid:{reference}", debit=transit, credit=goes, amount_micro=micro, kind=kind, at=self.at)

    @rule(renter=st.integers(0, 1), micro=st.integers(1, 2 * USDC))
    def take_from_a_renter(self, renter: int, micro: int) -> None:
        org = self.renters[renter]
        posting = Posting(
            key=str(uuid.uuid4()),
            debit=ledger.account(Kind.RENTER_BALANCE, organisation=org),
            credit=ledger.account(Kind.ADJUSTMENTS),
            amount_micro=micro,
            kind=Move.ADJUSTMENT,
        )
        have = ledger.balance(posting.debit)
        with nullcontext() if micro <= have else pytest.raises(NotEnoughMoney):
            metering.move_and_fund(organisation=org, postings=[posting], at=self.at)

    @invariant()
    def the_books_hold(self) -> None:
        assert ledger.verify_books().problems == []
        assert not Account.objects.filter(balance_micro__lt=0).exists()
        assert -ledger.balance(ledger.account(Kind.TREASURY)) == self.deposited
        for meter in Meter.objects.all():
            assert meter.billed_gross_micro == metering.gross_of(meter.rate_micro_per_hour, meter.billed_seconds)
            assert meter.billed_fee_micro == metering.fee_of(meter.billed_gross_micro, meter.fee_bps)


def test_the_books_hold_whatever_happens(db: None) -> None:
    run_state_machine_as_test(
        Books,
        settings=settings(
            max_examples=15, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
