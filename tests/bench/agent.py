import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import psycopg2
from django.conf import settings
from django.db import connection
from django.utils import timezone

from gpunex.embedded.cluster import Cluster, free_port
from gpunex.kit.secrets import digest
from providers.models import Machine
from tests.bench import rows
from tests.bench.measure import Measured, bench, passes

FIRST_PORT = 18400


@bench("agent")
def heartbeats(*, machines: int = 64, clients: int = 8, seconds: int = 5) -> Iterator[Measured]:
    """Heartbeats through the running web server, beside clients that only do their SQL."""
    at = timezone.now()
    owned = rows.machines(rows.provider(at=at), machines, gpus=1, at=at)
    keys = []
    for machine in owned:
        key = f"gpxm_{machine.public_id.hex}_{secrets.token_urlsafe(32)}"
        machine.secret_hash = digest(key)
        keys.append(key)
    Machine.objects.bulk_update(owned, ["secret_hash"])
    body = {"boot_id": "boot-1", "sequence": 1, "agent_version": "0.1.0", "workloads": [], "nvml": "ok"}
    params = connection.get_connection_params()
    options = {name: value for name, value in params.items() if name in {"dbname", "user", "password", "host", "port"}}

    def bare(number: int, going: Callable[[], bool]) -> int:
        done, link = 0, psycopg2.connect(**options)
        with link.cursor() as cursor:
            while going():
                machine = owned[(number + done * clients) % machines]
                cursor.execute("SELECT * FROM providers_machine WHERE public_id = %s", [str(machine.public_id)])
                cursor.fetchone()
                cursor.execute(
                    "UPDATE providers_machine SET last_seen_at = now(), agent_version = '0.1.0' WHERE id = %s",
                    [machine.pk],
                )
                link.commit()
                done += 1
        link.close()
        return done

    cluster = Cluster(os.environ["GPUNEX_CLUSTER"], settings.BASE_DIR)
    port = free_port(FIRST_PORT)
    url = f"http://127.0.0.1:{port}"
    server = [
        sys.executable,
        "-m",
        "uvicorn",
        "gpunex.asgi:application",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--no-access-log",
    ]
    try:
        cluster.spawn("bench-web", server, env={"PUBLIC_URL": url, "LOG_LEVEL": "WARNING"})
        _wait(url)

        def beat(number: int, going: Callable[[], bool]) -> int:
            done = 0
            with httpx.Client(base_url=url, trust_env=False) as client:
                while going():
                    headers = {"Authorization": f"Bearer {keys[(number + done * clients) % machines]}"}
                    client.post("/api/agent/v1/heartbeat", json=body, headers=headers).raise_for_status()
                    done += 1
            return done

        _rate(beat, clients, 1)
        alone, ours = _rate(bare, clients, seconds), _rate(beat, clients, seconds)
    finally:
        cluster.stop()
    yield passes(
        f"heartbeats, {clients} clients",
        ours,
        "1/s",
        peer="the same select and update by psycopg2",
        peer_a_second=alone,
        at_least=0.02,
    )


def _rate(act: Callable[[int, Callable[[], bool]], int], clients: int, seconds: float) -> float:
    end = time.monotonic() + seconds
    counts: list[int] = []
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            counts.append(act(number, lambda: time.monotonic() < end))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(clients)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sum(counts) / (time.monotonic() - begun)


def _wait(url: str, *, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if httpx.get(f"{url}/health/live", timeout=2, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"the web server does not answer at {url}")
        time.sleep(0.1)
