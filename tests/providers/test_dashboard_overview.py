"""The overview: what needs the provider, the first steps, and figures that are the ledger's."""

from datetime import UTC, datetime, timedelta

import pytest
from django.urls import reverse

from billing import metering
from gpunex.kit import show
from gpunex.policy.models import Tier
from marketplace.models import Listing
from providers import tiers
from providers.models import Gpu, Machine, MaintenanceWindow, Provider
from providers.views import income
from providers.views.score import score_rows
from reliability.models import Score
from tests.marketplace.conftest import USDC, machine, offer, provider, rent, renter_with, report, run_for
from tests.providers.test_dashboard_pages import signed_in

pytestmark = pytest.mark.django_db


@pytest.fixture
def noon() -> datetime:
    """A Wednesday noon: no midnight and no period's end is near."""
    return datetime(2026, 10, 14, 12, 0, tzinfo=UTC)


def overview(owner: Provider, language: str = "en") -> str:
    return signed_in(owner, language).get(reverse("providers:overview")).text


def test_the_first_steps_stand_until_something_is_rented_and_paid(now: datetime) -> None:
    owner = provider(at=now)
    text = overview(owner)
    for step in ("Getting started", "Install the agent", "Set a price", "Connect a wallet", "First rental"):
        assert step in text
    assert "needs you" not in text


@pytest.mark.spec("B5", "C4")
def test_what_needs_somebody_is_said_worst_first_with_one_action_each(now: datetime) -> None:
    listing = offer(at=now)
    owner = listing.machine.provider
    away = machine(owner, at=now - timedelta(minutes=5), name="oslo-1")
    Gpu.objects.filter(machine=listing.machine, index=0).update(
        delisted_at=now, delisted_reason={"code": "performance", "performance": 71.2, "floor": 80.0}
    )
    MaintenanceWindow.objects.create(
        machine=listing.machine, starts_at=now + timedelta(days=2), ends_at=now + timedelta(days=2, hours=1)
    )
    text = overview(owner)
    order = [text.index(words) for words in ("has been offline since", "was delisted", "Maintenance on")]
    assert order == sorted(order)
    assert reverse("providers:machine", args=[away.public_id]) in text


def test_many_machines_that_are_away_are_one_line(now: datetime) -> None:
    owner = provider(at=now)
    for _ in range(6):
        machine(owner, at=now - timedelta(hours=1))
    assert "6 machines are offline" in overview(owner)


def test_a_machine_below_its_tier_says_why(now: datetime) -> None:
    owner = provider(tier="enterprise", at=now)
    row = machine(owner, at=now)
    Machine.objects.filter(pk=row.pk).update(
        tier=Tier.COMMUNITY, tier_reasons={"host": [{"code": "ups", "have": None, "needed": None}]}
    )
    row.refresh_from_db()
    text = overview(owner)
    assert "is offered as community" in text
    assert str(tiers.reasons_of(row)[0]) in text


@pytest.mark.spec("G2")
def test_what_was_earned_is_what_the_meter_says_to_the_last_digit(now: datetime) -> None:
    started = max(now - timedelta(hours=3), datetime(now.year, now.month, now.day, tzinfo=UTC))
    listing = offer(at=started, price=2 * USDC)
    owner = listing.machine.provider
    rental = rent(renter_with(100 * USDC, at=started), listing, at=started, gpu_count=2)
    until = run_for(rental, int((now - started).total_seconds()), at=started)
    meter = report(rental, "running", at=until).meter
    net = metering.accrued(meter).net_micro
    assert income.by_machine(owner.organisation, since=income.monday(now)) == {listing.machine_id: net}
    text = overview(owner)
    assert show.usdc(net) in text
    assert f"<dd>{show.usdc(3_600_000)} <small>" in text  # 2 GPUs at 2.00, less 10 %: earning now per hour


def test_income_of_a_week_leaves_out_what_was_earned_before_it(noon: datetime) -> None:
    listing = offer(at=noon, price=USDC)
    rental = rent(renter_with(100 * USDC, at=noon), listing, at=noon)
    end = run_for(rental, 3 * 3600, at=noon)
    report(rental, "finished", at=end, exit_code=0, cause="completed", finished_at=end)
    owner = listing.machine.provider.organisation
    assert income.by_machine(owner, since=noon) == {listing.machine_id: 2_700_000}
    assert income.by_machine(owner, since=noon + timedelta(hours=2)) == {listing.machine_id: 900_000}
    assert income.by_machine(owner, since=end + timedelta(seconds=1)) == {}


def test_the_rented_share_counts_gpu_hours(noon: datetime) -> None:
    listing = offer(at=noon)
    rental = rent(renter_with(100 * USDC, at=noon), listing, at=noon, gpu_count=2)
    end = run_for(rental, 3600, at=noon)
    report(rental, "finished", at=end, exit_code=0, cause="completed", finished_at=end)
    share = income.rented_seconds(listing.machine.provider, start=noon - timedelta(days=1), end=end + timedelta(days=1))
    assert share == 2 * 3600


@pytest.mark.spec("I4")
@pytest.mark.parametrize(
    "parts", [(0.9968, 0.9927, 0.984), (1.0, 1.0, 1.0), (0.99999, 0.99999, 0.99999), (0.0, 0.333333, 0.666666)]
)
def test_the_points_of_the_parts_sum_to_the_score_that_is_shown(parts: tuple[float, float, float]) -> None:
    uptime, completion, consistency = parts
    total = 50 * uptime + 30 * completion + 20 * consistency
    rows = score_rows(Score(uptime=uptime, completion=completion, consistency=consistency))
    hundredths = [round(float(row["points"]) * 100) for row in rows]
    assert sum(hundredths) == int(total * 100 + 1e-6)
    for row, points in zip(rows, hundredths, strict=True):
        assert round(float(row["loss"]) * 100) + points == 100 * int(row["of"])


def test_gauges_agree_with_the_machines(now: datetime) -> None:
    listing = offer(at=now, gpus=3)
    rental = rent(renter_with(100 * USDC, at=now), listing, at=now, gpu_count=1)
    report(rental, "running", at=now)
    text = overview(listing.machine.provider)
    assert "Connected, 1 rented, 2 free" in text
    assert Listing.objects.get(pk=listing.pk).gpus_free == 2
