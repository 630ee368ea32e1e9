"""Samples: kept once, by corrected clocks, by day; rolled up by hour; and read again for charts."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpunex.kit.time import iso_z
from providers import machines
from reliability import partitions, rollups, telemetry
from reliability.models import LateHour, Rollup, Sample, SampleHour
from reliability.partitions import HOURS, SAMPLES
from tests.hosts import Host, approved, connected

pytestmark = pytest.mark.django_db
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def host(now: datetime) -> Host:
    return connected(approved(at=now), at=now, count=2)


def reading(host: Host, *, at: datetime, index: int = 0, **values: Any) -> dict[str, Any]:
    none = dict.fromkeys(telemetry.READINGS)
    return {**none, "gpu_uuid": host.cards[index]["uuid"], "at": at, **values}


def keep(host: Host, samples: Sequence[dict[str, Any]], *, at: datetime) -> int | None:
    machine = host.machine
    return telemetry.keep([telemetry.Post(machine.public_id, machine.secret_hash, samples, at)])[0]


# --- pieces ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "after"),
    [
        ("2026-12-31T23:59:59.999999+00:00", "reliability_sample_20261231", "2027-01-01"),
        ("2027-01-01T00:00:00+00:00", "reliability_sample_20270101", "2027-01-02"),
        ("2027-01-01T00:30:00+03:00", "reliability_sample_20261231", "2027-01-01"),  # still yesterday in UTC
        ("2028-02-29T12:00:00+00:00", "reliability_sample_20280229", "2028-03-01"),
        ("2026-03-29T02:30:00+02:00", "reliability_sample_20260329", "2026-03-30"),  # a night of 23 hours elsewhere
    ],
)
def test_a_moment_belongs_to_its_utc_day(text: str, name: str, after: str) -> None:
    found, _first, end = SAMPLES.bounds(datetime.fromisoformat(text))
    assert (found, str(end)) == (name, after)


def test_days_to_come_are_made_and_days_that_are_over_dropped_whole(now: datetime, host: Host) -> None:
    gpu = host.gpus[0]
    partitions.make_for(SAMPLES, [now - number * DAY for number in range(12)])
    for number in (0, 6, 9, 11):
        Sample.objects.create(machine_id=gpu.machine_id, gpu=gpu, at=now - number * DAY)
    done = partitions.keep_up(SAMPLES, at=now)
    assert done["dropped"] >= 4
    assert Sample.objects.count() == 2
    names = partitions.pieces(SAMPLES)
    assert names[0] == SAMPLES.bounds(now - 7 * DAY)[0]
    assert names[-1] >= SAMPLES.bounds(now + 3 * DAY)[0]
    assert partitions.keep_up(SAMPLES, at=now) == {"made": 0, "dropped": 0}


def test_a_sample_of_a_day_that_nobody_made_is_kept(now: datetime, host: Host) -> None:
    later = now + 400 * DAY
    assert SAMPLES.bounds(later)[0] not in partitions.pieces(SAMPLES)
    assert keep(host, [reading(host, at=later - number * HOUR) for number in range(20)], at=later) == 20
    assert Sample.objects.filter(at__gt=later - DAY).count() == 20
    assert SAMPLES.bounds(later)[0] in partitions.pieces(SAMPLES)


@given(
    offset=st.integers(min_value=-3, max_value=3),
    base=st.sampled_from(["2027-12-31", "2028-02-29", "2027-03-28", "2027-10-31"]),
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_around_midnight_each_sample_lies_in_its_own_day(offset: int, base: str, host: Host) -> None:
    midnight = datetime.fromisoformat(f"{base}T00:00:00+00:00") + DAY
    moment = midnight + timedelta(microseconds=offset)
    assert keep(host, [reading(host, at=moment)], at=midnight + MINUTE) == 1
    with connection.cursor() as cursor:
        cursor.execute("SELECT tableoid::regclass::text FROM reliability_sample WHERE at = %s", [moment])
        assert cursor.fetchone()[0] == f"reliability_sample_{moment:%Y%m%d}"


# --- keeping ---------------------------------------------------------------------------------------------------------


def test_a_secret_of_no_machine_writes_nothing(host: Host, now: datetime) -> None:
    post = telemetry.Post(host.machine.public_id, "0" * 64, [reading(host, at=now)], now)
    assert telemetry.keep([post]) == [None]
    machines.retire(machine=host.machine, at=now)
    assert keep(host, [reading(host, at=now)], at=now) is None
    assert not Sample.objects.exists()


def test_many_hosts_are_one_statement(now: datetime, django_assert_max_num_queries: Any) -> None:
    provider = approved(at=now)
    owned = [connected(provider, at=now, count=1) for _ in range(3)]
    posts = [
        telemetry.Post(host.machine.public_id, host.machine.secret_hash, [reading(host, at=now - n * SECOND) for n in range(5)], now)
        for host in owned
    ]  # fmt: skip
    with django_assert_max_num_queries(3):  # with its savepoint
        assert telemetry.keep(posts) == [5, 5, 5]


@pytest.mark.spec("B4")
def test_a_clock_an_hour_off_is_corrected_by_what_it_said_when_it_sent(host: Host, now: datetime) -> None:
    for ahead in (HOUR, -HOUR, 3 * DAY):
        at = now + ahead
        sample = {"gpu_uuid": host.cards[0]["uuid"], "at": iso_z(at - 5 * SECOND)}
        answer = host.call("telemetry", {"samples": [sample], "sent_at": iso_z(at)})
        assert answer.json()["kept"] == 1
    kept = list(Sample.objects.values_list("at", flat=True))
    assert len(kept) == 3
    assert all(abs(at - (now - 5 * SECOND)) < 30 * SECOND for at in kept)


# --- hours -----------------------------------------------------------------------------------------------------------


def full(now: datetime) -> datetime:
    """Ten minutes into an hour."""
    return now.astimezone(UTC).replace(minute=10, second=0, microsecond=0)


def test_an_hour_says_least_mean_and_most_and_what_held_it_back(host: Host, now: datetime) -> None:
    at = full(now)
    heats = [(40, []), (60, ["gpu_idle"]), (80, ["hw_thermal_slowdown"]), (None, ["sw_power_cap"])]
    samples = [
        reading(host, at=at - HOUR + n * SECOND, temperature_c=heat, power_w=100.0 * n, throttle_reasons=reasons)
        for n, (heat, reasons) in enumerate(heats)
    ]
    keep(host, samples, at=at - HOUR + 20 * SECOND)
    assert rollups.roll_up(at=at)["hours"] >= 1
    hour = SampleHour.objects.get()
    assert hour.hour == (at - HOUR).replace(minute=0)
    assert (hour.samples, hour.temperature_least, hour.temperature_mean, hour.temperature_most) == (4, 40, 60, 80)
    assert (hour.power_mean, hour.utilization_mean) == (150, None)
    assert (hour.held_back, hour.too_hot) == (0.5, 0.25)
    before = list(SampleHour.objects.values())
    Rollup.objects.update(until=hour.hour)
    rollups.roll_up(at=at)
    assert list(SampleHour.objects.values()) == before


def test_a_day_that_comes_late_is_rolled_up_again(host: Host, now: datetime) -> None:
    at = full(now)
    keep(host, [reading(host, at=at - 20 * HOUR, temperature_c=40)], at=at - 20 * HOUR)
    rollups.roll_up(at=at)
    assert not LateHour.objects.exists()
    late = [reading(host, at=at - number * HOUR, index=1, temperature_c=70) for number in range(1, 25)]
    assert keep(host, late, at=at) == 24
    assert keep(host, late, at=at) == 24
    assert LateHour.objects.count() == 24
    assert rollups.roll_up(at=at) == {"hours": 0, "late": 24}
    assert not LateHour.objects.exists()
    assert SampleHour.objects.filter(gpu__index=1).count() == 24
    assert SampleHour.objects.get(gpu__index=0).temperature_mean == 40


def test_what_comes_within_the_grace_of_its_hour_is_not_late(host: Host, now: datetime) -> None:
    turn = full(now).replace(minute=0)
    keep(host, [reading(host, at=turn - SECOND)], at=turn + 30 * SECOND)
    assert not LateHour.objects.exists()
    rollups.roll_up(at=turn + 4 * MINUTE)
    assert not SampleHour.objects.exists()
    rollups.roll_up(at=turn + 6 * MINUTE)
    assert SampleHour.objects.count() == 1


@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rolled_up_in_any_order_the_hours_are_what_the_samples_say(
    data: st.DataObject, host: Host, now: datetime
) -> None:
    """Batches that come in time, late, twice; sweeps between them: in the end as a slow reference says."""
    SampleHour.objects.all().delete()
    Sample.objects.all().delete()
    LateHour.objects.all().delete()
    at = full(now)
    Rollup.objects.update_or_create(pk=1, defaults={"until": at.replace(minute=0) - 10 * HOUR})
    moments = st.integers(min_value=0, max_value=8 * 3600)
    kept: dict[tuple[int, datetime], int] = {}
    gpus = {gpu.index: gpu.pk for gpu in host.gpus}
    for step in range(data.draw(st.integers(min_value=1, max_value=4))):
        received = at - (4 - step) * HOUR
        found = data.draw(st.lists(st.tuples(st.sampled_from([0, 1]), moments, st.integers(20, 90)), max_size=6))
        batch = [(index, received - second * SECOND, heat) for index, second, heat in found]
        keep(
            host,
            [reading(host, at=moment, index=index, temperature_c=heat) for index, moment, heat in batch],
            at=received,
        )
        for index, moment, heat in batch:
            kept.setdefault((gpus[index], moment), heat)
        if data.draw(st.booleans()):
            rollups.roll_up(at=received)
    rollups.roll_up(at=at)
    expected: dict[tuple[int, datetime], list[float]] = {}
    for (gpu, moment), heat in kept.items():
        hour = moment.replace(minute=0, second=0, microsecond=0)
        if hour + HOUR <= at - rollups.GRACE:
            expected.setdefault((gpu, hour), []).append(heat)
    rows = SampleHour.objects.values_list(
        "gpu_id", "hour", "samples", "temperature_least", "temperature_mean", "temperature_most"
    )
    assert {(gpu, hour): (count, low, round(mean or 0, 9), high) for gpu, hour, count, low, mean, high in rows} == {
        key: (len(heats), min(heats), round(sum(heats) / len(heats), 9), max(heats)) for key, heats in expected.items()
    }


# --- charts ----------------------------------------------------------------------------------------------------------


def test_a_chart_has_holes_where_nothing_was_read_and_no_zeros(host: Host, now: datetime) -> None:
    at = full(now)
    keep(host, [reading(host, at=at - n * MINUTE, temperature_c=50 + n) for n in (1, 2, 40)], at=at)
    shown = telemetry.series(gpus=[gpu.pk for gpu in host.gpus], reach="1h", at=at)
    heat = shown.cards[host.gpus[0].pk]["temperature"]
    assert len(heat) == shown.count == 120
    assert sorted(point for point in heat if point) == [(51, 51, 51), (52, 52, 52), (90, 90, 90)]
    assert set(shown.cards[host.gpus[1].pk]["temperature"]) == {None}
    assert set(shown.cards[host.gpus[0].pk]["power"]) == {None}


@pytest.mark.parametrize("reach", ["7d", "30d"])
def test_a_long_chart_joins_hours_and_what_is_not_rolled_up_yet(reach: Any, host: Host, now: datetime) -> None:
    at = full(now)
    for back, heat in ((26 * HOUR, 40), (2 * HOUR, 60)):
        keep(host, [reading(host, at=at - back, temperature_c=heat)], at=at - back)
    rollups.roll_up(at=at)
    keep(host, [reading(host, at=at - MINUTE, temperature_c=80)], at=at)
    shown = telemetry.series(gpus=[gpu.pk for gpu in host.gpus], reach=reach, at=at)
    known = [point for point in shown.of_all("temperature") if point]
    assert min(low for low, _, _ in known) == 40
    assert known[-1][2] == (80 if reach == "7d" else 60)  # a month shows the last hour once it is rolled up
    assert shown.start + shown.step * shown.count > at


def test_the_newest_sample_of_each_card_is_found_by_its_key(
    host: Host, now: datetime, django_assert_num_queries: Any
) -> None:
    keep(host, [reading(host, at=now - n * HOUR, temperature_c=n) for n in range(20)], at=now)
    gpus = [gpu.pk for gpu in host.gpus]
    with django_assert_num_queries(1):
        found = telemetry.last_samples(gpus)
    assert [(gpu, sample.at) for gpu, sample in found.items()] == [(host.gpus[0].pk, now)]


def test_months_are_dropped_after_thirteen(now: datetime) -> None:
    old = now - 500 * DAY
    partitions.make_for(HOURS, [old])
    assert HOURS.bounds(old)[0] in partitions.pieces(HOURS)
    assert partitions.keep_up(HOURS, at=now)["dropped"] == 1
    assert HOURS.bounds(old)[0] not in partitions.pieces(HOURS)
