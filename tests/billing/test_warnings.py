"""Telling a payer before the money ends: once a crossing, only the more urgent, and not again for a cent."""

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from billing import metering, warnings
from billing.models import BalanceWarning
from gpunex.accounts.models import Notice, Organisation
from gpunex.accounts.notices import in_words
from gpunex.outbox.models import Message
from gpunex.policy.models import Policy

from .conftest import USDC, fund, organisation, start_meter

HOUR = timedelta(hours=1)
LOW, ENDING = "balance_low", "balance_ending"


@pytest.fixture
def provider(db: None) -> Organisation:
    return organisation("provider")


def told(org: Organisation) -> list[str]:
    return list(Notice.objects.filter(organisation=org).order_by("pk").values_list("event", flat=True))


def renter_with(hours: int, provider: Organisation, *, at: datetime, rate: int = USDC) -> Organisation:
    org = organisation("renter")
    fund(org, hours * rate, at=at)
    start_meter(org, provider, at=at, rate=rate)
    return org


@pytest.mark.spec("F2")
def test_each_line_is_told_once_with_what_runs_what_it_costs_and_until_when(
    provider: Organisation, noon: datetime
) -> None:
    renter = renter_with(30, provider, at=noon)
    assert warnings.warn(at=noon) == 0
    assert warnings.warn(at=noon + 6 * HOUR) == 1
    assert warnings.warn(at=noon + 7 * HOUR) == 0
    assert warnings.warn(at=noon + 29 * HOUR) == 1
    assert warnings.warn(at=noon + 29 * HOUR + timedelta(minutes=30)) == 0
    assert told(renter) == [LOW, ENDING]
    words = in_words(Notice.objects.get(organisation=renter, event=LOW))
    text = " ".join([words["subject"], *words["paragraphs"]])
    assert "15 Oct 2026, 18:00 UTC" in text
    assert "1.00 USDC per hour" in text
    assert "1 × H100 80GB (fra-1)" in text
    assert Message.objects.filter(event__in=[LOW, ENDING]).count() == 2


def test_a_rental_that_starts_with_little_money_brings_one_mail_the_more_urgent(
    provider: Organisation, noon: datetime
) -> None:
    renter = renter_with(1, provider, at=noon)
    assert warnings.warn(at=noon) == 1
    assert warnings.warn(at=noon + timedelta(minutes=5)) == 0
    assert told(renter) == [ENDING]
    assert BalanceWarning.objects.filter(organisation=renter, lifted_at=None).count() == 2


def test_a_cent_at_the_line_brings_no_second_mail(provider: Organisation, noon: datetime) -> None:
    renter = renter_with(24, provider, at=noon)
    assert warnings.warn(at=noon) == 1
    for minute in range(1, 6):
        fund(renter, USDC // 10, at=noon + timedelta(minutes=minute))
        assert warnings.warn(at=noon + timedelta(minutes=minute)) == 0
    assert told(renter) == [LOW]


def test_it_is_told_again_after_the_balance_lasted_well_beyond_the_line(provider: Organisation, noon: datetime) -> None:
    renter = renter_with(20, provider, at=noon)
    warnings.warn(at=noon)
    fund(renter, 20 * USDC, at=noon)
    assert warnings.warn(at=noon + HOUR) == 0
    assert BalanceWarning.objects.get(organisation=renter).lifted_at == noon + HOUR
    assert warnings.warn(at=noon + 17 * HOUR) == 1
    assert told(renter) == [LOW, LOW]


def test_a_smaller_burn_lifts_it_and_a_larger_one_brings_it(provider: Organisation, noon: datetime) -> None:
    renter = organisation("renter")
    fund(renter, 40 * USDC, at=noon)
    start_meter(renter, provider, at=noon, rate=USDC)
    assert warnings.warn(at=noon) == 0
    more = start_meter(renter, provider, at=noon, rate=USDC)
    assert warnings.warn(at=noon) == 1
    metering.close_meter(meter=more, ended_at=noon, at=noon)
    assert warnings.warn(at=noon + timedelta(minutes=1)) == 0
    assert BalanceWarning.objects.get(organisation=renter).lifted_at is not None


def test_many_short_rentals_on_a_small_balance_bring_one_mail(provider: Organisation, noon: datetime) -> None:
    renter = organisation("renter")
    fund(renter, 3 * USDC, at=noon)
    for number in range(5):
        at = noon + number * timedelta(minutes=2)
        meter = start_meter(renter, provider, at=at, rate=USDC)
        warnings.warn(at=at)
        metering.close_meter(meter=meter, ended_at=at + timedelta(minutes=1), at=at + timedelta(minutes=1))
        warnings.warn(at=at + timedelta(minutes=1))
    assert told(renter) == [LOW]


def test_no_warning_comes_after_the_fact_and_none_to_who_rents_nothing(
    provider: Organisation, noon: datetime, make_organisation: Callable[..., Organisation]
) -> None:
    renter_with(1, provider, at=noon)
    idle = make_organisation("idle")
    fund(idle, USDC, at=noon)
    assert warnings.warn(at=noon + 2 * HOUR) == 0
    assert not BalanceWarning.objects.exists()


def test_the_hours_are_the_policys(provider: Organisation, noon: datetime) -> None:
    Policy.load()
    Policy.objects.update(warning_hours_early=6, warning_hours_late=2)
    renter = renter_with(10, provider, at=noon)
    warnings.warn(at=noon)
    assert told(renter) == []
    warnings.warn(at=noon + 4 * HOUR)
    warnings.warn(at=noon + 8 * HOUR)
    assert told(renter) == [LOW, ENDING]


def test_many_payers_cost_no_query_each(
    provider: Organisation, noon: datetime, django_assert_max_num_queries: Callable[[int], object]
) -> None:
    for _ in range(5):
        renter_with(100, provider, at=noon)
    Policy.load()
    with django_assert_max_num_queries(3):
        assert warnings.warn(at=noon) == 0
