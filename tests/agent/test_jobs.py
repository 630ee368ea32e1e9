"""Reconcile, case by case: what is assigned, what runs, and what is remembered, in every combination."""

import dataclasses

import pytest

from agent.clock import iso
from agent.engine import ContainerPlan
from agent.platform import Refused
from agent.spec import Share, job_plan
from tests.agent.conftest import GPUS, MACHINE, WORKLOAD, Rig, assignment

OTHER = "22222222-2222-4222-8222-222222222222"


def plan_for(workload_id: str = WORKLOAD, machine_id: str = MACHINE) -> ContainerPlan:
    return job_plan(
        assignment()["spec"],
        workload_id=workload_id,
        attempt=1,
        machine_id=machine_id,
        gpu_uuids=tuple(GPUS[:1]),
        share=Share(memory_mib=8192, cpus=4, shm_max_mib=4096),
    )


@pytest.mark.spec("B4", "F3")
def test_a_job_is_brought_up_followed_and_finished_with_its_exit_code(rig: Rig) -> None:
    rig.assign()
    assert rig.row().state == "running"
    rig.clock.forward(60)
    rig.settle()

    row = rig.row()
    assert (row.state, row.cause, row.exit_code) == ("finished", "exit_nonzero", 3)
    assert rig.states() == ["accepted", "pulling", "creating", "running", "finished"]
    assert row.container_started_at is not None
    assert row.finished_at is not None
    assert 10 <= (row.finished_at - row.container_started_at).total_seconds() < 11


@pytest.mark.spec("B4")
@pytest.mark.case("agent-31")
def test_a_job_is_found_again_after_a_restart_and_its_end_is_not_lost(rig: Rig) -> None:
    rig.assign()
    started_at = rig.row().container_started_at
    rig.start()
    rig.clock.forward(60)
    rig.start()
    rig.settle()

    assert rig.row().exit_code == 3
    assert rig.row().container_started_at == started_at
    assert [body["state"] for body in rig.reports()].count("finished") == 1
    assert len(rig.engine.containers()) == 1


@pytest.mark.spec("B4")
@pytest.mark.case("agent-35")
def test_a_container_without_a_row_that_is_assigned_is_adopted_not_started_twice(rig: Rig) -> None:
    container_id = rig.engine.create(plan_for())
    rig.engine.start(container_id)
    rig.assign()
    assert rig.row().state == "running"
    assert rig.row().container_id == container_id
    assert [container.id for container in rig.engine.containers()] == [container_id]


def test_a_container_made_but_not_started_before_a_kill_is_started(rig: Rig) -> None:
    container_id = rig.engine.create(plan_for())
    rig.assign()
    assert rig.row().container_id == container_id
    assert rig.row().state == "running"


@pytest.mark.spec("B4")
def test_a_finished_workload_that_is_still_assigned_is_not_run_again(rig: Rig) -> None:
    rig.assign()
    rig.clock.forward(60)
    rig.settle()
    rig.workloads.note(rig.row(), log_done=1)
    rig.settle()
    rig.assign()
    assert rig.engine.containers() == []
    assert rig.states()[-1] == "finished"
    assert rig.states().count("running") == 1


@pytest.mark.case("agent-32")
def test_what_the_platform_no_longer_lists_is_stopped(rig: Rig) -> None:
    rig.assign()
    rig.jobs.assigned([])
    rig.settle()
    rig.clock.forward(1)
    rig.settle()
    assert rig.row().cause == "stopped"
    assert rig.states()[-2:] == ["stopping", "finished"]


def test_before_the_platform_has_spoken_nothing_is_stopped_for_not_being_listed(rig: Rig) -> None:
    rig.assign()
    rig.database.set_meta("desired", "[]")
    rig.start()
    rig.settle()
    assert rig.row().state == "running"


def test_a_stop_before_the_start_ends_it_without_a_container(rig: Rig) -> None:
    rig.assign(wanted="stop")
    assert rig.row().cause == "stopped"
    assert rig.engine.containers() == []


def test_a_stop_that_was_asked_for_cannot_be_taken_back(rig: Rig) -> None:
    rig.assign()
    rig.jobs.assigned([assignment(wanted="stop")])
    rig.jobs.reconcile()
    rig.jobs.assigned([assignment(wanted="run")])
    rig.settle()
    rig.clock.forward(1)
    rig.settle()
    assert rig.row().cause == "stopped"


@pytest.mark.spec("B4")
def test_the_deadline_holds_without_a_word_from_the_platform_and_over_a_restart(rig: Rig) -> None:
    rig.assign(
        stop_at=iso(rig.clock.now().replace(minute=5)), spec={"image": "ubuntu", "command": ["sleep", "infinity"]}
    )
    rig.start()
    rig.clock.forward(299)
    rig.settle()
    assert rig.row().state == "running"
    rig.clock.forward(1)
    rig.settle()
    rig.clock.forward(1)
    rig.settle()
    row = rig.row()
    assert row.cause == "deadline"
    assert row.finished_at is not None
    assert row.stop_at is not None
    assert (row.finished_at - row.stop_at).total_seconds() < 1


def test_a_deadline_can_be_moved_by_the_answer_to_a_report(rig: Rig) -> None:
    rig.assign()
    later = rig.clock.now().replace(hour=13)
    rig.jobs.answered(f"workloads/{WORKLOAD}/report", {"attempt": 1}, {"wanted": "run", "stop_at": iso(later)})
    assert rig.row().stop_at == later


@pytest.mark.spec("B4")
def test_an_attempt_that_is_not_ours_any_more_is_killed_at_once(rig: Rig) -> None:
    rig.assign()
    rig.jobs.disowned(f"workloads/{WORKLOAD}/report", {"attempt": 1}, Refused(409, "stale_attempt", "", {}))
    rig.settle()
    assert rig.row().state == "finished"
    assert rig.row().exit_code == 137


def test_a_higher_attempt_replaces_the_lower_one_and_waits_for_its_gpu(rig: Rig) -> None:
    rig.assign()
    rig.jobs.assigned([assignment(attempt=2)])
    rig.settle()
    first, second = rig.workloads.get(WORKLOAD, 1), rig.workloads.get(WORKLOAD, 2)
    assert first is not None
    assert first.state == "finished"
    rig.settle()
    second = rig.workloads.get(WORKLOAD, 2)
    assert second is not None
    assert second.state == "running"


def test_a_lower_attempt_is_ignored(rig: Rig) -> None:
    rig.assign(attempt=2)
    rig.assign(attempt=1)
    assert [row.attempt for row in rig.workloads.all()] == [2]


@pytest.mark.case("agent-36")
def test_an_orphan_of_ours_is_removed_after_its_grace_and_a_strangers_container_never(rig: Rig) -> None:
    orphan, stranger = plan_for(OTHER), plan_for(WORKLOAD, machine_id="another-machine")
    rig.engine.start(rig.engine.create(orphan))
    rig.engine.start(rig.engine.create(stranger))
    rig.jobs.assigned([])
    rig.settle()
    assert len(rig.engine.containers()) == 1
    rig.clock.forward(121)
    rig.settle()
    assert rig.engine.containers() == []
    rig.engine.use_machine("another-machine")
    assert len(rig.engine.containers()) == 1


def test_orphans_stay_while_the_platform_has_not_been_heard(rig: Rig) -> None:
    rig.engine.start(rig.engine.create(plan_for(OTHER)))
    rig.clock.forward(3600)
    rig.settle()
    assert len(rig.engine.containers()) == 1


@pytest.mark.spec("B4")
def test_a_container_that_is_gone_after_a_reboot_was_ended_by_it(rig: Rig) -> None:
    rig.assign()
    rig.engine.remove(rig.row().container_id or "")
    rig.boot_id = "boot-2"
    rig.start()
    rig.settle()
    assert rig.row().cause == "host_restart"


def test_a_container_that_was_killed_by_a_reboot_is_the_hosts_fault_not_the_jobs(rig: Rig) -> None:
    rig.assign()
    rig.engine.stop(rig.row().container_id or "", grace_s=0)
    rig.boot_id = "boot-2"
    rig.start()
    rig.settle()
    assert rig.row().cause == "host_restart"


def test_a_container_removed_by_somebody_is_the_providers_side(rig: Rig) -> None:
    rig.assign()
    rig.engine.remove(rig.row().container_id or "")
    rig.settle()
    assert rig.row().cause == "docker_failed"


def test_a_card_that_falls_off_ends_its_job_and_leaves_the_others(rig: Rig) -> None:
    rig.jobs.assigned([assignment(), assignment(id=OTHER, gpu_uuids=[GPUS[1]])])
    rig.settle()
    rig.cards.gone.add(GPUS[0])
    rig.settle()
    rig.clock.forward(1)
    rig.settle()
    assert rig.row().cause == "gpu_lost"
    assert GPUS[0] in (rig.row().message or "")
    assert rig.row(OTHER).state == "running"


def test_no_job_is_started_on_a_card_that_is_gone_or_unknown(rig: Rig) -> None:
    rig.assign(gpu_uuids=["GPU-99999999-0000-0000-0000-000000000000"])
    assert rig.row().cause == "gpu_unavailable"
    assert rig.engine.containers() == []


def test_a_card_in_use_is_waited_for_and_then_refused(rig: Rig) -> None:
    long = {"image": "ubuntu", "command": ["sleep", "infinity"]}
    rig.jobs.assigned([assignment(spec=long), assignment(id=OTHER)])
    rig.settle()
    assert rig.row(OTHER).state == "accepted"
    rig.clock.forward(61)
    rig.settle()
    assert rig.row(OTHER).cause == "gpu_unavailable"
    assert rig.row().state == "running"


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        ({"image": "Not An Image"}, "image_invalid"),
        ({"image": "acme/missing-image"}, "image_missing"),
        ({"image": "private-things"}, "image_denied"),
        ({"image": "ubuntu", "privileged": True}, "spec_invalid"),
        ({"image": "ubuntu", "command": "rm -rf /"}, "spec_invalid"),
        (None, "image_invalid"),
    ],
)
def test_what_the_renter_got_wrong_is_told_apart(rig: Rig, spec: dict[str, object] | None, cause: str) -> None:
    rig.assign(spec=spec or {})
    assert rig.row().cause == cause
    assert rig.row().message
    assert rig.engine.containers() == []


def test_an_engine_that_cannot_start_containers_is_the_providers_side(rig: Rig) -> None:
    rig.faults["start"] = 0
    rig.assign()
    assert rig.row().cause == "docker_failed"


def test_running_out_of_memory_is_told_apart_from_a_kill(rig: Rig) -> None:
    rig.faults["oom"] = 5
    rig.assign()
    rig.clock.forward(6)
    rig.settle()
    assert (rig.row().cause, rig.row().exit_code) == ("oom", 137)


def test_while_the_engine_is_down_nothing_ends_and_both_changes_are_told_once(rig: Rig) -> None:
    rig.assign(spec={"image": "ubuntu", "command": ["sleep", "infinity"]})
    rig.faults["docker"] = 0
    rig.settle()
    rig.settle()
    assert rig.row().state == "running"
    del rig.faults["docker"]
    rig.settle()
    assert [event["kind"] for event in rig.outbox.take_events()] == ["docker_down", "docker_up"]
    assert rig.row().state == "running"


def test_a_job_that_never_found_an_engine_is_given_up(rig: Rig) -> None:
    rig.faults["docker"] = 0
    rig.assign()
    assert rig.row().state == "accepted"
    rig.clock.forward(121)
    rig.settle()
    assert rig.row().cause == "docker_failed"


@pytest.mark.spec("C1")
def test_a_benchmark_sends_its_result_before_it_says_that_it_finished(rig: Rig) -> None:
    rig.benchmarks.go.set()
    rig.assign(kind="benchmark", spec={"suite": "gpu", "nonce": "n1", "kernel_version": "1", "seconds": 1})
    paths = [row["path"].rpartition("/")[2] for row in rig.database.rows("SELECT path FROM outbox ORDER BY number")]
    assert paths == ["report", "report", "result", "report"]
    assert (rig.row().cause, rig.row().exit_code) == ("completed", 0)


@pytest.mark.spec("C1")
@pytest.mark.parametrize("reason", ["memory", "job"])
def test_a_benchmark_never_runs_beside_something_else(rig: Rig, reason: str) -> None:
    benchmark = assignment(id=OTHER, kind="benchmark", spec={"nonce": "n", "suite": "gpu"})
    if reason == "memory":
        rig.cards.used.add(GPUS[0])
        rig.jobs.assigned([benchmark])
    else:
        rig.assign()
        rig.jobs.assigned([assignment(), benchmark])
    rig.settle()
    assert rig.row(OTHER).cause == "busy"
    assert rig.benchmarks.runs == []


def test_a_benchmark_cut_off_by_a_restart_is_not_run_again(rig: Rig) -> None:
    rig.jobs.assigned([assignment(kind="benchmark", spec={"nonce": "n", "suite": "gpu"})])
    rig.jobs.reconcile()
    while rig.row().state != "running":
        pass
    old = rig.work
    rig.start()
    rig.settle()
    assert rig.row().cause == "agent_shutdown"
    assert rig.benchmarks.runs == [WORKLOAD]
    rig.benchmarks.go.set()
    old.wait(5)


def test_an_ended_container_stays_until_its_log_is_with_the_platform(rig: Rig) -> None:
    rig.assign()
    rig.clock.forward(60)
    rig.settle()
    assert len(rig.engine.containers()) == 1
    rig.workloads.note(rig.row(), log_done=1)
    rig.settle()
    assert rig.engine.containers() == []


def test_odd_assignments_are_left_out_and_harm_no_other(rig: Rig) -> None:
    odd = [None, 7, {}, {"id": 1}, assignment(id=OTHER, gpu_uuids="all"), assignment(id=OTHER, kind="shell")]
    rig.jobs.assigned([*odd, assignment()])  # type: ignore[list-item]
    rig.settle()
    assert [row.id for row in rig.workloads.all()] == [WORKLOAD]


def test_the_heartbeat_lists_what_has_not_ended(rig: Rig) -> None:
    rig.assign()
    (entry,) = rig.jobs.for_heartbeat()
    assert entry["state"] == "running"
    assert entry["container_started_at"] == iso(rig.row().container_started_at)
    rig.clock.forward(60)
    rig.settle()
    assert rig.jobs.for_heartbeat() == []


def test_rows_are_forgotten_a_day_after_nobody_can_ask_for_them(rig: Rig) -> None:
    rig.assign()
    rig.clock.forward(60)
    rig.settle()
    rig.workloads.note(rig.row(), log_done=1)
    for number, *_ in rig.outbox.heads() * 10:
        rig.outbox.done(number)
    with rig.database.change() as connection:
        connection.execute("DELETE FROM outbox")
    rig.jobs.assigned([])
    rig.settle()
    rig.settle()
    assert rig.workloads.all()
    rig.clock.forward(86400)
    rig.settle()
    assert rig.workloads.all() == []


def test_the_plan_of_a_container_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan_for().image = "other"  # type: ignore[misc]
