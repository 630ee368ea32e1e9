import itertools

import pytest

from agent.lifecycle import (
    ACCEPTED,
    ALLOWED,
    CAUSES,
    CREATING,
    FINISHED,
    PULLING,
    RUNNING,
    STOPPING,
    ForbiddenTransition,
    Workload,
)
from tests.agent.conftest import Rig, assignment

STATES = [ACCEPTED, PULLING, CREATING, RUNNING, STOPPING, FINISHED]
WAY_TO = {
    ACCEPTED: [],
    PULLING: [PULLING],
    CREATING: [PULLING, CREATING],
    RUNNING: [PULLING, CREATING, RUNNING],
    STOPPING: [PULLING, CREATING, RUNNING, STOPPING],
    FINISHED: [FINISHED],
}


def walk(rig: Rig, states: list[str]) -> Workload:
    workload = rig.workloads.accept(assignment(), at=rig.clock.now(), boot_id=rig.boot_id)
    for state in states:
        workload = rig.workloads.move(workload, state, at=rig.clock.now(), **finish(state))
    return workload


def finish(state: str) -> dict[str, str]:
    return {"cause": "completed"} if state == FINISHED else {}


@pytest.mark.spec("B4")
@pytest.mark.parametrize(("before", "after"), list(itertools.product(STATES, STATES)))
def test_every_pair_of_states_either_goes_and_is_reported_or_is_refused_and_changes_nothing(
    rig: Rig, before: str, after: str
) -> None:
    workload = walk(rig, WAY_TO[before])
    queued = len(rig.reports())

    if after in ALLOWED[before]:
        moved = rig.workloads.move(workload, after, at=rig.clock.now(), **finish(after))
        assert moved.state == after
        assert moved.sequence == workload.sequence + 1
        assert rig.reports()[-1]["state"] == after
    else:
        with pytest.raises(ForbiddenTransition):
            rig.workloads.move(workload, after, at=rig.clock.now(), **finish(after))
        assert rig.row().state == before
        assert len(rig.reports()) == queued


def test_nothing_leads_out_of_finished() -> None:
    assert ALLOWED[FINISHED] == frozenset()


def test_finishing_needs_one_of_the_contracts_causes(rig: Rig) -> None:
    workload = walk(rig, [])
    with pytest.raises(ForbiddenTransition, match="cause"):
        rig.workloads.move(workload, FINISHED, at=rig.clock.now(), cause="because")
    with pytest.raises(ForbiddenTransition, match="cause"):
        rig.workloads.move(workload, FINISHED, at=rig.clock.now())
    assert rig.row().state == ACCEPTED
    assert len(CAUSES) == 17


def test_a_row_and_its_report_are_written_together_or_not_at_all(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = walk(rig, [])

    def broken(**_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(rig.outbox, "add", broken)
    with pytest.raises(OSError, match="space"):
        rig.workloads.move(workload, PULLING, at=rig.clock.now())
    assert rig.row().state == ACCEPTED
    assert rig.states() == [ACCEPTED]


def test_an_assignment_accepted_twice_is_one_row_and_one_report(rig: Rig) -> None:
    walk(rig, [])
    walk(rig, [])
    assert len(rig.workloads.all()) == 1
    assert len(rig.reports()) == 1
