import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.engine import ContainerPlan
from agent.spec import NOBODY, Share, SpecInvalid, benchmark_plan, check_image, job_plan, share_of_host
from tests.agent.conftest import GPUS, MACHINE, WORKLOAD

SHARE = Share(memory_mib=8192, cpus=4, shm_max_mib=4096)
HOST_CONFIG_KEYS = {
    "privileged", "cap_drop", "security_opt", "read_only", "tmpfs", "mem_limit", "memswap_limit", "nano_cpus", "pids_limit",
    "shm_size", "ulimits", "oom_score_adj", "init", "ipc_mode", "cgroupns", "runtime", "dns", "log_config", "restart_policy",
    "auto_remove", "device_requests",
}  # fmt: skip


def plan(spec: object, **changes: Any) -> ContainerPlan:
    facts: dict[str, Any] = {
        "workload_id": WORKLOAD, "attempt": 1, "machine_id": MACHINE, "gpu_uuids": tuple(GPUS[:2]), "share": SHARE,
    }  # fmt: skip
    return job_plan(spec, **(facts | changes))


def check_walls(made: ContainerPlan) -> None:
    """What holds of every container there is, whatever was asked for."""
    host = made.host_config
    assert set(host) == HOST_CONFIG_KEYS
    assert host["privileged"] is False
    assert host["cap_drop"] == ["ALL"]
    assert host["security_opt"] == ["no-new-privileges:true"]
    assert host["read_only"] is True
    assert host["mem_limit"] == host["memswap_limit"] == "8192m"
    assert host["pids_limit"] == 4096
    assert host["restart_policy"] == {"Name": "no"}
    assert host["auto_remove"] is False
    assert host["log_config"]["Type"] == "local"
    assert host["runtime"] == "runc"
    (request,) = host["device_requests"]
    assert request["DeviceIDs"] == list(made.gpu_uuids)
    assert request["Count"] == 0
    assert made.config["user"] == NOBODY
    assert made.config["environment"]["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert "NVIDIA_VISIBLE_DEVICES" not in made.config["environment"]
    assert made.labels["com.gpunex.machine"] == MACHINE


@pytest.mark.spec("B3")
def test_a_job_becomes_a_walled_in_container_with_its_cards_by_uuid() -> None:
    made = plan({"image": "ubuntu:24.04", "command": ["sleep", "1"], "env": {"A": "b"}, "shm_mib": 256})
    check_walls(made)
    assert made.image == "ubuntu:24.04"
    assert made.config["command"] == ["sleep", "1"]
    assert made.config["environment"]["A"] == "b"
    assert made.host_config["shm_size"] == "256m"
    assert made.name == f"gpunex-{WORKLOAD}-1"


@pytest.mark.spec("B3")
@pytest.mark.case("agent-24")
def test_the_renter_cannot_steer_the_nvidia_runtime() -> None:
    env = {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "all",
        "nvidia_require_cuda": "x",
        "KEPT": "1",
    }
    environment = plan({"image": "ubuntu", "env": env}).config["environment"]
    assert {key: value for key, value in environment.items() if key.upper().startswith("NVIDIA")} == {
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"
    }
    assert environment["KEPT"] == "1"


@pytest.mark.case("agent-40")
def test_a_process_without_a_name_has_a_home() -> None:
    environment = plan({"image": "ubuntu"}).config["environment"]
    assert {"HOME", "USER", "LOGNAME"} <= set(environment)
    assert plan({"image": "ubuntu", "env": {"HOME": "/data"}}).config["environment"]["HOME"] == "/data"


@pytest.mark.spec("B3")
@pytest.mark.parametrize(
    "field",
    ["privileged", "volumes", "binds", "mounts", "devices", "network_mode", "pid_mode", "ipc_mode", "cap_add", "security_opt",
     "user", "entrypoint", "sysctls", "userns_mode", "volumes_from", "links", "cgroup_parent", "runtime", "labels", "ports"],
)  # fmt: skip
def test_a_field_that_is_not_on_the_list_is_refused_not_ignored(field: str) -> None:
    with pytest.raises(SpecInvalid, match=field) as refused:
        plan({"image": "ubuntu", field: True})
    assert refused.value.cause == "spec_invalid"


@pytest.mark.parametrize(
    "image",
    ["ubuntu", "ubuntu:24.04", "nvidia/cuda:12.8.0-base-ubuntu24.04", "ghcr.io/acme/train:v1", "quay.io:443/a/b", "a.b.co/x__y/z-1.2",
     "nvcr.io/nvidia/pytorch:25.08-py3", "ubuntu@sha256:" + "a" * 64, "ghcr.io/a/b:tag@sha256:" + "0" * 64],
)  # fmt: skip
def test_image_references_of_public_registries_are_taken(image: str) -> None:
    assert check_image(image) == []


@pytest.mark.parametrize(
    "image",
    ["", " ", "Ubuntu", "ubuntu:", "ubuntu:t g", "ubuntu@sha256:abc", "ubuntu@md5:" + "a" * 32, "/ubuntu", "a//b", "a/", "-a", "http://x.y/z",
     "localhost/x", "localhost:5000/x", "127.0.0.1/x", "10.0.0.5:5000/x", "192.168.1.1/x", "169.254.169.254/latest", "8.8.8.8:0/x",
     "127.1:80/x", "registry.local/x", "nas.lan/x", "box.internal/x", "host:5000/x", "ghcr.io:99999/x", "x" * 256, "ubuntu\x00", "ubuntu\n",
     "ubuntü", None, 7, ["ubuntu"], {"image": "x"}, "[::1]:5000/x"],
)  # fmt: skip
def test_other_image_references_are_refused_as_such(image: object) -> None:
    assert check_image(image)
    with pytest.raises(SpecInvalid) as refused:
        plan({"image": image})
    assert refused.value.cause == "image_invalid"


@pytest.mark.parametrize(
    "part",
    [{"command": "sleep 1"}, {"command": []}, {"command": [1]}, {"command": ["a\x00b"]}, {"command": ["x" * 70_000]}, {"command": ["a"] * 257},
     {"command": ["\ud800"]}, {"env": []}, {"env": {"A": 1}}, {"env": {"1A": "x"}}, {"env": {"A=B": "x"}}, {"env": {"A": "\x00"}}, {"env": {"": "x"}},
     {"env": {f"V{number}": "" for number in range(257)}}, {"env": {"A": "x" * 70_000}}, {"shm_mib": 0}, {"shm_mib": -1}, {"shm_mib": 10**9},
     {"shm_mib": True}, {"shm_mib": "1"}, {"shm_mib": 64.5}],
)  # fmt: skip
def test_odd_values_are_refused(part: dict[str, object]) -> None:
    with pytest.raises(SpecInvalid) as refused:
        plan({"image": "ubuntu", **part})
    assert refused.value.cause == "spec_invalid"
    assert refused.value.errors


@pytest.mark.parametrize(
    "uuids", [(), ("all",), ("0",), (GPUS[0], GPUS[0]), ("GPU-1; rm -rf /",), ("MIG-" + GPUS[0][4:],)]
)
def test_cards_are_named_by_whole_different_uuids(uuids: tuple[str, ...]) -> None:
    with pytest.raises(SpecInvalid):
        plan({"image": "ubuntu"}, gpu_uuids=uuids)


def test_all_errors_are_told_at_once() -> None:
    with pytest.raises(SpecInvalid) as refused:
        plan({"image": "No", "command": 1, "env": 1, "shm_mib": 1, "other": 1})
    assert len(refused.value.errors) == 5


def test_a_benchmark_runs_behind_the_same_walls_without_a_network() -> None:
    made = benchmark_plan(
        image="gpunex-agent",
        command=["x"],
        workload_id=WORKLOAD,
        attempt=1,
        machine_id=MACHINE,
        gpu_uuids=tuple(GPUS[:1]),
        share=SHARE,
    )
    check_walls(made)
    assert made.network is False


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
names = st.sampled_from(["image", "command", "env", "shm_mib", "privileged", "binds", "user", "entrypoint"]) | st.text(
    max_size=8
)
likely = st.fixed_dictionaries(
    {
        "image": st.sampled_from(["ubuntu", "ghcr.io/a/b:c", "localhost/x"])
        | st.text(alphabet=string.printable, max_size=30)
    },
    optional={
        "command": st.lists(st.text(max_size=20), max_size=5) | values,
        "env": st.dictionaries(st.text(max_size=12), st.text(max_size=12), max_size=4) | values,
        "shm_mib": st.integers(-10, 10_000) | values,
    },
)


@pytest.mark.spec("B3")
@settings(max_examples=400, deadline=None)
@given(spec=likely | st.dictionaries(names, values, max_size=5) | values)
def test_no_spec_whatever_gets_through_or_around_the_walls(spec: object) -> None:
    made, refused = None, None
    try:
        made = plan(spec)
    except SpecInvalid as error:
        refused = error
    if made is None:
        assert refused is not None
        assert refused.errors
        assert refused.cause in ("spec_invalid", "image_invalid")
        return
    check_walls(made)
    assert isinstance(spec, dict)
    assert made.image == spec["image"]
    assert not check_image(made.image)
    given_env = spec.get("env") or {}
    assert set(made.config["environment"]) - set(given_env) <= {"HOME", "USER", "LOGNAME", "NVIDIA_DRIVER_CAPABILITIES"}


@given(memory=st.integers(0, 4_000_000), cores=st.integers(1, 512), total=st.integers(1, 16), given_=st.integers(1, 16))
def test_a_share_is_never_nothing_and_never_more_than_the_host(
    memory: int, cores: int, total: int, given_: int
) -> None:
    share = share_of_host(memory_mib=memory, cpu_cores=cores, gpus_total=total, gpus_given=given_)
    assert 512 <= share.memory_mib <= max(512, memory)
    assert 0.5 <= share.cpus <= max(1, cores)
    assert share.shm_max_mib <= share.memory_mib
