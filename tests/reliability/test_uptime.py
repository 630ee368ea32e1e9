"""What scores rest on: range arithmetic in SQL against the slow way, on pasts that were made up."""

from datetime import datetime, timedelta
from random import Random

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from providers.models import Machine, Provider
from reliability import events, formulas, recorded, scores, uptime
from reliability.score import micros
from tests.hosts import approved
from tests.reliability import histories

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.fixture
def provider(db: None) -> Provider:
    return approved(at=histories.SPRING - 120 * DAY)


def compare(machines: list[Machine], *, at: datetime) -> int:
    """Each machine's past by SQL and by the slow way, and the scores that follow. How many had anything declared."""
    fast = uptime.pasts_of([machine.pk for machine in machines], at=at, whole=True)
    told = 0
    for machine, events_ in zip(machines, recorded.read_all(machines).values(), strict=True):
        slow = events.past(events_, at=micros(at))
        quick = fast[machine.pk]
        assert [(card.key, list(card.owed), list(card.kept), list(card.runs)) for card in quick.cards] == [
            (card.key, list(card.owed), list(card.kept), list(card.runs)) for card in slow.cards
        ]
        assert sorted(map(repr, quick.jobs)) == sorted(map(repr, slow.jobs))
        assert (list(quick.owed), list(quick.connected)) == (list(slow.owed), list(slow.connected))
        for of_machine in formulas.FORMULAS.values():
            assert of_machine(quick) == of_machine(slow)
        assert scores.digest(quick) == scores.digest(slow)
        told += any(card.owed for card in slow.cards)
    return told


@pytest.mark.spec("I1")
@pytest.mark.parametrize("moment", [histories.SPRING, histories.AUTUMN], ids=["spring", "autumn"])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_sql_equals_the_slow_way_on_random_pasts(provider: Provider, moment: datetime, seed: int) -> None:
    with transaction.atomic():
        source = Random(seed)
        made = histories.machines(provider, 8, cards=source.randint(1, 3), at=moment)
        histories.random_outages(source, at=moment)
        for machine in made:
            histories.random_past(machine, source, at=moment)
        for back in (timedelta(), timedelta(seconds=30), 3 * DAY, 41 * DAY):
            compare(made, at=moment - back)
        transaction.set_rollback(True)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(60))
def test_sql_equals_the_slow_way_on_thousands_of_random_pasts(provider: Provider, seed: int) -> None:
    source = Random(1_000_000 + seed)
    moment = source.choice((histories.SPRING, histories.AUTUMN))
    made = histories.machines(provider, 60, cards=source.randint(1, 4), at=moment)
    histories.random_outages(source, at=moment, count=6)
    for machine in made:
        histories.random_past(machine, source, at=moment)
    told = sum(compare(made, at=moment - back) for back in (timedelta(), 9 * DAY, 30 * DAY))
    assert told > 60
