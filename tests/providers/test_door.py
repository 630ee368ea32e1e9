"""The fast door: whatever it takes, the endpoints would have taken the same way; everything else reaches them untouched."""

import asyncio
import json
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg2
import pytest
from django.db import connection
from hypothesis import given, settings
from hypothesis import strategies as st

from gpunex.kit.time import iso_z
from providers import machines
from providers.api import door, fields
from providers.models import Machine
from reliability import telemetry
from reliability.models import Sample
from tests.hosts import approved, connected
from tests.server import Server, live_server_process

WHO = (uuid.UUID(int=7), "0" * 64)
AT = datetime(2026, 10, 14, 14, 5, tzinfo=UTC)


# --- what it takes ---------------------------------------------------------------------------------------------------

ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10), st.sampled_from([2**31, 2**53 + 1, 10**40, 1.5, float("nan"), float("inf"), -1e308]),
    st.sampled_from(["", " ", "ok", "hung", "running", "boot-1", "a\x00b", "é", "\ud800", "x" * 65, "2026-10-14", "soon", "20261014T140500Z",
                     "2026-10-14T14:05:00", "2026-10-14T14:05:00Z", "2026-10-14T14:05:00.5+03:00", "0001-01-01T00:00:00+14:00",
                     "9999-12-31T23:59:59Z", str(uuid.UUID(int=9)), "{" + str(uuid.UUID(int=9)) + "}"]),
    st.just([]), st.just({}),
)  # fmt: skip
TIMES = st.sampled_from(["2026-10-14T14:05:00Z", "2026-10-14T14:04:31.250000Z", "2026-10-13T00:00:00+05:30"])


def sometimes_odd(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(usual, usual, usual, ODD)


RUNNING = st.fixed_dictionaries(
    {"id": sometimes_odd(st.just(str(uuid.UUID(int=9)))), "attempt": sometimes_odd(st.just(1)), "state": sometimes_odd(st.just("running"))},
    optional={"container_started_at": sometimes_odd(TIMES)},
)  # fmt: skip
BEATS = st.fixed_dictionaries(
    {"boot_id": sometimes_odd(st.just("boot-1"))},
    optional={
        "sequence": sometimes_odd(st.just(1)), "agent_version": sometimes_odd(st.just("0.1.0")), "sent_at": sometimes_odd(TIMES),
        "workloads": sometimes_odd(st.lists(RUNNING, max_size=2)), "nvml": sometimes_odd(st.just("ok")), "gap": ODD, "more": ODD,
    },
)  # fmt: skip
SAMPLES = st.fixed_dictionaries(
    {"gpu_uuid": sometimes_odd(st.just("GPU-1")), "at": sometimes_odd(TIMES)},
    optional={
        **dict.fromkeys(["temperature_c", "power_w", "utilization_pct", "fan_pct"], sometimes_odd(st.floats(0, 100))),
        **dict.fromkeys(["memory_used_mib", "memory_total_mib", "sm_clock_mhz", "memory_clock_mhz"], sometimes_odd(st.integers(0, 9000))),
        "throttle_reasons": sometimes_odd(st.lists(sometimes_odd(st.just("gpu_idle")), max_size=2)),
    },
)  # fmt: skip


@given(BEATS)
@settings(max_examples=400, deadline=None)
def test_a_beat_that_the_door_takes_is_one_that_the_endpoint_takes_as_the_same(body: dict[str, Any]) -> None:
    beat = door.beat_of(WHO, body, AT)
    if beat is None:
        return
    read = fields.HeartbeatFields(data=body)
    assert read.is_valid(), read.errors
    said = read.validated_data
    assert (beat.boot_id, beat.nvml, beat.agent_version) == (said["boot_id"], said["nvml"], said["agent_version"])
    assert said["gap"] is None
    offset = None if said["sent_at"] is None else round((said["sent_at"] - AT).total_seconds() * 1000)
    assert beat.offset_ms == (None if offset is None else max(-(2**31), min(2**31 - 1, offset)))
    assert list(beat.running) == [
        (job["id"], job["attempt"], job["container_started_at"])
        for job in said["workloads"]
        if job["state"] == "running"
    ]


@given(st.lists(SAMPLES, max_size=3), st.one_of(st.none(), ODD, TIMES))
@settings(max_examples=400, deadline=None)
def test_samples_that_the_door_takes_are_those_that_the_endpoint_takes_as_the_same(
    samples: list[dict[str, Any]], sent_at: Any
) -> None:
    body = {"samples": samples, "sent_at": sent_at}
    post = door.post_of(WHO, body, AT)
    if post is None:
        return
    read = fields.TelemetryFields(data=body)
    assert read.is_valid(), read.errors
    said = read.validated_data
    for ours, theirs in zip(post.samples, said["samples"], strict=True):
        at = telemetry.corrected(theirs["at"], sent_at=said["sent_at"], received_at=AT)
        known = {name: theirs[name] for name in ours}
        assert ours | {"throttle_reasons": ours["throttle_reasons"] or []} == known | {
            "at": at,
            "throttle_reasons": known["throttle_reasons"] or [],
        }
        json.dumps({name: value for name, value in ours.items() if name != "at"}, allow_nan=False)


def test_the_usual_body_of_an_agent_is_taken() -> None:
    running = {"id": str(uuid.UUID(int=9)), "attempt": 1, "state": "running", "container_started_at": iso_z(AT)}
    beat = door.beat_of(
        WHO,
        {
            "boot_id": "b",
            "sequence": 9,
            "agent_version": "0.1.0",
            "sent_at": iso_z(AT),
            "workloads": [running],
            "nvml": "ok",
        },
        AT,
    )
    assert beat is not None
    assert beat.running == [(uuid.UUID(int=9), 1, AT)]
    sample = {
        "gpu_uuid": "GPU-1",
        "at": iso_z(AT),
        "temperature_c": 61,
        "throttle_reasons": ["gpu_idle"],
        "ecc_uncorrected": 0,
    }
    assert door.post_of(WHO, {"samples": [sample], "sent_at": iso_z(AT)}, AT) is not None


def test_what_comes_together_is_written_together_and_in_order() -> None:
    written: list[int] = []

    def write(posts: Sequence[int]) -> list[int | None]:
        written.append(len(posts))
        return [post * 2 if post % 7 else None for post in posts]

    async def many() -> list[int | None]:
        batch = door.Batch(write)
        return list(await asyncio.gather(*(batch.add(number) for number in range(600))))

    assert asyncio.run(many()) == [number * 2 if number % 7 else None for number in range(600)]
    assert written == [250, 250, 100]


def test_a_statement_that_fails_sends_everybody_the_long_way() -> None:
    def write(posts: Sequence[int]) -> list[int | None]:
        raise RuntimeError("no")

    async def one() -> int | None:
        return await door.Batch(write).add(1)

    assert asyncio.run(one()) is None


# --- the running server ----------------------------------------------------------------------------------------------


@pytest.fixture
def live(committed: None, tmp_path: Path) -> Any:
    with live_server_process(tmp_path) as running:
        yield running


def post(live: Server, path: str, body: Any, secret: str, **options: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {secret}".strip(), "Content-Type": "application/json", **options}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(f"{live.url}/api/agent/v1/{path}", content=content, headers=headers, timeout=20, trust_env=False)


BODY = {"boot_id": "boot-1", "sequence": 2, "agent_version": "0.1.0", "workloads": [], "nvml": "ok"}


@pytest.mark.spec("B4", "B5")
def test_through_the_server_both_ways_answer_alike_and_refuse_alike(live: Server, now: datetime) -> None:
    host = connected(approved(at=now), at=now)
    slow = {"Content-Encoding": "identity"}  # around the door
    before = host.machine.last_seen_at
    assert before is not None
    fast_one, slow_one = post(live, "heartbeat", BODY, host.secret), post(live, "heartbeat", BODY, host.secret, **slow)
    assert fast_one.status_code == slow_one.status_code == 200
    assert fast_one.headers["content-type"] == slow_one.headers["content-type"]
    for answer in (fast_one.json(), slow_one.json()):
        assert datetime.fromisoformat(answer.pop("server_time")) > before
    assert {**fast_one.json(), "server_time": 0} == {**slow_one.json(), "server_time": 0}
    assert "vary" not in fast_one.headers  # it was the door
    assert host.machine.last_seen_at > before  # type: ignore[operator]
    sample = {"gpu_uuid": host.cards[0]["uuid"], "at": iso_z(now), "temperature_c": 61}
    assert post(live, "telemetry", {"samples": [sample] * 2}, host.secret).json()["kept"] == 2
    assert Sample.objects.count() == 1
    odd: list[tuple[str, Any, str]] = [
        ("heartbeat", BODY | {"nvml": "tired"}, host.secret),
        ("heartbeat", BODY | {"boot_id": "x" * 65}, host.secret),
        ("heartbeat", b"{", host.secret),
        ("heartbeat", b"[]", host.secret),
        ("heartbeat", b'{"boot_id": ' + b"[" * 5000, host.secret),
        ("heartbeat", BODY, host.secret + "x"),
        ("heartbeat", BODY, "nothing"),
        ("heartbeat", BODY, ""),
        ("telemetry", {"samples": [sample | {"power_w": "hot"}]}, host.secret),
        ("telemetry", {"samples": [sample] * 501}, host.secret),
        ("telemetry", {"samples": [sample]}, f"gpxm_{'0' * 32}_{'x' * 40}"),
    ]
    for path, body, secret in odd:
        fast_one, slow_one = post(live, path, body, secret), post(live, path, body, secret, **slow)
        assert fast_one.status_code == slow_one.status_code >= 400
        assert {**fast_one.json(), "server_time": 0} == {**slow_one.json(), "server_time": 0}
    machines.retire(machine=host.machine, at=now)
    assert post(live, "heartbeat", BODY, host.secret).json()["code"] == "revoked"
    assert post(live, "telemetry", {"samples": [sample]}, host.secret).status_code == 401


def test_a_row_that_somebody_holds_delays_its_own_machine_only(live: Server, now: datetime) -> None:
    provider = approved(at=now)
    held, free = connected(provider, at=now, count=1), connected(provider, at=now, count=1)
    start = now - timedelta(seconds=20)
    Machine.objects.update(last_seen_at=start)
    params = connection.get_connection_params()
    options = {name: value for name, value in params.items() if name in {"dbname", "user", "password", "host", "port"}}
    other = psycopg2.connect(**options)
    with ThreadPoolExecutor(1) as waiting:
        with other.cursor() as cursor:
            cursor.execute("SELECT FROM providers_machine WHERE id = %s FOR UPDATE", [held.machine.pk])
            late = waiting.submit(post, live, "heartbeat", BODY, held.secret)
            for _ in range(3):
                assert post(live, "heartbeat", BODY, free.secret).status_code == 200
            assert not late.done()
        other.rollback()
        assert late.result().status_code == 200
    other.close()
    assert held.machine.last_seen_at > start  # type: ignore[operator]
