"""The real agent process against the real server process: what each promises the other."""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from gpunex.policy.models import Policy
from providers import keys, workloads
from providers.models import Gpu, GpuClaim, Machine, Provider, Workload
from reliability import scores
from reliability.models import Benchmark, Connection, Gap, HealthEvent, Sample
from tests import hosts
from tests.agent.conftest import AgentProcess
from tests.server import Server, clock, wait_for

type Agents = Callable[[str], AgentProcess]


def started(
    agents: Agents, provider: Provider, *, name: str = "host", simulate: str = "rtx4090x2", **env: str
) -> tuple[AgentProcess, Machine]:
    agent = agents(name)
    agent.start(key=hosts.api_key(provider, at=datetime.now(UTC)), simulate=simulate, **env)
    known = set(Machine.objects.values_list("pk", flat=True))

    def connected() -> Machine | None:
        assert agent.child is None or agent.child.poll() is None, agent.said()
        return (
            Machine.objects.exclude(pk__in=known)
            .filter(last_seen_at__isnull=False, connected_since__isnull=False)
            .first()
        )

    return agent, wait_for(connected, what="the machine's first heartbeat")


def give_job(machine: Machine, command: str, *, stop_at: datetime | None = None, **spec: Any) -> Workload:
    at = timezone.now()
    gpus = list(machine.gpus.present()[:1])
    return workloads.assign(
        machine=machine,
        kind=Workload.Kind.JOB,
        spec={"image": "ubuntu:24.04", "command": ["sh", "-c", command], "env": {}, "shm_mib": 512} | spec,
        gpus=gpus,
        stop_at=stop_at,
        at=at,
    )


def reached(workload: Workload, *states: str, seconds: float = 40) -> Workload:
    def there() -> Workload | None:
        workload.refresh_from_db()
        return workload if workload.observed in states else None

    return wait_for(there, seconds=seconds, what=f"{states}, it is {workload.observed}")


def log_of(workload: Workload, last: str, *, seconds: float = 30) -> str:
    """The whole log once it holds ``last``."""
    return (
        wait_for(
            lambda: (text := workloads.read_log(workload)[0]) and last in text and text,
            seconds=seconds,
            what=f"{last!r} in the log",
        )
        or ""
    )


@pytest.mark.spec("A9", "B2", "B4", "B5")
def test_a_host_enrols_and_is_connected_with_its_cards(agents: Agents, provider: Provider) -> None:
    agent, machine = started(agents, provider)
    assert machine.simulated is True
    assert machine.country == "EG"
    assert [gpu.name for gpu in machine.gpus.all()] == ["NVIDIA GeForce RTX 4090"] * 2
    assert all(gpu.variant and gpu.admitted and gpu.given for gpu in machine.gpus.select_related("variant"))
    assert machine.is_connected(timezone.now(), 45)
    assert Connection.objects.get(machine=machine).ended_at is None
    wait_for(lambda: Sample.objects.filter(machine=machine).count() >= 2, what="telemetry")
    sample = Sample.objects.filter(machine=machine).first()
    assert sample is not None
    assert sample.memory_total_mib == 24564
    wait_for(lambda: HealthEvent.objects.filter(machine=machine, kind="boot").exists(), what="the boot event")
    machine.refresh_from_db()
    assert machine.clock_offset_ms is not None
    assert abs(machine.clock_offset_ms) < 5000
    assert agent.terminate() == 0


@pytest.mark.spec("C1", "C2", "C3", "I4")
def test_it_is_measured_by_itself_and_gets_a_score(agents: Agents, provider: Provider) -> None:
    _agent, machine = started(agents, provider, simulate="l4x2")
    with clock("benchmarks", "scores"):
        wait_for(
            lambda: Gpu.objects.filter(machine=machine, benchmarked_at__isnull=False).count() == 2,
            seconds=60,
            what="the benchmark",
        )
        score = wait_for(lambda: scores.latest(machine), what="the score")
    for run in Benchmark.objects.filter(gpu__machine=machine):
        assert (run.state, run.simulated) == ("accepted", True)
        assert None not in (
            run.fp16_tflops,
            run.fp32_tflops,
            run.tensor_tflops,
            run.vram_read_gbps,
            run.vram_write_gbps,
        )
        assert None not in (run.latency_ms, run.download_mbps, run.upload_mbps, run.disk_read_mb_s, run.disk_write_mb_s)
        assert run.performance is not None
        assert 80 < run.performance < 125
    assert score.new is True
    assert 90 < score.score <= 100
    wait_for(
        lambda: not GpuClaim.objects.filter(gpu__machine=machine, period__endswith=None).exists(),
        what="the cards' release",
    )
    assert Gpu.objects.get(machine=machine, index=0).delisted_at is None


@pytest.mark.spec("B4", "F3")
def test_a_job_runs_its_log_arrives_and_it_ends_with_its_exit_code(agents: Agents, provider: Provider) -> None:
    _agent, machine = started(agents, provider)
    begun = timezone.now()
    workload = give_job(machine, "echo hello; sleep 1; echo $NAME; exit 3", env={"NAME": "مرحبا"})
    reached(workload, "finished")
    assert (workload.cause, workload.exit_code) == ("exit_nonzero", 3)
    text = log_of(workload, "مرحبا")
    assert "hello" in text
    assert "[simulated]" in text
    assert workload.started_at is not None
    assert workload.finished_at is not None
    assert workload.container_started_at is not None
    assert begun < workload.started_at <= workload.finished_at <= timezone.now()
    machine.refresh_from_db()
    assert machine.last_seen_at is not None


@pytest.mark.spec("B4", "F3")
def test_a_running_job_is_proved_by_heartbeats_and_stopped_on_request(agents: Agents, provider: Provider) -> None:
    _agent, machine = started(agents, provider)
    workload = give_job(machine, "sleep infinity")
    reached(workload, "running")
    first = workload.proved_at
    assert first is not None

    def proved_later() -> bool:
        workload.refresh_from_db()
        return workload.proved_at > first

    wait_for(proved_later, seconds=25, what="a heartbeat's proof")
    asked = timezone.now()
    workloads.ask_to_stop(workload=workload, at=asked)
    reached(workload, "finished")
    assert workload.cause == "stopped"
    assert timezone.now() - asked < timedelta(seconds=12)


@pytest.mark.spec("B4")
@pytest.mark.case("agent-31", "agent-33")
def test_an_agent_that_is_killed_in_the_middle_of_a_job_ends_it_exactly_once(
    agents: Agents, provider: Provider
) -> None:
    agent, machine = started(agents, provider)
    workload = give_job(machine, "echo first; sleep 4; echo second; exit 7")
    reached(workload, "running")
    container_started_at = workload.container_started_at
    log_of(workload, "first")
    agent.kill()
    assert Workload.objects.get(pk=workload.pk).observed == "running"
    agent.start(key=None, simulate="rtx4090x2")
    reached(workload, "finished")
    assert (workload.cause, workload.exit_code, workload.attempt) == ("exit_nonzero", 7, 1)
    assert workload.container_started_at == container_started_at
    text = log_of(workload, "second")
    assert (text.count("first"), text.count("second"), text.count("[simulated]")) == (1, 1, 1)
    assert Machine.objects.count() == 1
    assert Workload.objects.count() == 1


@pytest.mark.spec("B4")
@pytest.mark.case("agent-38")
def test_a_job_that_ends_while_its_agent_is_dead_is_reported_with_the_time_it_ended(
    agents: Agents, provider: Provider
) -> None:
    agent, machine = started(agents, provider)
    workload = give_job(machine, "sleep 2; exit 0")
    reached(workload, "running")
    agent.kill()
    assert workload.started_at is not None
    ended_at = workload.started_at + timedelta(seconds=2)
    wait_for(lambda: timezone.now() > ended_at + timedelta(seconds=4), what="the job's end")
    agent.start(key=None, simulate="rtx4090x2")
    reached(workload, "finished")
    assert workload.cause == "completed"
    assert workload.finished_at is not None
    assert workload.finished_at < ended_at + timedelta(seconds=2)


@pytest.mark.spec("B4")
def test_a_server_that_is_killed_in_the_middle_of_a_job_loses_nothing(
    agents: Agents, provider: Provider, live: Server
) -> None:
    agent, machine = started(agents, provider)
    workload = give_job(machine, "echo one; sleep 3; echo two; exit 5")
    reached(workload, "running")
    live.kill()
    killed = timezone.now()
    wait_for(lambda: timezone.now() > killed + timedelta(seconds=4), what="the job's end without a platform")
    live.start()
    reached(workload, "finished", seconds=60)
    assert (workload.cause, workload.exit_code) == ("exit_nonzero", 5)
    text = log_of(workload, "two", seconds=60)
    assert (text.count("one"), text.count("two")) == (1, 1)
    assert agent.child is not None
    assert agent.child.poll() is None


@pytest.mark.spec("B4")
def test_a_job_assigned_while_the_agent_was_away_runs_when_it_is_back(agents: Agents, provider: Provider) -> None:
    agent, machine = started(agents, provider)
    agent.kill()
    workload = give_job(machine, "echo late; exit 0")
    agent.start(key=None, simulate="rtx4090x2")
    reached(workload, "finished")
    assert workload.cause == "completed"


@pytest.mark.case("agent-32", "marketplace-4")
def test_a_job_that_the_server_has_given_up_is_ended_on_the_host(agents: Agents, provider: Provider) -> None:
    _agent, machine = started(agents, provider)
    workload = give_job(machine, "sleep infinity")
    reached(workload, "running")
    workloads.end_unseen(workload=workload, cause="machine_lost", at=timezone.now())
    second = give_job(machine, "echo next; exit 0")
    reached(second, "finished")
    assert second.cause == "completed"
    workload.refresh_from_db()
    assert workload.cause == "machine_lost"


def test_a_deadline_ends_a_job_without_another_word(agents: Agents, provider: Provider) -> None:
    _agent, machine = started(agents, provider)
    workload = give_job(machine, "sleep infinity", stop_at=timezone.now() + timedelta(seconds=6))
    reached(workload, "finished")
    assert workload.cause == "deadline"


@pytest.mark.spec("A8")
def test_a_revoked_key_is_told_in_clear_words_at_the_host(agents: Agents, provider: Provider, now: datetime) -> None:
    text = hosts.api_key(provider, at=now)
    keys.revoke(key=provider.keys.get(), by=provider.organisation.created_by, at=now)
    agent = agents("refused")
    agent.start(key=text)
    assert agent.wait() == 13
    assert "revoked" in agent.said()
    assert text not in agent.said()
    assert not Machine.objects.exists()


@pytest.mark.case("marketplace-31")
def test_a_second_host_with_the_same_cards_is_refused_in_words(
    agents: Agents, provider: Provider, now: datetime
) -> None:
    started(agents, provider, name="first", simulate="l4x1", GPUNEX_SIM_SEED="one")
    copy = agents("copy")
    copy.start(
        key=hosts.api_key(hosts.approved(at=now, entries=[{"model": "l4-24gb"}]), at=now),
        simulate="l4x1",
        GPUNEX_SIM_SEED="one",
    )
    assert copy.wait() == 14
    assert "connected as another machine" in copy.said()
    assert Machine.objects.count() == 1


@pytest.mark.spec("B5", "I1")
def test_a_card_that_dies_ends_its_job_and_leaves_the_market(agents: Agents, provider: Provider) -> None:
    _agent, machine = started(agents, provider, GPUNEX_SIM_FAULT="gpu_lost@1")
    workload = give_job(machine, "sleep infinity")
    reached(workload, "finished")
    assert workload.cause == "gpu_lost"
    dead = Gpu.objects.get(uuid=workload.gpu_uuids[0])
    wait_for(lambda: Gpu.objects.get(pk=dead.pk).health == "fatal", what="the card's health")
    assert [gpu.index for gpu in Gpu.objects.offerable().filter(machine=machine)] == [1 - dead.index]


def test_an_uninstalled_host_is_retired(agents: Agents, provider: Provider, tmp_path: Path) -> None:
    agent, machine = started(agents, provider)
    agent.terminate()
    agent.start(key=None, simulate="rtx4090x2", options=["--uninstall"])
    assert agent.wait() == 0, agent.said()
    machine.refresh_from_db()
    assert machine.retired_at is not None
    assert uuid.UUID(str(machine.public_id))


@pytest.mark.spec("B4", "I1")
def test_a_gap_in_which_the_agent_ran_on_is_told_apart(agents: Agents, provider: Provider, live: Server) -> None:
    Policy.objects.update_or_create(pk=1, defaults={"heartbeat_seconds": 1, "offline_seconds": 5})
    agent, machine = started(agents, provider)

    def away(*, without_agent: bool, seconds: int) -> Gap:
        """The gap that the platform's absence leaves."""
        live.kill()
        if without_agent:
            agent.kill()
        killed = timezone.now()
        wait_for(lambda: timezone.now() > killed + timedelta(seconds=seconds), what="a gap", seconds=seconds + 10)
        live.start()
        if without_agent:
            agent.start(key=None, simulate="rtx4090x2")
        of_it = Gap.objects.filter(machine=machine, started_at__lte=killed, ended_at__gte=killed)
        return wait_for(of_it.first, what="the gap", seconds=60)  # type: ignore[return-value]

    gap = away(without_agent=False, seconds=8)
    assert (gap.kind, gap.evidence["ran"]) == (Gap.Kind.JOURNALLED, True), gap.evidence
    assert agent.child is not None
    assert agent.child.poll() is None
    gap = away(without_agent=True, seconds=50)  # longer than a request that hangs
    assert (gap.kind, gap.evidence["ran"]) == (Gap.Kind.UNKNOWN, False), gap.evidence
