import pytest

from agent.clock import Clock
from agent.logs import LINE_BYTES, TOTAL_BYTES, LogShipper, clean_line
from agent.platform import Platform, Unreachable
from tests.agent.conftest import Rig, assignment
from tests.agent.peer import Peer

SCRIPT = "echo one; echo two; sleep 5; echo $API_TOKEN; echo three"
WHOLE = ["one", "two", "********", "three"]


def shipper(rig: Rig, peer: Peer) -> LogShipper:
    return LogShipper(
        workloads=rig.workloads, engine=rig.engine, platform=Platform(peer.url, clock=Clock(), secret=peer.secret)
    )


def run(rig: Rig, peer: Peer, script: str = SCRIPT) -> str:
    spec = {"image": "ubuntu", "command": ["sh", "-c", script], "env": {"API_TOKEN": "very-secret-value"}}
    workload_id = peer.want(gpu_uuids=[], spec=spec)
    rig.jobs.assigned([assignment(id=workload_id, spec=spec)])
    rig.settle()
    return workload_id


def kept(peer: Peer, workload_id: str) -> list[str]:
    return peer.logs.get(workload_id, b"").decode().splitlines()[1:]  # the first says that it is simulated


@pytest.mark.spec("F3")
def test_lines_arrive_once_as_they_are_printed(rig: Rig, peer: Peer) -> None:
    workload_id = run(rig, peer)
    shipping = shipper(rig, peer)
    rig.clock.forward(1)
    shipping.ship_all()
    shipping.ship_all()
    assert kept(peer, workload_id) == ["one", "two"]
    rig.clock.forward(10)
    rig.settle()
    shipping.ship_all()
    assert kept(peer, workload_id) == WHOLE
    assert rig.row(workload_id).log_done


@pytest.mark.spec("B4")
def test_a_lost_answer_leaves_no_gap_and_no_double_line(rig: Rig, peer: Peer) -> None:
    workload_id = run(rig, peer)
    rig.clock.forward(1)
    peer.lose_answers = 1
    with pytest.raises(Unreachable):
        shipper(rig, peer).ship_all()
    rig.clock.forward(10)
    rig.settle()
    rig.start()
    for _ in range(3):
        shipper(rig, peer).ship_all()
    assert kept(peer, workload_id) == WHOLE


@pytest.mark.parametrize("cut", [0, 1, 7, 40, 118, 119, 120])
def test_a_platform_that_lost_bytes_gets_them_again_also_from_inside_a_line(rig: Rig, peer: Peer, cut: int) -> None:
    workload_id = run(rig, peer)
    rig.clock.forward(60)
    rig.settle()
    rig.workloads.note(rig.row(workload_id), log_done=0)
    shipper(rig, peer).ship(rig.row(workload_id))
    whole = peer.logs[workload_id]
    peer.logs[workload_id] = whole[:cut]
    rig.workloads.note(rig.row(workload_id), log_done=0, log_cursor="", log_seen=0)
    for _ in range(3):
        shipper(rig, peer).ship(rig.row(workload_id))
    assert peer.logs[workload_id] == whole


def test_a_log_that_nobody_wants_is_not_offered_for_ever(rig: Rig, peer: Peer) -> None:
    workload_id = run(rig, peer)
    rig.clock.forward(1)
    peer.refuse["/logs"] = (404, "not_found")
    shipper(rig, peer).ship_all()
    assert rig.row(workload_id).log_done


def test_a_long_log_is_cut_and_says_where(rig: Rig, peer: Peer) -> None:
    workload_id = run(rig, peer)
    rig.clock.forward(1)
    peer.logs[workload_id] = b"x" * TOTAL_BYTES
    rig.workloads.note(rig.row(workload_id), log_offset=TOTAL_BYTES)
    shipper(rig, peer).ship_all()
    assert b"cut here" in peer.logs[workload_id]
    assert rig.row(workload_id).log_done


def test_a_line_is_bounded_and_fit_to_store() -> None:
    assert clean_line("a\x00b", []) == "a\ufffdb\n"
    assert len(clean_line("é" * LINE_BYTES, []).encode()) <= LINE_BYTES + 32
    assert clean_line("token=abcdefgh!", ["abcdefgh"]) == "token=********!\n"
    assert clean_line("\ud800", []) == "?\n"
