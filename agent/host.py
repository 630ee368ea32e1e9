"""Facts about the machine itself. None means that it cannot be known from here."""

from __future__ import annotations

import functools
import hashlib
import os
import platform as python_platform
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class HostFacts:
    hostname: str
    os: str | None
    kernel: str | None
    arch: str | None
    cpu_model: str | None
    cpu_cores: int | None
    memory_mib: int | None
    disk_total_gib: float | None
    disk_free_gib: float | None
    docker_version: str | None
    runc_version: str | None
    toolkit_version: str | None
    driver_version: str | None
    cuda_version: str | None
    boot_id: str

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def boot_id() -> str:
    """Changes with every start of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def read_facts(
    *,
    hostname: str,
    disk_of: Path,
    versions: dict[str, str | None],
    driver_version: str | None,
    cuda_version: str | None,
    os_name: str | None = None,
) -> HostFacts:
    """`disk_of` is a folder on the filesystem that counts; `versions` come from the engine, which sees past our container."""
    total_gib, free_gib = disk_gib(disk_of)
    return HostFacts(
        hostname=hostname,
        os=os_name or _os_name(),
        kernel=python_platform.release() or None,
        arch=python_platform.machine() or None,
        cpu_model=_cpu_model(),
        cpu_cores=os.cpu_count(),
        memory_mib=memory_mib(),
        disk_total_gib=total_gib,
        disk_free_gib=free_gib,
        docker_version=versions.get("docker_version"),
        runc_version=versions.get("runc_version"),
        toolkit_version=versions.get("toolkit_version"),
        driver_version=driver_version,
        cuda_version=cuda_version,
        boot_id=boot_id(),
    )


def memory_mib() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) // 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


def disk_gib(folder: Path) -> tuple[float | None, float | None]:
    """Size and free space of the filesystem that holds a folder, in GiB."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None, None
    return round(usage.total / 2**30, 1), round(usage.free / 2**30, 1)


def fingerprint(source: str) -> str:
    """A machine's lasting mark that says nothing about it: the platform knows a machine that enrols again by it."""
    return hashlib.sha256(f"gpunex-machine:{source}".encode()).hexdigest()


def machine_source() -> str | None:
    """What stays the same on a host over reinstallations of the agent, where it can be read."""
    for path in ("/etc/gpunex/machine-id", "/etc/machine-id"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text:
            return text
    return None


@functools.cache
def _os_name() -> str | None:
    try:
        return python_platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None


@functools.cache
def _cpu_model() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip() or None
    except OSError:
        return None
    return None
