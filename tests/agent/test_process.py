"""The real program against a peer over HTTP: enrolment, restarts by kill -9, a platform that goes away."""

import json
import os
import stat
from datetime import timedelta
from pathlib import Path

import pytest

from agent.clock import iso, parse_time
from agent.results import checksum
from tests.agent.conftest import AgentProcess
from tests.agent.peer import Peer

JOB = {"image": "ubuntu:24.04", "command": ["sh", "-c", "echo hello; sleep 3; echo bye; exit 3"], "env": {}}
LONG = {"image": "ubuntu:24.04", "command": ["sleep", "infinity"]}


def cards(peer: Peer) -> list[str]:
    peer.wait(lambda: peer.enrolments)
    return [gpu["uuid"] for gpu in peer.enrolments[0]["inventory"]["gpus"]]


@pytest.mark.spec("B2", "B5")
def test_it_enrols_with_its_cards_and_is_heard_regularly(agent: AgentProcess, peer: Peer) -> None:
    agent.start(simulate="rtx4090x2")
    peer.wait(lambda: len(peer.heartbeats) >= 2 and peer.samples)
    (enrolment,) = peer.enrolments
    gpus = enrolment["inventory"]["gpus"]
    assert enrolment["simulated"] is True
    assert [gpu["name"] for gpu in gpus] == ["NVIDIA GeForce RTX 4090"] * 2
    assert {gpu["health"] for gpu in gpus} == {"ok"}
    assert {gpu["given"] for gpu in gpus} == {True}
    assert len({gpu["uuid"] for gpu in gpus}) == 2
    first, second = peer.heartbeats[:2]
    assert second["sequence"] > first["sequence"]
    assert first["nvml"] == "ok"
    assert {sample["gpu_uuid"] for sample in peer.samples} == {gpu["uuid"] for gpu in gpus}


def test_the_secret_is_for_the_agents_eyes_only_and_the_key_is_not_kept(agent: AgentProcess, peer: Peer) -> None:
    agent.start()
    peer.wait(lambda: peer.heartbeats)
    identity = agent.state / "identity.json"
    assert stat.S_IMODE(identity.stat().st_mode) == 0o600
    assert peer.secret in identity.read_text()
    agent.terminate()
    for path in agent.state.rglob("*"):
        assert path.is_dir() or b"gpxe_good" not in path.read_bytes()
    assert "gpxe_good" not in agent.said()
    assert peer.secret not in agent.said()


@pytest.mark.spec("A8")
@pytest.mark.parametrize(
    ("key", "status", "words"),
    [
        ("gpxe_wrong", 10, "key is wrong"),
        ("gpxe_used", 11, "used already"),
        ("gpxe_old", 12, "expired"),
        ("gpxk_gone", 13, "revoked"),
        (None, 3, "No key"),
    ],
)
def test_a_key_that_is_not_taken_is_said_in_words_and_by_exit_status(
    agent: AgentProcess, key: str | None, status: int, words: str
) -> None:
    agent.start(key=key)
    assert agent.wait() == status
    assert words in agent.said()
    assert not (agent.state / "identity.json").exists()


@pytest.mark.parametrize(
    ("code", "status"), [("uuid_taken", 14), ("invalid", 15), ("upgrade_required", 16), ("skew", 17)]
)
def test_other_refusals_of_a_machine_have_a_status_each(
    agent: AgentProcess, peer: Peer, code: str, status: int
) -> None:
    peer.refuse["enrol"] = (409, code)
    agent.start()
    assert agent.wait() == status


@pytest.mark.spec("B4")
def test_a_job_survives_kill_9_and_runs_once(agent: AgentProcess, peer: Peer) -> None:
    agent.start()
    job = peer.want(gpu_uuids=cards(peer)[:1], spec=JOB)
    peer.wait(lambda: "running" in peer.states(job))
    agent.kill()
    agent.start()
    finished = peer.wait_finished(job)
    assert (finished["cause"], finished["exit_code"]) == ("exit_nonzero", 3)
    started = {body["container_started_at"] for _, body in peer.reports if body["container_started_at"]}
    assert len(started) == 1
    peer.wait(lambda: b"bye" in peer.logs.get(job, b""))
    lines = peer.logs[job].decode().splitlines()
    assert lines[0].startswith("[simulated]")
    assert lines[1:] == ["hello", "bye"]
    assert len(peer.enrolments) == 1


@pytest.mark.spec("B4")
def test_a_job_that_ended_while_no_agent_ran_is_reported_with_its_own_times(agent: AgentProcess, peer: Peer) -> None:
    agent.start()
    job = peer.want(gpu_uuids=cards(peer)[:1], spec={**JOB, "command": ["sh", "-c", "sleep 1; exit 7"]})
    peer.wait(lambda: "running" in peer.states(job))
    agent.kill()
    ended_by = peer.now() + timedelta(seconds=2)
    peer.wait(lambda: peer.now() > ended_by)
    agent.start()
    finished = peer.wait_finished(job)
    begun, ended = parse_time(finished["container_started_at"]), parse_time(finished["finished_at"])
    assert begun is not None
    assert ended is not None
    assert finished["exit_code"] == 7
    assert 1 <= (ended - begun).total_seconds() < 2


@pytest.mark.spec("B4")
def test_cut_off_it_stops_a_job_at_its_deadline_and_tells_afterwards(agent: AgentProcess, peer: Peer) -> None:
    agent.start()
    cards(peer)  # it is there: the deadline is for the job, not for the start of a process on a busy machine
    stop_at = peer.now() + timedelta(seconds=10)
    job = peer.want(gpu_uuids=cards(peer)[:1], spec=LONG, stop_at=iso(stop_at))
    peer.wait(lambda: "running" in peer.states(job))
    peer.silent = True
    agent.kill()
    agent.start()
    peer.wait(lambda: peer.now() > stop_at + timedelta(seconds=2), timeout_s=30)
    assert peer.finished(job) == []
    peer.silent = False
    finished = peer.wait_finished(job)
    assert finished["cause"] == "deadline"
    ended = parse_time(finished["finished_at"])
    assert ended is not None
    assert abs((ended - stop_at).total_seconds()) < 2


@pytest.mark.spec("B4")
@pytest.mark.case("agent-41", "agent-42")
def test_a_wrong_local_clock_neither_breaks_the_deadline_nor_enrols_again(agent: AgentProcess, peer: Peer) -> None:
    peer.clock_ahead = timedelta(minutes=10)
    agent.start()
    cards(peer)
    stop_at = peer.now() + timedelta(seconds=6)
    job = peer.want(gpu_uuids=cards(peer)[:1], spec=LONG, stop_at=iso(stop_at))
    finished = peer.wait_finished(job)
    ended = parse_time(finished["finished_at"])
    assert finished["cause"] == "deadline"
    assert ended is not None
    assert abs((ended - stop_at).total_seconds()) < 2
    assert len(peer.enrolments) == 1
    assert "clock is off by -600 s" in agent.said()


@pytest.mark.spec("B4")
@pytest.mark.case("agent-38")
def test_sigterm_ends_the_agent_cleanly_and_no_job(agent: AgentProcess, peer: Peer) -> None:
    agent.start()
    job = peer.want(gpu_uuids=cards(peer)[:1], spec=LONG)
    peer.wait(lambda: "running" in peer.states(job))
    assert agent.terminate() == 0
    assert peer.states(job)[-1] == "running"
    agent.start()
    beats = len(peer.heartbeats)
    peer.wait(lambda: len(peer.heartbeats) > beats and peer.heartbeats[-1]["workloads"])
    assert peer.heartbeats[-1]["workloads"][0]["state"] == "running"
    assert "Traceback" not in agent.said()


@pytest.mark.case("agent-15")
def test_a_driver_that_hangs_stops_no_heartbeat(agent: AgentProcess, peer: Peer) -> None:
    agent.start()
    peer.wait(lambda: peer.heartbeats)
    agent.kill()
    beats = len(peer.heartbeats)
    agent.start(GPUNEX_SIM_FAULT="nvml")
    peer.wait(lambda: len(peer.heartbeats) > beats + 2 and peer.heartbeats[-1]["nvml"] == "hung")
    assert peer.inventories[-1]["gpus"]


@pytest.mark.case("agent-12")
def test_a_card_that_falls_off_ends_its_job_as_the_providers_fault_and_is_told(agent: AgentProcess, peer: Peer) -> None:
    agent.start(GPUNEX_SIM_FAULT="gpu_lost@1")
    first, second = cards(peer)
    job = peer.want(gpu_uuids=[first], spec=LONG)
    finished = peer.wait_finished(job)
    assert finished["cause"] == "gpu_lost"
    peer.wait(lambda: any(event["kind"] == "gpu_lost" for event in peer.events.values()))
    peer.wait(
        lambda: {gpu["uuid"]: gpu["health"] for gpu in peer.inventories[-1]["gpus"]} == {first: "fatal", second: "ok"}
    )


@pytest.mark.spec("C1", "C2")
def test_a_benchmark_answers_the_nonce_and_says_that_it_is_simulated(agent: AgentProcess, peer: Peer) -> None:
    agent.start(simulate="l4x2")
    uuids = cards(peer)
    benchmark = peer.want(
        kind="benchmark", gpu_uuids=uuids, spec={"suite": "gpu", "nonce": "n0nce", "kernel_version": "1", "seconds": 1}
    )
    assert peer.wait_finished(benchmark)["cause"] == "completed"
    ((_, result),) = peer.results
    assert result["simulated"] is True
    assert result["checksum"] == checksum("n0nce", uuids)
    for gpu in result["gpus"]:
        assert 0.9 * 30.3 <= gpu["fp32_tflops"] <= 1.02 * 30.3
    assert result["network"]["latency_ms"] > 0
    assert result["disk"]["read_mb_s"] > 0


@pytest.mark.spec("B6")
def test_only_the_given_cards_are_given(agent: AgentProcess, peer: Peer) -> None:
    agent.start(GPUNEX_SIM_SEED="fixed")
    first, second = cards(peer)
    agent.kill()
    agent.start(GPUNEX_SIM_SEED="fixed", options=["--gpus", first])
    peer.wait(
        lambda: (
            peer.inventories
            and {gpu["uuid"]: gpu["given"] for gpu in peer.inventories[-1]["gpus"]} == {first: True, second: False}
        )
    )
    job = peer.want(gpu_uuids=[second], spec=JOB)
    assert peer.wait_finished(job)["cause"] == "gpu_unavailable"


def test_a_new_key_enrols_the_same_machine_again_and_the_old_key_does_not(agent: AgentProcess, peer: Peer) -> None:
    agent.start()
    peer.wait(lambda: peer.heartbeats)
    agent.terminate()
    peer.keys["gpxk_new"] = "ok"
    agent.start(key="gpxk_new")
    peer.wait(lambda: len(peer.enrolments) == 2)
    assert peer.enrolments[1]["machine_id"] == peer.machine_id
    assert peer.enrolments[1]["fingerprint"] == peer.enrolments[0]["fingerprint"]


def test_a_revoked_machine_says_so_and_does_not_enrol_again_by_itself(agent: AgentProcess, peer: Peer) -> None:
    agent.start()
    peer.wait(lambda: peer.heartbeats)
    peer.refuse["heartbeat"] = (401, "revoked")
    peer.wait(lambda: "no longer accepts this machine's secret" in agent.said())
    assert len(peer.enrolments) == 1


def test_enrolment_waits_for_a_platform_that_is_away(agent: AgentProcess, peer: Peer) -> None:
    peer.silent = True
    agent.start()
    peer.wait(lambda: "not enrolled yet" in agent.said())
    peer.silent = False
    peer.wait(lambda: peer.enrolments)


def test_two_agents_never_share_a_state_directory(agent: AgentProcess, peer: Peer, tmp_path: Path) -> None:
    agent.start()
    peer.wait(lambda: peer.heartbeats)
    other = AgentProcess(url=peer.url, state=agent.state, log=tmp_path / "other.log")
    other.start()
    assert other.wait() == 4
    assert "another agent" in other.said()


def test_status_tells_the_installer_whether_the_platform_answers(
    agent: AgentProcess, peer: Peer, tmp_path: Path
) -> None:
    asking = AgentProcess(url=peer.url, state=agent.state, log=tmp_path / "status.log")
    asking.start(options=["--status"])
    assert asking.wait() == 1
    agent.start()
    peer.wait(lambda: len(peer.heartbeats) >= 2)
    asking.start(options=["--status"])
    assert asking.wait() == 0
    assert "connected: machine test-host" in asking.said()


def test_uninstalling_ends_jobs_tells_the_platform_and_forgets_the_machine(agent: AgentProcess, peer: Peer) -> None:
    agent.start()
    job = peer.want(gpu_uuids=cards(peer)[:1], spec=LONG)
    peer.wait(lambda: "running" in peer.states(job))
    agent.terminate()
    agent.start(options=["--uninstall"])
    assert agent.wait() == 0
    assert peer.uninstalled
    assert not (agent.state / "identity.json").exists()


@pytest.mark.parametrize(
    ("url", "words"),
    [("http://gpunex.example", "not https"), ("gpunex.example", "not an address"), ("ftp://x", "not an address")],
)
def test_a_secret_never_travels_unencrypted(tmp_path: Path, url: str, words: str) -> None:
    process = AgentProcess(url=url, state=tmp_path / "state", log=tmp_path / "log")
    process.start()
    assert process.wait() == 2
    assert words in process.said()


def test_an_unknown_card_cannot_be_simulated(agent: AgentProcess) -> None:
    agent.start(simulate="gtx9999x2")
    assert agent.wait() == 2
    assert "rtx4090" in agent.said()


def test_the_same_state_directory_always_shows_the_same_cards(agent: AgentProcess, peer: Peer) -> None:
    agent.start(options=["--enrol-only"])
    assert agent.wait() == 0
    before = cards(peer)
    os.remove(agent.state / "identity.json")
    agent.start(options=["--enrol-only"])
    assert agent.wait() == 0
    assert [gpu["uuid"] for gpu in peer.enrolments[1]["inventory"]["gpus"]] == before
    assert json.loads(agent.said().splitlines()[-1])["machine_id"] == peer.machine_id
