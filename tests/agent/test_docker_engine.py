"""The engine on a real Docker daemon of its own, in a network namespace of its own. A stand-in for NVIDIA's hook lets it accept cards."""

import io
import os
import resource
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.docker_engine import DockerEngine
from agent.engine import Container, ContainerPlan, EngineDown, EngineError, ImageInvalid
from agent.spec import Share, job_plan
from tests.agent.conftest import GPUS, MACHINE, WORKLOAD
from tests.requirements import require, unavailable

HERE = Path(__file__).parent
SHARE = Share(memory_mib=64, cpus=1, shm_max_mib=64)
IMAGE = "gpunex-test-probe"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a daemon that this module alone uses."""
    if os.geteuid() != 0:
        pytest.skip("no Docker engine can be started here: not root")
    for tool in ("dockerd", "gcc", "nft"):
        require(tool, "the agent on a Docker engine")
    folder = tmp_path_factory.mktemp("docker")
    hook = folder / "bin" / "nvidia-container-runtime-hook"
    hook.parent.mkdir()
    hook.write_text("#!/bin/sh\ncat >/dev/null\n")
    hook.chmod(0o755)
    address = f"unix://{folder}/docker.sock"
    command = f"ip link set lo up; exec dockerd --data-root {folder}/data --exec-root {folder}/exec -H {address} --pidfile {folder}/pid"
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", command],
            stdout=log,
            stderr=log,
            env={**os.environ, "PATH": f"{hook.parent}:{os.environ['PATH']}"},
        )
    try:
        deadline = time.monotonic() + 40
        while True:
            try:
                DockerEngine.connect(state_path=folder, base_url=address).engine_id()
                break
            except EngineError:
                if child.poll() is not None or time.monotonic() > deadline:
                    unavailable(f"the Docker engine does not start here: {(folder / 'log').read_text()[-300:]}")
                time.sleep(0.2)
        yield address
    finally:
        child.terminate()
        child.wait(30)


@pytest.fixture(scope="module")
def image(daemon: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image of one static program, made without a registry."""
    probe = tmp_path_factory.mktemp("image") / "probe"
    subprocess.run(["gcc", "-static", "-O1", "-o", probe, HERE / "docker_probe.c"], check=True)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(probe, "probe")
    subprocess.run(
        ["docker", "-H", daemon, "import", "-", IMAGE], input=archive.getvalue(), check=True, capture_output=True
    )
    return IMAGE


@pytest.fixture
def engine(daemon: str, tmp_path: Path) -> Iterator[DockerEngine]:
    engine = DockerEngine.connect(state_path=tmp_path, base_url=daemon, unsafe_development=True)
    engine.use_machine(MACHINE)
    yield engine
    for container in engine.containers():
        engine.remove(container.id)


def plan(*words: str, attempt: int = 1, machine_id: str = MACHINE, env: dict[str, str] | None = None) -> ContainerPlan:
    made = job_plan(
        {"image": IMAGE, "command": ["/probe", *words], "env": env or {}, "shm_mib": 64},
        workload_id=WORKLOAD,
        attempt=attempt,
        machine_id=machine_id,
        gpu_uuids=tuple(GPUS[:1]),
        share=SHARE,
    )
    made.host_config["ulimits"] = [limit for limit in made.host_config["ulimits"] if _may_set(limit)]
    return made


def _may_set(limit: dict[str, Any]) -> bool:
    """A test machine that is a container itself may not give its children more than it has."""
    _, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{limit['Name'].upper()}"))
    return hard == resource.RLIM_INFINITY or 0 <= limit["Hard"] <= hard


def ended(engine: DockerEngine, container_id: str) -> Container:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        (found,) = [container for container in engine.containers() if container.id == container_id]
        if found.state == "exited":
            return found
        time.sleep(0.1)
    raise AssertionError("the container did not end")


@pytest.mark.spec("B3", "F3")
def test_a_job_runs_behind_its_walls_and_its_log_and_code_are_read(
    engine: DockerEngine, image: str, daemon: str
) -> None:
    words = (
        "say",
        "hello",
        "err",
        "oops",
        "uid",
        "env",
        "NVIDIA_VISIBLE_DEVICES",
        "write",
        "/etc/x",
        "write",
        "/workspace/x",
        "exit",
        "3",
    )
    container_id = engine.create(plan(*words, env={"NVIDIA_VISIBLE_DEVICES": "all"}))
    assert engine.create(plan(*words)) == container_id
    engine.start(container_id)
    found = ended(engine, container_id)
    assert (found.exit_code, found.oom_killed, found.gpu_uuids) == (3, False, tuple(GPUS[:1]))
    assert found.started_at is not None
    lines = list(engine.logs(container_id, since=""))
    assert {line.text for line in lines} == {
        "hello", "oops", "uid=65534", f"NVIDIA_VISIBLE_DEVICES={GPUS[0]}", "write /etc/x: no", "write /workspace/x: yes",
    }  # fmt: skip
    assert [line.text for line in engine.logs(container_id, since=lines[-1].at)] == [lines[-1].text]
    seen = subprocess.run(
        ["docker", "-H", daemon, "network", "ls", "--format", "{{.Name}}"], capture_output=True, text=True, check=True
    )
    assert f"gpunex-{WORKLOAD}-1" in seen.stdout
    engine.remove(container_id)
    engine.remove(container_id)
    seen = subprocess.run(
        ["docker", "-H", daemon, "network", "ls", "--format", "{{.Name}}"], capture_output=True, text=True, check=True
    )
    assert f"gpunex-{WORKLOAD}" not in seen.stdout


def test_a_stop_is_asked_for_first_and_then_forced(engine: DockerEngine, image: str) -> None:
    patient = engine.create(plan("patient", "say", "ready", "wait", "60"))
    engine.start(patient)
    while not list(engine.logs(patient, since="")):
        time.sleep(0.05)
    engine.stop(patient, grace_s=10)
    assert ended(engine, patient).exit_code == 7
    stubborn = engine.create(plan("wait", "60", attempt=2))
    engine.start(stubborn)
    engine.stop(stubborn, grace_s=0)
    assert ended(engine, stubborn).exit_code == 137
    engine.stop(stubborn, grace_s=0)
    engine.stop("0" * 64, grace_s=1)


def test_running_out_of_memory_is_seen(engine: DockerEngine, image: str) -> None:
    container_id = engine.create(plan("eat"))
    engine.start(container_id)
    found = ended(engine, container_id)
    assert found.exit_code == 137
    if not found.oom_killed:
        pytest.skip("this host's cgroups do not tell that memory ran out")


def test_a_command_that_is_not_in_the_image_ends_with_127(engine: DockerEngine, image: str) -> None:
    made = plan()
    made.config["command"] = ["/no-such-program"]
    made.host_config["init"] = False
    container_id = engine.create(made)
    engine.start(container_id)
    found = ended(engine, container_id)
    assert found.exit_code == 127
    assert "no such file" in found.error.lower()


def test_other_machines_containers_are_not_seen(engine: DockerEngine, image: str, daemon: str, tmp_path: Path) -> None:
    other = DockerEngine.connect(state_path=tmp_path, base_url=daemon, unsafe_development=True)
    other.use_machine("another-machine")
    container_id = other.create(plan("exit", "0", machine_id="another-machine"))
    assert engine.containers() == []
    with pytest.raises(EngineError, match="not ours"):
        engine.create(plan("exit", "0"))
    other.remove(container_id)


def test_an_image_that_is_here_is_named_by_its_content(engine: DockerEngine, image: str) -> None:
    said: list[float | None] = []
    assert engine.pull(IMAGE, progress=said.append, cancelled=lambda: False).startswith("sha256:")
    assert said == [1.0]


def test_a_registry_that_cannot_be_reached_is_the_providers_side_and_a_bad_name_is_not(engine: DockerEngine) -> None:
    with pytest.raises(EngineError):
        engine.pull("registry.example.invalid/x:1", progress=lambda _: None, cancelled=lambda: False)
    with pytest.raises(ImageInvalid):
        engine.pull("UPPER/case:1", progress=lambda _: None, cancelled=lambda: False)


def test_without_the_egress_table_no_job_is_started(daemon: str, tmp_path: Path) -> None:
    strict = DockerEngine.connect(state_path=tmp_path, base_url=daemon)
    assert "egress" in (strict.refuses_jobs() or "")


def test_versions_are_read_from_the_engine(engine: DockerEngine) -> None:
    versions = engine.versions()
    assert versions["docker_version"]
    assert versions["runc_version"]
    assert versions["toolkit_version"] is None


def test_an_engine_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineDown):
        DockerEngine.connect(state_path=tmp_path, base_url=f"unix://{tmp_path}/none.sock")
