from pathlib import Path

import pytest

from agent.simulation.driver import SimulatedDriver, gpu_uuids
from agent.simulation.engine import SimulatedEngine
from agent.simulation.faults import UnknownFault, parse_faults
from agent.simulation.profiles import CARDS, UnknownProfile, parse_profile
from agent.simulation.script import NOTICE, interpret
from tests.agent.conftest import GPUS, MACHINE, SetClock
from tests.agent.test_jobs import plan_for


def lines(command: list[str] | None, **env: str) -> list[str]:
    return [text for _, text in interpret(command, env=env, gpus=["NVIDIA L4"], seed="s").lines]


@pytest.mark.parametrize(
    ("command", "seconds", "code"),
    [
        (["sleep", "5"], 5, 0),
        (["sh", "-c", "sleep 1m"], 60, 0),
        (["bash", "-lc", "exit 7; sleep 100"], 0, 7),
        (["sh", "-c", "false && sleep 100"], 0, 1),
        (["sh", "-c", "false; true"], 0, 0),
        (["sh", "-c", "exit 300"], 0, 44),
        (["python", "train.py"], 20, 0),
        (None, 20, 0),
    ],
)
def test_a_command_takes_its_time_and_ends_with_its_code(command: list[str] | None, seconds: float, code: int) -> None:
    plan = interpret(command, env={}, gpus=["NVIDIA L4"], seed="s")
    assert plan.exit_code == code
    assert seconds <= plan.ends_after_s <= seconds + 1
    assert all(0 <= second <= plan.ends_after_s for second, _ in plan.lines)


def test_every_log_begins_by_saying_that_it_is_simulated() -> None:
    for command in (None, ["echo", "hi"], ["sh", "-c", "exit 1"], ["python", "train.py"]):
        assert lines(command)[0] == NOTICE


def test_the_tiny_language_knows_variables_and_the_cards() -> None:
    assert lines(["sh", "-c", "echo $NAME-${NAME}\nnvidia-smi -L"], NAME="x")[1:] == [
        "x-x",
        "GPU 0: NVIDIA L4 (simulated)",
    ]
    assert len(lines(None)) > 20


@pytest.mark.parametrize(
    "odd",
    [["sh", "-c", "echo 'unclosed"], ["sh", "-c", ""], ["sh", "-c", ";;&&"], [""], ["exit", "x"], ["sleep", "-5"]],
)
def test_odd_commands_end(odd: list[str]) -> None:
    assert interpret(odd, env={}, gpus=[], seed="s").ends_after_s < 60


def test_containers_outlive_the_engine_that_started_them(tmp_path: Path) -> None:
    clock = SetClock()

    def engine() -> SimulatedEngine:
        opened = SimulatedEngine(tmp_path / "e.sqlite3", gpu_names={}, now=clock.now)
        opened.use_machine(MACHINE)
        return opened

    first = engine()
    first.start(first.create(plan_for()))
    clock.forward(5)
    (running,) = engine().containers()
    assert running.state == "running"
    clock.forward(60)
    (ended,) = engine().containers()
    assert (ended.state, ended.exit_code) == ("exited", 3)
    engine().start(ended.id)
    assert engine().containers() == [ended]


def test_cards_warm_up_under_a_job_and_cool_down_after_it(tmp_path: Path) -> None:
    clock = SetClock()
    engine = SimulatedEngine(tmp_path / "e.sqlite3", gpu_names={}, now=clock.now)
    driver = SimulatedDriver(card=CARDS["l4"], uuids=GPUS[:1], engine=engine, now=lambda: clock.now().timestamp())
    engine.use_machine(MACHINE)

    def now() -> tuple[int, float, int, int]:
        (sample,) = driver.read().samples
        assert sample.temperature_c is not None
        assert sample.power_w is not None
        assert sample.utilization_pct is not None
        assert sample.memory_used_mib is not None
        return sample.temperature_c, sample.power_w, sample.utilization_pct, sample.memory_used_mib

    cold = now()
    engine.start(engine.create(plan_for()))
    clock.forward(9)
    busy = now()
    clock.forward(600)
    idle = now()
    assert busy[0] > cold[0]
    assert busy[1] > 5 * idle[1] / 2
    assert busy[2] > 90
    assert busy[3] > 10_000
    assert idle[2] == 0
    assert abs(idle[0] - cold[0]) <= 3


def test_every_card_can_be_simulated_and_names_are_checked() -> None:
    for name, card in CARDS.items():
        assert parse_profile(name) == (card, 1)
        assert parse_profile(f"{name}x4") == (card, 4)
        assert parse_profile(f" {name} x8 ") == (card, 8)
    for odd in ("", "h100", "l4x0", "l4x17", "l4 x", "x2"):
        with pytest.raises(UnknownProfile):
            parse_profile(odd)


def test_uuids_come_from_the_seed_and_look_like_the_drivers() -> None:
    assert gpu_uuids("a", 2) == gpu_uuids("a", 2)
    assert not set(gpu_uuids("a", 8)) & set(gpu_uuids("b", 8))
    assert all(len(uuid) == 40 and uuid.startswith("GPU-") for uuid in gpu_uuids("a", 8))


def test_unknown_faults_are_refused() -> None:
    with pytest.raises(UnknownFault):
        parse_faults("meltdown@3")
    with pytest.raises(UnknownFault):
        parse_faults("oom@soon")
