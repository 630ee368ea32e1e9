"""The Balance list: in the order of what it shows, exact at every line, the uppermost one the posted balance."""

from datetime import UTC, datetime, timedelta

import pytest

from billing import adjustments, ledger, metering
from billing.history import Line, Lines
from billing.ledger import Kind, Move
from billing.models import Meter, Transfer
from gpunex.accounts.models import Organisation

from .conftest import USDC, fund, owned, person, start_meter

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


def lines_of(org: Organisation) -> list[Line]:
    return Lines(org)[0:1000]


def running(meter: Meter, *, until: datetime) -> None:
    metering.prove(until={meter.pk: until})
    metering.settle_payer(organisation=meter.payer, at=until)


def ordered_and_exact(org: Organisation) -> list[Line]:
    lines = lines_of(org)
    assert [line.at for line in lines] == sorted((line.at for line in lines), reverse=True)
    balance = 0
    for line in reversed(lines):
        balance += line.amount_micro
        assert line.balance_micro == balance
    assert lines[0].balance_micro == owned(org)
    return lines


def test_a_long_rental_and_what_came_between_stand_in_the_order_of_their_times(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    long = start_meter(renter, provider, at=noon, rate=USDC)
    short = start_meter(renter, provider, at=noon + HOUR, rate=USDC)
    metering.close_meter(meter=short, ended_at=noon + HOUR + 10 * SECOND, at=noon + HOUR + 10 * SECOND)
    fund(renter, 5 * USDC, at=noon + 2 * HOUR)
    running(long, until=noon + 30 * HOUR)
    found = [(line.kind, line.meter, line.at.astimezone(UTC).day) for line in ordered_and_exact(renter)]
    assert found == [
        ("charge", long, 15),
        ("charge", long, 14),
        (Move.DEPOSIT, None, 14),
        ("charge", short, 14),
        (Move.DEPOSIT, None, 14),
    ]


def test_a_day_that_is_posted_after_midnight_stays_below_what_came_after_it(
    renter: Organisation, provider: Organisation
) -> None:
    late = datetime(2026, 10, 14, 23, 50, tzinfo=UTC)
    meter = start_meter(renter, provider, at=late, rate=USDC)
    metering.prove(until={meter.pk: late + 30 * 60 * SECOND})
    fund(renter, USDC, at=late + 15 * 60 * SECOND)  # five past midnight, before the day that ended was posted
    metering.settle_payer(organisation=renter, at=late + HOUR)
    lines = ordered_and_exact(renter)
    assert [line.kind for line in lines[:3]] == ["charge", Move.DEPOSIT, "charge"]
    assert [line.seconds for line in lines if line.kind == "charge"] == [1200, 600]


def test_many_ten_second_rentals_are_a_line_each_and_pages_agree(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    for number in range(45):
        at = noon + number * 20 * SECOND
        meter = start_meter(renter, provider, at=at, rate=3_600_000)
        metering.close_meter(meter=meter, ended_at=at + 10 * SECOND, at=at + 10 * SECOND)
    lines = ordered_and_exact(renter)
    assert len(lines) == len(Lines(renter)) == 46
    assert {line.seconds for line in lines if line.meter} == {10}
    pages = [line for start in range(0, 46, 20) for line in Lines(renter)[start : start + 20]]
    assert pages == lines


@pytest.mark.spec("G1")
def test_a_refund_and_a_reversed_charge_name_the_rental_and_the_reason(
    renter: Organisation, provider: Organisation, noon: datetime
) -> None:
    meter = start_meter(renter, provider, at=noon, rate=USDC)
    metering.close_meter(meter=meter, ended_at=noon + HOUR, at=noon + HOUR)
    first, second = (person(name, is_staff=True) for name in ("first", "second"))
    meter.refresh_from_db()
    asked = [
        adjustments.ask_refund(
            meter=meter, amount_micro=10, from_earnings=False, reason="slow disk", by=first, at=noon + HOUR
        ),
        adjustments.ask_reversal(
            transfer=Transfer.objects.get(kind=Move.FEE), reason="fee waived", by=first, at=noon + HOUR
        ),
        adjustments.ask(
            kind="adjustment",
            debit=ledger.account(Kind.LOSS),
            credit=ledger.account(Kind.RENTER_BALANCE, organisation=renter),
            amount_micro=7,
            reason="goodwill",
            by=first,
            at=noon + HOUR,
        ),
    ]
    for one in asked:
        adjustments.make(adjustment=one, by=second, at=noon + 2 * HOUR)
    lines = ordered_and_exact(renter)
    told = [(line.kind, line.reason, line.refund_of) for line in lines[:3]]
    assert told == [("adjustment", "goodwill", None), ("reversal", "fee waived", meter), ("refund", "slow disk", meter)]
    assert lines[3].is_charge
    assert len(Lines(renter, kinds=["refund"])) == 1
