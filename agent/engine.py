"""What the agent needs of a container engine. Two exist: Docker's, and a simulated one for machines without GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

LABEL_MACHINE = "com.gpunex.machine"
LABEL_WORKLOAD = "com.gpunex.workload"
LABEL_ATTEMPT = "com.gpunex.attempt"
LABEL_KIND = "com.gpunex.kind"
LABEL_GPUS = "com.gpunex.gpus"


class EngineError(Exception):
    """The engine failed: the provider's side."""


class EngineDown(EngineError):
    """The engine does not answer at all."""


class DiskFull(EngineError):
    """No room for the image or the container."""


class RenterError(Exception):
    """What the renter asked for cannot be done anywhere; `cause` is the contract's word for it."""

    cause = "spec_invalid"


class ImageMissing(RenterError):
    cause = "image_missing"


class ImageDenied(RenterError):
    cause = "image_denied"


class ImageInvalid(RenterError):
    cause = "image_invalid"


class CudaTooOld(RenterError):
    cause = "cuda_too_old"


class PullCancelled(Exception):
    """The pull was given up because the workload is no longer wanted."""


@dataclass(frozen=True)
class ContainerPlan:
    """A container as the validator built it: the only thing an engine creates from.

    `config` and `host_config` are keyword arguments of the Docker SDK's create_container and create_host_config.
    """

    name: str
    image: str
    labels: dict[str, str]
    gpu_uuids: tuple[str, ...]
    config: dict[str, Any] = field(default_factory=dict)
    host_config: dict[str, Any] = field(default_factory=dict)
    network: bool = True


@dataclass(frozen=True)
class Container:
    """A container of ours as the engine sees it; times are by this machine's clock."""

    id: str
    workload_id: str
    attempt: int
    kind: str
    state: str  # created, running, exited
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    exit_code: int | None
    oom_killed: bool
    gpu_uuids: tuple[str, ...]
    error: str = ""


@dataclass(frozen=True)
class LogLine:
    """One line as the engine kept it; `at` orders lines and is the engine's own text, compared but never computed with."""

    at: str
    text: str


Progress = Callable[[float | None], None]
Cancelled = Callable[[], bool]


class Engine(Protocol):
    simulated: bool

    def use_machine(self, machine_id: str) -> None:
        """Whose containers `containers` lists."""
        ...

    def versions(self) -> dict[str, str | None]:
        """docker_version, runc_version, toolkit_version; None where unknown."""
        ...

    def refuses_jobs(self) -> str | None:
        """Why no job may be started on this host now, or None."""
        ...

    def pull(self, image: str, *, progress: Progress, cancelled: Cancelled) -> str:
        """Make the image present; returns it by digest. Raises RenterError, EngineError, PullCancelled."""
        ...

    def create(self, plan: ContainerPlan) -> str:
        """Create, or find, the container of that plan's workload and attempt; returns its id. Does not start it."""
        ...

    def start(self, container_id: str) -> None: ...

    def containers(self) -> list[Container]:
        """All containers that carry this machine's label, ended ones too. Raises EngineDown."""
        ...

    def stop(self, container_id: str, *, grace_s: int) -> None:
        """Ask it to end, then kill it. No such container is fine."""
        ...

    def remove(self, container_id: str) -> None:
        """Remove the container, by force, and what was made for it. No such container is fine."""
        ...

    def logs(self, container_id: str, *, since: str) -> Iterator[LogLine]:
        """Lines from `since` (an `at` seen before, itself included; empty for all) to now, oldest first."""
        ...
