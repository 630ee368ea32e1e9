"""Enrolments that meet each other."""

import threading
from collections.abc import Callable
from datetime import datetime

import pytest
from django.db import connection

from providers import keys
from providers.models import Gpu, Machine
from tests import hosts
from tests.hosts import Host, approved, card

pytestmark = pytest.mark.usefixtures("committed")


def all_at_once(*calls: Callable[[], int]) -> list[int]:
    """The answers' status codes, sorted."""
    barrier, answers = threading.Barrier(len(calls)), []

    def one(call: Callable[[], int]) -> None:
        barrier.wait()
        try:
            answers.append(call())
        finally:
            connection.close()

    threads = [threading.Thread(target=one, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(answers)


def test_a_host_that_enrols_twice_at_once_is_one_machine(now: datetime) -> None:
    host = Host(hosts.api_key(approved(at=now), at=now), [card(0), card(1)])
    assert all_at_once(*[lambda: host.enrol().status_code] * 4) == [200, 200, 200, 201]
    assert Machine.objects.count() == 1
    assert Gpu.objects.count() == 2


def test_one_card_on_two_hosts_at_once_lives_on_one(now: datetime) -> None:
    cards = [card(0)]
    rivals = [Host(hosts.api_key(approved(at=now), at=now), cards) for _ in range(4)]
    assert all_at_once(*[lambda rival=rival: rival.enrol().status_code for rival in rivals]) == [201, 409, 409, 409]
    assert Machine.objects.count() == 1


def test_a_single_use_token_that_two_hosts_show_at_once_lets_one_in(now: datetime) -> None:
    provider = approved(at=now)
    token = keys.make_token(provider=provider, application=provider.organisation.applications.get(), at=now)
    rivals = [Host(token, [card(0)]) for _ in range(4)]
    assert all_at_once(*[lambda rival=rival: rival.enrol().status_code for rival in rivals]) == [201, 401, 401, 401]


@pytest.mark.spec("A9")
def test_two_machines_at_once_are_not_admitted_beyond_the_approved_quantity(now: datetime) -> None:
    provider = approved(at=now, entries=[{"quantity": 3}])
    fleet = [Host(hosts.api_key(provider, at=now), [card(0), card(1)]) for _ in range(3)]
    assert all_at_once(*[lambda host=host: host.enrol().status_code for host in fleet]) == [201, 201, 201]
    everything = [lambda host=host: host.report_inventory().status_code for host in fleet]
    assert all_at_once(*everything) == [200, 200, 200]
    assert Gpu.objects.filter(admitted=True).count() == 3
