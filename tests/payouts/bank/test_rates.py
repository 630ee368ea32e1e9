"""Exchange rates: who enters them, which one counts, and that no cent is made of nothing."""

from datetime import datetime, timedelta

import pytest
from django.db import DatabaseError, transaction
from hypothesis import given
from hypothesis import strategies as st

from gpunex.accounts.models import User
from gpunex.policy.models import Policy
from payouts.approvals import StaffOnly
from payouts.bank import rates
from payouts.bank.rates import exchanged
from payouts.models import FxRate

from .conftest import USDC, person, quote

HOUR = timedelta(hours=1)


@given(st.integers(0, 10**15), st.integers(rates.LEAST_MICRO, rates.MOST_MICRO))
def test_what_is_cut_off_is_less_than_one_cent_and_nothing_costs_more_than_there_is(micro: int, rate: int) -> None:
    cents, cost = exchanged(micro, micro_per_unit=rate)
    assert 0 <= cost <= micro
    assert (micro - cost) * 100 < rate  # less than one cent's worth stays
    assert cost * 100 >= cents * rate  # the cents are paid for in full
    assert exchanged(cost, micro_per_unit=rate) == (cents, cost)  # and by the least amount that buys them
    assert cost == 0 or exchanged(cost - 1, micro_per_unit=rate)[0] == cents - 1


@pytest.mark.spec("H3")
@pytest.mark.django_db
def test_12_345678_payable_at_one_to_one_pays_12_34_and_keeps_the_rest(admin: User, at: datetime) -> None:
    rate = quote("USD", USDC, by=admin, at=at)
    converted = rates.convert(12_345_678, "USD", at)
    assert (converted.cents, converted.cost_micro, converted.rate) == (1234, 12_340_000, rate)


@pytest.mark.django_db
def test_without_a_rate_nothing_is_converted(admin: User, at: datetime) -> None:
    with pytest.raises(rates.RateMissing):
        rates.convert(USDC, "EUR", at)
    quote("USD", USDC, by=admin, at=at)
    with pytest.raises(rates.RateMissing):
        rates.convert(USDC, "EUR", at)


@pytest.mark.spec("H3")
@pytest.mark.django_db
def test_a_rate_is_good_for_the_policys_hours_and_no_minute_longer(admin: User, at: datetime) -> None:
    quote("EUR", 1_085_000, by=admin, at=at)
    quoted = at - HOUR
    assert rates.convert(100 * USDC, "EUR", quoted + timedelta(hours=24)).cents == 9216
    with pytest.raises(rates.RateTooOld, match="24 hours"):
        rates.convert(100 * USDC, "EUR", quoted + timedelta(hours=24, seconds=1))
    Policy.objects.update(rate_hours=48)
    assert rates.convert(100 * USDC, "EUR", quoted + timedelta(hours=40)).cents == 9216


@pytest.mark.django_db
def test_less_than_a_cent_is_nothing_that_a_bank_transfers(admin: User, at: datetime) -> None:
    quote("USD", USDC, by=admin, at=at)
    with pytest.raises(rates.LessThanOneCent):
        rates.convert(9_999, "USD", at)


@pytest.mark.django_db
def test_the_rate_that_was_quoted_last_counts_and_a_correction_at_the_same_time_too(admin: User, at: datetime) -> None:
    quote("EUR", 1_080_000, by=admin, at=at, ago=2 * HOUR)
    quote("EUR", 1_090_000, by=admin, at=at, ago=HOUR)
    corrected = quote("EUR", 1_085_000, by=admin, at=at, ago=HOUR)
    assert rates.rate_in_force("EUR", at) == corrected
    with pytest.raises(rates.RateOlderThanLast):
        quote("EUR", 1_070_000, by=admin, at=at, ago=2 * HOUR)
    assert rates.rate_in_force("EUR", at - timedelta(minutes=90)).micro_per_unit == 1_080_000


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"quoted_at": timedelta(minutes=1)}, rates.RateFromTheFuture),
        ({"quoted_at": -timedelta(hours=25)}, rates.RateStale),
        ({"source": "  "}, rates.SourceMissing),
        ({"micro_per_unit": 108_500}, rates.RateUnlikely),
        ({"micro_per_unit": 1_085_000_000}, rates.RateUnlikely),
        ({"micro_per_unit": 0}, rates.RateUnlikely),
    ],
)
@pytest.mark.django_db
def test_a_slip_is_refused_and_nothing_is_written(
    change: dict[str, object], refusal: type[Exception], admin: User, at: datetime
) -> None:
    fields: dict[str, object] = {"micro_per_unit": 1_085_000, "source": "Bank of Tests", "quoted_at": -HOUR} | change
    fields["quoted_at"] = at + fields["quoted_at"]  # type: ignore[operator]
    with pytest.raises(refusal) as caught:
        rates.enter(currency="EUR", by=admin, at=at, **fields)  # type: ignore[arg-type]
    assert str(caught.value)
    assert not FxRate.objects.exists()


@pytest.mark.django_db
def test_a_jump_of_more_than_five_percent_has_to_be_confirmed(admin: User, at: datetime) -> None:
    quote("EUR", 1_000_000, by=admin, at=at)

    def enter(micro: int, *, sure: bool = False) -> FxRate:
        return rates.enter(currency="EUR", micro_per_unit=micro, source="x", quoted_at=at, by=admin, at=at, sure=sure)

    for micro, percent in ((1_050_001, "5.0"), (1_123_400, "12.3"), (949_999, "5.0")):
        with pytest.raises(rates.RateJumps, match=f"{percent} %"):
            enter(micro)
    assert enter(1_050_000).micro_per_unit == 1_050_000
    assert enter(1_200_000, sure=True).micro_per_unit == 1_200_000


@pytest.mark.django_db
def test_only_an_administrator_enters_rates(at: datetime) -> None:
    with pytest.raises(StaffOnly):
        quote("EUR", 1_085_000, by=person(), at=at)


@pytest.mark.django_db
def test_a_rate_is_never_edited_nor_deleted(admin: User, at: datetime) -> None:
    rate = quote("EUR", 1_085_000, by=admin, at=at)
    for change in (
        lambda: FxRate.objects.filter(pk=rate.pk).update(micro_per_unit=1),
        lambda: FxRate.objects.filter(pk=rate.pk).delete(),
    ):
        with pytest.raises(DatabaseError), transaction.atomic():
            change()
    assert FxRate.objects.get().micro_per_unit == 1_085_000
