import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.clock import Clock
from agent.outbox import Outbox, Sender
from agent.platform import Backoff, Platform, Refused, Unreachable
from agent.state import SAMPLES_SCHEMA, Database
from tests.agent.peer import Peer

WORKLOAD = "11111111-1111-4111-8111-111111111111"
NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return open_outbox(tmp_path)


def open_outbox(folder: Path) -> Outbox:
    return Outbox(Database(folder / "a.sqlite3"), Database(folder / "s.sqlite3", schema=SAMPLES_SCHEMA, durable=False))


class Answers:
    def __init__(self) -> None:
        self.answered: list[dict[str, object]] = []
        self.disowned: list[str] = []

    def sender(self, outbox: Outbox, peer: Peer) -> Sender:
        platform = Platform(peer.url, clock=Clock(), secret=peer.secret)
        return Sender(
            outbox=outbox,
            platform=platform,
            answered=lambda path, sent, answer: self.answered.append(answer),
            disowned=lambda path, sent, refusal: self.disowned.append(refusal.code),
        )


def report(
    outbox: Outbox, number: int, *, workload_id: str = WORKLOAD, attempt: int = 1, state: str = "running"
) -> None:
    body = {"attempt": attempt, "sequence": number, "state": state}
    outbox.add(stream=f"workload:{workload_id}", path=f"workloads/{workload_id}/report", body=body)


def drain(sender: Sender) -> None:
    while sender.send_once():
        pass


@pytest.mark.spec("B4")
def test_reports_go_out_in_the_order_they_happened(outbox: Outbox, peer: Peer) -> None:
    for number in range(1, 6):
        report(outbox, number)
    drain(Answers().sender(outbox, peer))
    assert [body["sequence"] for _, body in peer.reports] == [1, 2, 3, 4, 5]
    assert not outbox.waiting(f"workload:{WORKLOAD}")


@pytest.mark.spec("B4")
def test_nothing_is_lost_while_the_platform_is_silent_nor_by_a_restart(tmp_path: Path, peer: Peer) -> None:
    outbox = open_outbox(tmp_path)
    report(outbox, 1)
    outbox.event("boot", at=NOW)
    peer.silent = True
    with pytest.raises(Unreachable):
        Answers().sender(outbox, peer).send_once()
    peer.silent = False
    drain(Answers().sender(open_outbox(tmp_path), peer))
    assert len(peer.reports) == 1
    assert [event["kind"] for event in peer.events.values()] == ["boot"]


@pytest.mark.spec("B4")
def test_an_answer_that_got_lost_repeats_the_item_and_changes_nothing(outbox: Outbox, peer: Peer) -> None:
    sender = Answers().sender(outbox, peer)
    report(outbox, 1)
    peer.lose_answers = 1
    with pytest.raises(Unreachable):
        sender.send_once()
    drain(sender)
    assert [body["sequence"] for _, body in peer.reports] == [1, 1]

    outbox.event("xid", at=NOW, gpu_uuid="GPU-1", data={"xid": 79})
    outbox.event("gpu_lost", at=NOW, gpu_uuid="GPU-1")
    peer.lose_answers = 1
    with pytest.raises(Unreachable):
        sender.send_once()
    drain(sender)
    assert peer.event_posts == 2
    assert [event["kind"] for event in peer.events.values()] == ["xid", "gpu_lost"]
    assert outbox.take_events() == []


def test_a_refused_item_is_set_aside_and_does_not_block_those_behind_it(outbox: Outbox, peer: Peer) -> None:
    report(outbox, 1)
    peer.refuse["/report"] = (422, "invalid")
    sender = Answers().sender(outbox, peer)
    sender.send_once()
    del peer.refuse["/report"]
    report(outbox, 2)
    drain(sender)
    assert [body["sequence"] for _, body in peer.reports] == [2]


@pytest.mark.case("agent-41")
@pytest.mark.parametrize("code", ["revoked", "secret_unknown", "skew", "retry_after"])
def test_what_is_not_the_items_fault_keeps_the_item(outbox: Outbox, peer: Peer, code: str) -> None:
    report(outbox, 1)
    peer.refuse["/report"] = (429 if code == "retry_after" else 401, code)
    sender = Answers().sender(outbox, peer)
    with pytest.raises(Refused):
        sender.send_once()
    peer.refuse.clear()
    drain(sender)
    assert len(peer.reports) == 1


def test_a_stale_attempt_is_told_to_who_kills_it_and_forgotten(outbox: Outbox, peer: Peer) -> None:
    peer.want(id=WORKLOAD, attempt=2, gpu_uuids=[], spec={})
    report(outbox, 1, attempt=1)
    answers = Answers()
    drain(answers.sender(outbox, peer))
    assert answers.disowned == ["stale_attempt"]
    assert not outbox.waiting(f"workload:{WORKLOAD}")


def test_one_bad_event_is_found_among_good_ones(outbox: Outbox, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("boot", "bad", "docker_up"):
        outbox.event(kind, at=NOW)
    keep = peer._keep

    def picky(path: str, body: dict[str, list[dict[str, str]]]) -> tuple[int, dict[str, object]]:
        if path == "events" and any(event["kind"] == "bad" for event in body["events"]):
            return 422, {"code": "invalid", "detail": "no such kind"}
        return keep(path, body)

    monkeypatch.setattr(peer, "_keep", picky)
    drain(Answers().sender(outbox, peer))
    assert [event["kind"] for event in peer.events.values()] == ["boot", "docker_up"]


def test_what_is_not_the_platform_is_not_taken_for_it(
    outbox: Outbox, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "_answer", lambda *_: (200, b"<html>Please sign in to the network</html>"))
    report(outbox, 1)
    with pytest.raises(Unreachable, match="not from the platform"):
        Answers().sender(outbox, peer).send_once()
    assert outbox.waiting(f"workload:{WORKLOAD}")


def test_samples_are_thinned_to_one_a_minute_when_old_and_capped(outbox: Outbox) -> None:
    now = 1_800_000_000.0
    for second in range(0, 3600, 5):
        outbox.samples([{"gpu_uuid": "GPU-1"}, {"gpu_uuid": "GPU-2"}], taken_at=now - second)
    outbox.samples([{"gpu_uuid": "GPU-1"}], taken_at=now - 2 * 86400)
    outbox.trim_samples(now)
    kept = outbox._samples.rows("SELECT count(*) AS count FROM samples")[0]["count"]
    recent = 2 * (15 * 60 // 5 + 1)
    assert recent <= kept <= recent + 2 * 46


def test_a_sender_survives_the_platform_being_away(outbox: Outbox, peer: Peer) -> None:
    peer.silent = True
    stop = threading.Event()
    thread = threading.Thread(target=Answers().sender(outbox, peer).run, args=(stop,), daemon=True)
    thread.start()
    report(outbox, 1)
    time.sleep(0.1)
    peer.silent = False
    peer.wait(lambda: peer.reports)
    stop.set()
    outbox.wake.set()
    thread.join(5)
    assert not thread.is_alive()


def test_the_back_off_grows_with_full_jitter_and_is_capped() -> None:
    longest = Backoff(rng=lambda: 1.0)
    assert [longest.failure() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    longest.success()
    assert longest.failure() == 1
    assert Backoff(rng=lambda: 0.0).failure() == 0.05


@pytest.mark.case("agent-42")
def test_the_platforms_time_is_learned_from_its_answers(outbox: Outbox, peer: Peer) -> None:
    peer.clock_ahead = timedelta(hours=1)
    clock = Clock()
    platform = Platform(peer.url, clock=clock, secret=peer.secret)
    platform.heartbeat({})
    assert abs(clock.offset_s - 3600) < 2
    assert abs((clock.now() - peer.now()).total_seconds()) < 2
