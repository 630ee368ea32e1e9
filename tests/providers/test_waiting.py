"""The endpoints that wait: what they answer, what wakes them, and what they hold while they wait."""

import asyncio
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg2
import pytest
from django.db import connection

from providers import machines, nudges, workloads
from providers.models import Machine, Workload
from tests import hosts, server
from tests.hosts import Host, approved, connected
from tests.server import Server, live_server_process

# The views read in threads of their own, which see only what is committed.
pytestmark = pytest.mark.usefixtures("committed")


def job(host: Host, at: datetime) -> Workload:
    return workloads.assign(
        machine=host.machine,
        kind=Workload.Kind.JOB,
        spec={"image": "ubuntu:24.04", "env": {"A": "secret"}},
        gpus=host.gpus[:1],
        at=at,
    )


@pytest.mark.spec("B4")
@pytest.mark.case("agent-32", "marketplace-23")
def test_assignments_are_all_that_the_machine_should_know_until_it_reports_the_end(now: datetime) -> None:
    host = connected(approved(at=now), at=now)
    workload = job(host, now)
    answer = host.call("assignments?after=0&wait=0", method="get").json()
    assert answer["revision"] == host.machine.revision > 0
    (known,) = answer["workloads"]
    assert known == {
        "id": str(workload.public_id),
        "kind": "job",
        "attempt": 1,
        "wanted": "run",
        "stop_at": None,
        "gpu_uuids": [host.cards[0]["uuid"]],
        "spec": {"image": "ubuntu:24.04", "env": {"A": "secret"}},
    }
    workloads.ask_to_stop(workload=workload, at=now)
    assert host.call("assignments?wait=0", method="get").json()["workloads"][0]["wanted"] == "stop"
    assert host.report(workload, "finished", cause="stopped").status_code == 200
    after = host.call(f"assignments?after={answer['revision']}&wait=20", method="get").json()
    assert after["workloads"] == []
    assert after["revision"] > answer["revision"]


@pytest.mark.parametrize("query", ["after=x", "wait=soon"])
def test_a_question_that_is_none_is_refused(query: str, now: datetime) -> None:
    host = connected(approved(at=now), at=now)
    assert host.call(f"assignments?{query}", method="get").status_code == 422


@pytest.mark.parametrize("path", ["assignments", "speed"])
@pytest.mark.parametrize("secret", ["", "gpxm_" + "0" * 32 + "_" + "a" * 43])
def test_a_secret_that_is_none_is_refused(secret: str, path: str, now: datetime) -> None:
    host = connected(approved(at=now), at=now)
    host.secret = secret
    assert host.call(path, method="get").json()["code"] == "secret_unknown"


def test_a_machine_sees_its_own_workloads_alone(now: datetime) -> None:
    provider = approved(at=now)
    mine, other = connected(provider, at=now), connected(provider, at=now)
    job(mine, now)
    assert other.call("assignments?wait=0", method="get").json()["workloads"] == []


@pytest.fixture
def live(tmp_path: Path) -> Any:
    with live_server_process(tmp_path) as running:
        yield running


def ask(live: Server, host: Host, *, after: int, wait_s: float) -> httpx.Response:
    headers = {"Authorization": f"Bearer {host.secret}"}
    with httpx.Client(base_url=live.url, trust_env=False, timeout=40) as client:
        return client.get(f"{hosts.ROOT}assignments", params={"after": after, "wait": wait_s}, headers=headers)


async def poll_all(
    live: Server, fleet: list[Host], *, wait_s: float, meanwhile: Any
) -> list[tuple[float, dict[str, Any]]]:
    """Every host waits for its next assignment; ``meanwhile`` runs in a thread once all do. (seconds, answer) of each."""
    begun = time.monotonic()

    async def one(client: httpx.AsyncClient, host: Host) -> tuple[float, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {host.secret}"}
        answer = await client.get(
            f"{live.url}{hosts.ROOT}assignments", params={"after": 0, "wait": wait_s}, headers=headers
        )
        assert answer.status_code == 200, answer.text
        return time.monotonic() - begun, answer.json()

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(trust_env=False, timeout=60, limits=limits) as client:
        waiting = [asyncio.create_task(one(client, host)) for host in fleet]
        await asyncio.to_thread(meanwhile)
        return await asyncio.gather(*waiting)


def connections_to_the_database() -> int:
    """Sessions of others on the tests' database, as PostgreSQL counts them, over a connection of our own."""
    with psycopg2.connect(server.database_url()) as outside, outside.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return int(cursor.fetchone()[0])  # type: ignore[index]


@pytest.mark.spec("B4")
def test_three_hundred_waiting_agents_hold_few_connections_and_all_wake(live: Server, now: datetime) -> None:
    """The number of database connections does not follow the number of those who wait."""
    provider = approved(at=now)
    key = hosts.api_key(provider, at=now)
    template = connected(provider, at=now, count=1)
    fleet = [Host(key, template.cards) for _ in range(300)]
    for number, host in enumerate(fleet):
        machine = Machine(
            provider=provider,
            enrolled_with=provider.keys.first(),
            name=f"rig-{number}",
            fingerprint=host.fingerprint,
            tier="community",
            last_seen_at=now,
        )
        host.secret = machines._give_secret(machine, now)
        machine.save()
        host.machine_id = machine.public_id
    seen: list[int] = []
    threads: list[int] = []

    def meanwhile() -> None:
        waiting = 0
        for _ in range(200):  # until the server has read for all of them and let go
            waiting = connections_to_the_database()
            seen.append(waiting)
            time.sleep(0.05)
            if len(seen) > 60 and max(seen[-20:]) <= 3:
                break
        Machine.objects.filter(provider=provider).update(revision=1)
        for host in fleet:
            assert host.machine_id is not None
            nudges._publish(host.machine_id)
        threads.append(len(list(Path(f"/proc/{live.pid}/task").iterdir())))
        connection.close()

    answers = asyncio.run(poll_all(live, fleet, wait_s=25, meanwhile=meanwhile))
    assert max(seen) < 40
    assert seen[-1] <= 3
    assert threads[0] < 60
    assert {answer["revision"] for _, answer in answers} == {1}
    assert max(seconds for seconds, _ in answers) < 24


def test_an_assignment_wakes_its_machine_at_once(live: Server, now: datetime) -> None:
    host = connected(approved(at=now), at=now)
    assigned_at: list[float] = []
    begun = time.monotonic()

    def meanwhile() -> None:
        server.wait_for(lambda: waits_on_redis() >= 1, what="the server's subscription")
        time.sleep(0.5)
        assigned_at.append(time.monotonic() - begun)
        job(host, now)
        connection.close()

    ((seconds, answer),) = asyncio.run(poll_all(live, [host], wait_s=20, meanwhile=meanwhile))
    assert len(answer["workloads"]) == 1
    assert seconds - assigned_at[0] < 1.5


def waits_on_redis() -> int:
    return int(nudges._client().pubsub_numpat())


def test_speed_counts_bytes_both_ways(live: Server, now: datetime) -> None:
    host = connected(approved(at=now), at=now)
    headers = {"Authorization": f"Bearer {host.secret}"}
    with httpx.Client(base_url=live.url, trust_env=False, timeout=40, headers=headers) as client:
        assert len(client.get(f"{hosts.ROOT}speed?bytes=3000000").content) == 3_000_000
        assert client.post(f"{hosts.ROOT}speed", content=b"x" * 5_000_000).json()["received_bytes"] == 5_000_000
        assert client.get(f"{hosts.ROOT}speed?bytes=99999999").status_code == 422
        assert client.get(f"{hosts.ROOT}speed?bytes=-1").json()["code"] == "invalid"


def test_nothing_new_is_answered_after_the_wait(live: Server, now: datetime) -> None:
    host = connected(approved(at=now), at=now)
    begun = time.monotonic()
    answer = ask(live, host, after=0, wait_s=1)
    assert answer.json()["workloads"] == []
    assert 0.9 < time.monotonic() - begun < 3


def test_without_redis_an_assignment_is_found_by_looking(tmp_path: Path, now: datetime) -> None:
    host = connected(approved(at=now), at=now)
    with live_server_process(tmp_path, environment={"REDIS_URL": f"unix://{tmp_path}/nobody.sock?db=0"}) as deaf:

        def meanwhile() -> None:
            time.sleep(1)
            job(host, now)
            connection.close()

        ((seconds, answer),) = asyncio.run(poll_all(deaf, [host], wait_s=20, meanwhile=meanwhile))
    assert len(answer["workloads"]) == 1
    assert seconds < 1 + 2 * nudges.POLL_SECONDS + 1


def test_a_machine_that_is_retired_while_it_waits_is_told(live: Server, now: datetime) -> None:
    host = connected(approved(at=now), at=now)
    begun = time.monotonic()

    async def story() -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False, timeout=40) as client:
            headers = {"Authorization": f"Bearer {host.secret}"}
            waiting = asyncio.create_task(
                client.get(f"{live.url}{hosts.ROOT}assignments?after=0&wait=20", headers=headers)
            )
            await asyncio.to_thread(retire)
            return await waiting

    def retire() -> None:
        server.wait_for(lambda: waits_on_redis() >= 1, what="the server's subscription")
        machines.retire(machine=host.machine, at=now + timedelta(seconds=1))
        connection.close()

    answer = asyncio.run(story())
    assert (answer.status_code, answer.json()["code"]) == (401, "revoked")
    assert time.monotonic() - begun < 15
