"""From a job's spec to a container, as a pure function. Nothing else in the agent makes containers.

The platform sends image, command, environment and shared memory; everything else about the container is a constant here
or this host's share. A field that is not on the list is refused, never ignored, and no part of a spec is ever passed on
unseen: the engine accepts privileged containers and host mounts without complaint, so this is the only gate.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Any

from agent.engine import LABEL_ATTEMPT, LABEL_GPUS, LABEL_KIND, LABEL_MACHINE, LABEL_WORKLOAD, ContainerPlan

JOB_FIELDS = frozenset({"image", "command", "env", "shm_mib"})
IMAGE_MAX = 255
COMMAND_MAX_ITEMS, COMMAND_MAX_BYTES = 256, 65_536
ENV_MAX_ITEMS, ENV_MAX_BYTES = 256, 65_536
SHM_MIN_MIB, SHM_DEFAULT_MIB = 64, 1024
STOP_GRACE_S = 10
JOB_PIDS = 4096
LOG_MAX_SIZE, LOG_MAX_FILES = "10m", "3"
NOBODY = "65534:65534"

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}\Z")
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_WORKLOAD_ID = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}\Z")
_PATH_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE_PATH = re.compile(rf"{_PATH_PART}(?:/{_PATH_PART})*\Z")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_HOST = re.compile(
    r"(?=.{1,253}(?::|\Z))[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*\Z"
)
_LOCAL_NAMES = (
    ".local",
    ".localhost",
    ".localdomain",
    ".internal",
    ".intranet",
    ".lan",
    ".home",
    ".home.arpa",
    ".corp",
)


class SpecInvalid(Exception):
    """A spec no container may be made from. `errors` are sentences for the renter; `cause` is the contract's word."""

    def __init__(self, errors: list[str], *, cause: str = "spec_invalid") -> None:
        super().__init__("; ".join(errors))
        self.errors = errors
        self.cause = cause


@dataclass(frozen=True)
class Share:
    """What one job may use of this host."""

    memory_mib: int
    cpus: float
    shm_max_mib: int


def share_of_host(*, memory_mib: int, cpu_cores: int, gpus_total: int, gpus_given: int) -> Share:
    """The job's part of the host by its part of the GPUs, after a reserve for the host itself.

    >>> share_of_host(memory_mib=131072, cpu_cores=32, gpus_total=4, gpus_given=1)
    Share(memory_mib=31129, cpus=7.75, shm_max_mib=15564)
    """
    part = min(1.0, max(1, gpus_given) / max(1, gpus_total))
    memory = max(512, memory_mib - max(1024, memory_mib // 20))  # the host keeps 5 %, at least 1 GiB
    cores = max(1.0, cpu_cores - 1) if cpu_cores > 1 else 1.0
    own_memory = max(512, int(memory * part))
    return Share(
        memory_mib=own_memory, cpus=round(max(0.5, cores * part), 2), shm_max_mib=max(SHM_MIN_MIB, own_memory // 2)
    )


def check_image(image: object, *, allow_private_registry: bool = False) -> list[str]:
    """What is wrong with an image reference; an empty list when nothing is."""
    if not isinstance(image, str) or not image:
        return ["image: a reference such as ubuntu:24.04 is needed"]
    if len(image) > IMAGE_MAX:
        return [f"image: longer than {IMAGE_MAX} characters"]
    if not image.isascii() or any(character.isspace() or ord(character) < 33 for character in image):
        return ["image: only ASCII letters, digits and . _ - / : @ are allowed"]
    name, at, digest = image.partition("@")
    if at and not _DIGEST.match(digest):
        return ["image: after @ only sha256: and 64 hexadecimal digits are allowed"]
    head, slash, rest = name.partition("/")
    registry = ""
    if slash and ("." in head or ":" in head or head == "localhost"):
        registry, name = head, rest
    path, colon, tag = name.rpartition(":") if ":" in name else (name, "", "")
    if colon and not _TAG.match(tag):
        return [f"image: {tag!r} is not a tag"]
    if not _IMAGE_PATH.match(path):
        return [f"image: {path!r} is not a repository name"]
    return _check_registry(registry) if registry and not allow_private_registry else []


def _check_registry(registry: str) -> list[str]:
    host, colon, port = registry.rpartition(":") if ":" in registry else (registry, "", "")
    if colon and not (port.isdecimal() and 0 < int(port) < 65536):
        return [f"image: {port!r} is not a port"]
    try:
        public = ipaddress.ip_address(host).is_global
    except ValueError:
        lowered = host.lower()
        numeric = lowered.rpartition(".")[2].isdigit()  # 127.1 and the like: some resolvers take them for addresses
        public = bool(_HOST.match(host)) and "." in host and not numeric and not lowered.endswith(_LOCAL_NAMES)
    return [] if public else [f"image: {registry!r} is not a public registry"]


def _check_command(command: object) -> list[str]:
    if command is None:
        return []
    if not isinstance(command, list) or not all(isinstance(item, str) for item in command):
        return ["command: a list of strings, or nothing"]
    if not command or len(command) > COMMAND_MAX_ITEMS:
        return [f"command: 1 to {COMMAND_MAX_ITEMS} items"]
    if sum(len(item.encode("utf-8", "surrogatepass")) for item in command) > COMMAND_MAX_BYTES:
        return [f"command: longer than {COMMAND_MAX_BYTES} bytes"]
    return ["command: no NUL characters or broken text"] if any(_unfit(item) for item in command) else []


def _check_env(env: object) -> list[str]:
    if env is None:
        return []
    if not isinstance(env, dict) or not all(
        isinstance(key, str) and isinstance(value, str) for key, value in env.items()
    ):
        return ["env: names and values, both strings"]
    if len(env) > ENV_MAX_ITEMS:
        return [f"env: at most {ENV_MAX_ITEMS} variables"]
    if sum(len(f"{key}={value}".encode("utf-8", "surrogatepass")) for key, value in env.items()) > ENV_MAX_BYTES:
        return [f"env: longer than {ENV_MAX_BYTES} bytes"]
    errors = [f"env: {key!r} is not a variable name" for key in env if not _ENV_NAME.match(key)]
    return errors + [
        f"env: the value of {key!r} has NUL characters or broken text" for key, value in env.items() if _unfit(value)
    ]


def _unfit(text: str) -> bool:
    """NUL, or half a surrogate pair: neither can be handed to a process."""
    return "\x00" in text or any("\ud800" <= character <= "\udfff" for character in text)


def _check_shm(shm_mib: object, share: Share) -> list[str]:
    if shm_mib is None:
        return []
    if not isinstance(shm_mib, int) or isinstance(shm_mib, bool) or not SHM_MIN_MIB <= shm_mib <= share.shm_max_mib:
        return [f"shm_mib: a whole number from {SHM_MIN_MIB} to {share.shm_max_mib} on this machine"]
    return []


def job_plan(
    spec: object,
    *,
    workload_id: str,
    attempt: int,
    machine_id: str,
    gpu_uuids: tuple[str, ...],
    share: Share,
    allow_private_registry: bool = False,
) -> ContainerPlan:
    """The container for a renter's job, its image still as written. Raises SpecInvalid with every error found."""
    if not isinstance(spec, dict):
        raise SpecInvalid(["spec: an object is needed"])
    image_errors = check_image(spec.get("image"), allow_private_registry=allow_private_registry)
    errors = [f"{key}: not a field of a job" for key in sorted(map(repr, spec.keys() - JOB_FIELDS))]
    errors += _check_command(spec.get("command")) + _check_env(spec.get("env")) + _check_shm(spec.get("shm_mib"), share)
    if not _WORKLOAD_ID.match(workload_id) or attempt < 1:
        errors.append("id: not a workload's id and attempt")
    if not gpu_uuids or len(set(gpu_uuids)) != len(gpu_uuids) or not all(_UUID.match(uuid) for uuid in gpu_uuids):
        errors.append("gpu_uuids: one or more different GPU UUIDs are needed")
    if errors or image_errors:
        raise SpecInvalid(image_errors + errors, cause="spec_invalid" if errors else "image_invalid")
    return _plan(
        image=spec["image"],
        command=spec.get("command"),
        env=spec.get("env") or {},
        shm_mib=spec.get("shm_mib") or min(SHM_DEFAULT_MIB, share.shm_max_mib),
        labels=_labels(
            machine_id=machine_id, workload_id=workload_id, attempt=attempt, kind="job", gpu_uuids=gpu_uuids
        ),
        gpu_uuids=gpu_uuids,
        share=share,
        network=True,
    )


def benchmark_plan(
    *,
    image: str,
    command: list[str],
    workload_id: str,
    attempt: int,
    machine_id: str,
    gpu_uuids: tuple[str, ...],
    share: Share,
) -> ContainerPlan:
    """The agent's own image, run the way a job is, without a network. `image` is the operator's setting, not the wire's."""
    return _plan(
        image=image,
        command=command,
        env={},
        shm_mib=SHM_MIN_MIB,
        labels=_labels(
            machine_id=machine_id, workload_id=workload_id, attempt=attempt, kind="benchmark", gpu_uuids=gpu_uuids
        ),
        gpu_uuids=gpu_uuids,
        share=share,
        network=False,
    )


def _labels(
    *, machine_id: str, workload_id: str, attempt: int, kind: str, gpu_uuids: tuple[str, ...]
) -> dict[str, str]:
    return {
        LABEL_MACHINE: machine_id,
        LABEL_WORKLOAD: workload_id,
        LABEL_ATTEMPT: str(attempt),
        LABEL_KIND: kind,
        LABEL_GPUS: ",".join(gpu_uuids),
    }


def job_environment(env: dict[str, str]) -> dict[str, str]:
    """The renter's variables without those that steer the NVIDIA runtime, over the home a process without a name needs."""
    own = {key: value for key, value in env.items() if not key.upper().startswith("NVIDIA_")}
    return {"HOME": "/workspace", "USER": "nobody", "LOGNAME": "nobody", **own}


def _plan(
    *,
    image: str,
    command: list[str] | None,
    env: dict[str, str],
    shm_mib: int,
    labels: dict[str, str],
    gpu_uuids: tuple[str, ...],
    share: Share,
    network: bool,
) -> ContainerPlan:
    name = f"gpunex-{labels[LABEL_WORKLOAD]}-{labels[LABEL_ATTEMPT]}"
    environment = job_environment(env) | {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    scratch_mib = max(64, share.memory_mib // 4)
    config: dict[str, Any] = {
        "command": command,
        "environment": environment,
        "labels": labels,
        "user": NOBODY,
        "stdin_open": False,
        "tty": False,
        "hostname": name[:20],
        "stop_signal": "SIGTERM",
        "healthcheck": {"test": ["NONE"]},  # an image's own health check would run beside the job, unasked
    }
    host_config: dict[str, Any] = {
        "privileged": False,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "read_only": True,
        "tmpfs": {
            "/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={scratch_mib}m",
            "/run": "rw,noexec,nosuid,nodev,mode=1777,size=16m",
            "/workspace": f"rw,exec,nosuid,nodev,mode=1777,size={scratch_mib}m",
        },
        "mem_limit": f"{share.memory_mib}m",
        "memswap_limit": f"{share.memory_mib}m",
        "nano_cpus": int(share.cpus * 1_000_000_000),
        "pids_limit": JOB_PIDS,
        "shm_size": f"{shm_mib}m",
        "ulimits": [
            {"Name": "nofile", "Soft": 65_536, "Hard": 65_536},
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "memlock", "Soft": -1, "Hard": -1},
        ],
        "oom_score_adj": 500,
        "init": True,
        "ipc_mode": "private",
        "cgroupns": "private",
        "runtime": "runc",
        "dns": ["1.1.1.1", "9.9.9.9"],  # the egress table closes the host's own resolver
        "log_config": {"Type": "local", "Config": {"max-size": LOG_MAX_SIZE, "max-file": LOG_MAX_FILES}},
        "restart_policy": {"Name": "no"},
        "auto_remove": False,
        "device_requests": [
            {
                "Driver": "",
                "Count": 0,
                "DeviceIDs": list(gpu_uuids),
                "Capabilities": [["gpu", "compute", "utility"]],
                "Options": {},
            }
        ],
    }
    return ContainerPlan(
        name=name,
        image=image,
        labels=labels,
        gpu_uuids=gpu_uuids,
        config=config,
        host_config=host_config,
        network=network,
    )
