"""The state machine of workloads, its revisions, and the log."""

import itertools
import uuid
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers import workloads
from providers.models import Machine, Workload, WorkloadLog
from providers.workloads import ALLOWED, LogFull, Report, StaleAttempt, UnknownWorkload, WrongOffset, _cut
from tests.hosts import Host, approved, connected

pytestmark = pytest.mark.django_db
STATES = Workload.Observed.values


@pytest.fixture
def host(now: datetime) -> Host:
    return connected(approved(at=now), at=now)


@pytest.fixture
def workload(host: Host, now: datetime) -> Workload:
    return workloads.assign(
        machine=host.machine,
        kind=Workload.Kind.JOB,
        spec={"image": "a", "env": {"KEY": "hunter2"}},
        gpus=host.gpus,
        at=now,
    )


def say(workload: Workload, state: str, *, at: datetime, **fields: object) -> Workload:
    fields = {"cause": "completed"} | fields if state == "finished" else fields
    return workloads.report(
        machine=workload.machine,
        workload_id=workload.public_id,
        report=Report(attempt=1, state=state, **fields),
        at=at,  # type: ignore[arg-type]
    )


def revision(workload: Workload) -> int:
    return Machine.objects.get(pk=workload.machine_id).revision


def test_the_spec_is_stored_encrypted(workload: Workload) -> None:
    assert b"hunter2" not in bytes(workload.spec)
    assert workloads.spec_of(workload) == {"image": "a", "env": {"KEY": "hunter2"}}


def test_gpus_of_another_machine_are_a_mistake(host: Host, now: datetime) -> None:
    other = connected(approved(at=now), at=now)
    with pytest.raises(ValueError, match="one machine"):
        workloads.assign(machine=host.machine, kind=Workload.Kind.JOB, spec={}, gpus=other.gpus, at=now)


def test_what_the_machine_is_told_moves_its_revision_and_what_it_tells_does_not(
    workload: Workload, now: datetime
) -> None:
    seen = [revision(workload)]
    say(workload, "running", at=now)
    seen.append(revision(workload))
    workloads.set_stop_at(workload=workload, stop_at=now, at=now)
    seen.append(revision(workload))
    workloads.set_stop_at(workload=workload, stop_at=now, at=now)
    seen.append(revision(workload))
    workloads.ask_to_stop(workload=workload, at=now)
    seen.append(revision(workload))
    say(workload, "finished", at=now)
    seen.append(revision(workload))
    assert seen == [1, 1, 2, 2, 3, 4]


@pytest.mark.case("marketplace-49")
@pytest.mark.parametrize(("before", "after"), list(itertools.product(STATES, STATES)))
def test_every_transition_is_taken_or_ignored_as_the_table_says(
    before: str, after: str, workload: Workload, now: datetime
) -> None:
    ended = {"cause": "oom", "finished_at": now} if before == "finished" else {}
    Workload.objects.update(observed=before, **ended)
    said = say(workload, after, at=now + timedelta(seconds=1))
    assert said.observed == (after if after in ALLOWED[before] else before)
    if before == "finished":
        assert (said.cause, said.finished_at) == ("oom", now)


def test_a_table_of_its_own_says_the_same() -> None:
    assert {state: sorted(later) for state, later in ALLOWED.items()} == {
        "assigned": ["accepted", "creating", "finished", "pulling", "running", "stopping"],
        "accepted": ["creating", "finished", "pulling", "running", "stopping"],
        "pulling": ["creating", "finished", "running", "stopping"],
        "creating": ["finished", "running", "stopping"],
        "running": ["finished", "stopping"],
        "stopping": ["finished"],
        "finished": [],
    }


def test_reports_in_any_order_and_number_come_to_the_same_end(workload: Workload, now: datetime) -> None:
    for seconds, state in enumerate(["running", "pulling", "finished", "running", "accepted", "finished"]):
        say(workload, state, at=now + timedelta(seconds=seconds), exit_code=seconds if state == "finished" else None)
    workload.refresh_from_db()
    assert (workload.observed, workload.exit_code) == ("finished", 2)
    assert (workload.started_at, workload.finished_at) == (now, now + timedelta(seconds=2))


@pytest.mark.parametrize(
    ("said", "kept"),
    [(-60, 10), (20, 20), (3600, 30), (None, 30)],
    ids=["before it ran", "while it ran", "in the future", "unknown"],
)
def test_the_end_lies_between_the_start_and_the_report(
    said: int | None, kept: int, workload: Workload, now: datetime
) -> None:
    say(workload, "running", at=now + timedelta(seconds=10))
    ended = say(
        workload,
        "finished",
        at=now + timedelta(seconds=30),
        finished_at=None if said is None else now + timedelta(seconds=said),
    )
    assert ended.finished_at == now + timedelta(seconds=kept)


def test_progress_of_a_pull_only_grows_and_ends_with_it(workload: Workload, now: datetime) -> None:
    for progress in (0.1, 0.6, 0.4):
        say(workload, "pulling", at=now, progress=progress)
    workload.refresh_from_db()
    assert workload.progress == 0.6
    assert say(workload, "creating", at=now).progress is None


def test_another_attempt_or_machine_is_refused(workload: Workload, now: datetime) -> None:
    for attempt in (0, 2):
        with pytest.raises(StaleAttempt):
            workloads.report(
                machine=workload.machine,
                workload_id=workload.public_id,
                report=Report(attempt=attempt, state="running"),
                at=now,
            )
    with pytest.raises(UnknownWorkload):
        workloads.report(
            machine=workload.machine, workload_id=uuid.uuid4(), report=Report(attempt=1, state="running"), at=now
        )


def test_what_the_server_ends_stays_ended_whatever_the_machine_says_later(workload: Workload, now: datetime) -> None:
    say(workload, "running", at=now)
    workloads.end_unseen(workload=workload, cause="machine_lost", at=now + timedelta(minutes=10))
    assert (workload.observed, workload.cause, workload.wanted) == ("finished", "machine_lost", "stop")
    assert say(workload, "running", at=now + timedelta(hours=1)).observed == "finished"
    assert not Workload.objects.known_to_machine().exists()


def test_a_heartbeat_proves_what_runs_in_the_container_that_was_told(
    workload: Workload, host: Host, now: datetime
) -> None:
    def prove(attempt: int, started_at: datetime | None, seconds: int) -> datetime | None:
        workloads.prove(
            machine=host.machine,
            running={workload.public_id: (attempt, started_at)},
            at=now + timedelta(seconds=seconds),
        )
        workload.refresh_from_db()
        return workload.proved_at

    assert prove(1, None, 1) is None  # nobody has reported that it runs
    say(workload, "running", at=now, container_started_at=now)
    assert prove(1, now, 10) == now + timedelta(seconds=10)
    assert prove(1, now, 5) == now + timedelta(seconds=10)
    assert prove(2, now, 20) == now + timedelta(seconds=10)
    assert prove(1, now + timedelta(seconds=15), 20) == now + timedelta(seconds=10)
    assert prove(1, now, 600) == now + timedelta(seconds=600)
    say(workload, "stopping", at=now)
    assert prove(1, now, 700) == now + timedelta(seconds=600)


def test_a_log_is_kept_in_order_and_once(workload: Workload, now: datetime) -> None:
    assert workloads.append_log(workload=workload, attempt=1, offset=0, text="abc", at=now) == 3
    for offset in (0, 2, 4):
        with pytest.raises(WrongOffset) as refused:
            workloads.append_log(workload=workload, attempt=1, offset=offset, text="abc", at=now)
        assert refused.value.wanted == 3
    assert workloads.append_log(workload=workload, attempt=1, offset=3, text="", at=now) == 3
    with pytest.raises(StaleAttempt):
        workloads.append_log(workload=workload, attempt=0, offset=3, text="abc", at=now)
    assert workloads.read_log(workload) == ("abc", 3)
    assert workloads.read_log(workload, after=3) == ("", 3)
    assert workloads.read_log(workload, after=99) == ("", 99)


def test_a_host_that_never_stops_printing_is_stopped(
    workload: Workload, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workloads, "MOST_LOG_BYTES", 10)
    workloads.append_log(workload=workload, attempt=1, offset=0, text="0123456789", at=now)
    with pytest.raises(LogFull):
        workloads.append_log(workload=workload, attempt=1, offset=10, text="x", at=now)


def test_reading_a_long_log_reads_few_rows(
    workload: Workload, now: datetime, django_assert_max_num_queries: object
) -> None:
    WorkloadLog.objects.bulk_create(
        [
            WorkloadLog(workload=workload, attempt=1, offset=10 * n, length=10, text=f"line {n:04d}\n")
            for n in range(1000)
        ]
    )
    with django_assert_max_num_queries(2):  # type: ignore[operator]
        text, after = workloads.read_log(workload, after=5005, limit_bytes=25)
    assert (text, after) == ("0500\nline 0501\nline 0502\n"[:25], 5030)


@given(st.text(alphabet="aé漢😀\n", max_size=60), st.data())
def test_reading_in_pieces_gives_the_whole_text(text: str, data: st.DataObject) -> None:
    """Whatever the pieces written and the limits read by, nothing is lost, doubled or cut within a character."""
    whole = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    parts = [part for start, end in itertools.pairwise([0, *cuts, len(text)]) if (part := text[start:end])]
    pieces, at = [], 0
    for part in parts:
        pieces.append((at, part.encode()))
        at += len(part.encode())
    read, after = "", 0
    while after < len(whole):
        limit = data.draw(st.integers(4, 20))
        visible = [piece for piece in pieces if piece[0] + len(piece[1]) > after]
        more, after_next = _cut(visible, after=after, limit_bytes=limit)
        assert after_next > after
        read, after = read + more, after_next
    assert read == text
