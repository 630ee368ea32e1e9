"""Docker, through its SDK's low-level client. What a container looks like is decided in `agent.spec`, never here."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from agent.clock import parse_time
from agent.egress import EgressCheck, read_note
from agent.engine import (
    LABEL_ATTEMPT,
    LABEL_GPUS,
    LABEL_KIND,
    LABEL_MACHINE,
    LABEL_WORKLOAD,
    Cancelled,
    Container,
    ContainerPlan,
    CudaTooOld,
    DiskFull,
    EngineDown,
    EngineError,
    ImageDenied,
    ImageInvalid,
    ImageMissing,
    LogLine,
    Progress,
    PullCancelled,
)
from agent.spec import STOP_GRACE_S

log = logging.getLogger("gpunex.docker")

STALL_S = 120  # a pull that brings no byte for so long is given up
CALL_S = 60
COMMAND_NOT_FOUND = 127


class DockerEngine:
    simulated = False

    def __init__(
        self, api: Any, pull_api: Any, *, egress: EgressCheck, host_note: Path, unsafe_development: bool
    ) -> None:
        self._api, self._pull_api = api, pull_api
        self._egress, self._host_note, self._unsafe = egress, host_note, unsafe_development
        self._machine_id = ""
        self._ended: dict[str, Container] = {}

    @classmethod
    def connect(
        cls, *, state_path: Path, unsafe_development: bool = False, base_url: str | None = None
    ) -> DockerEngine:
        """Raises EngineDown."""
        address = base_url or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        try:
            api = docker.APIClient(base_url=address, version="auto", timeout=CALL_S)
            pull_api = docker.APIClient(base_url=address, version="auto", timeout=STALL_S)
        except (DockerException, requests.RequestException) as error:
            raise EngineDown(f"{address} does not answer: {error}") from error
        note = state_path / "host" / "check.json"
        return cls(api, pull_api, egress=EgressCheck(note), host_note=note, unsafe_development=unsafe_development)

    def use_machine(self, machine_id: str) -> None:
        self._machine_id = machine_id

    def engine_id(self) -> str | None:
        """Docker's own lasting id of this installation."""
        with _translated():
            return self._api.info().get("ID") or None

    def versions(self) -> dict[str, str | None]:
        note = read_note(self._host_note) or {}
        versions: dict[str, str | None] = {"docker_version": None, "runc_version": None}
        try:
            with _translated():
                answer = self._api.version()
            versions["docker_version"] = answer.get("Version")
            for part in answer.get("Components") or []:
                if part.get("Name") == "runc":
                    versions["runc_version"] = part.get("Version")
        except EngineError:
            log.debug("the engine's versions cannot be read", exc_info=True)
        return {**versions, "toolkit_version": note.get("toolkit_version")}

    def refuses_jobs(self) -> str | None:
        return None if self._unsafe else self._egress.problem()

    def pull(self, image: str, *, progress: Progress, cancelled: Cancelled) -> str:
        present = self._present(image)
        if present and ("@sha256:" in image or self._unsafe):
            progress(1.0)
            return present
        layers = _Layers()
        try:
            with _translated(_pull_failure):
                for line in self._pull_api.pull(
                    image if _has_tag(image) else f"{image}:latest", stream=True, decode=True
                ):
                    if cancelled():
                        raise PullCancelled
                    if "error" in line:
                        raise _pull_failure(str(line["error"]))
                    layers.take(line)
                    progress(layers.fraction())
        except requests.exceptions.ReadTimeout as error:
            raise EngineError(f"the pull stalled: no data for {STALL_S} s") from error
        found = self._present(image)
        if not found:
            raise EngineError(f"{image} was pulled but is not there")
        return found

    def create(self, plan: ContainerPlan) -> str:
        network = self._network(plan) if plan.network else "none"
        with _translated(_start_failure):
            host_config = self._api.create_host_config(network_mode=network, **plan.host_config)
            try:
                made = self._api.create_container(
                    image=plan.image, name=plan.name, host_config=host_config, **plan.config
                )
            except APIError as error:
                if error.status_code == 409:  # made before by an agent that was killed then
                    return self._adopt(plan)
                raise
        return str(made["Id"])

    def start(self, container_id: str) -> None:
        """A command that is not in the image is the job's own end (127), seen as such by the next look."""
        try:
            with _translated(_start_failure):
                self._api.start(container_id)
        except EngineError:
            if self._inspect(container_id).exit_code == COMMAND_NOT_FOUND:
                return
            raise

    def containers(self) -> list[Container]:
        with _translated():
            listed = self._api.containers(all=True, filters={"label": f"{LABEL_MACHINE}={self._machine_id}"})
        found: dict[str, Container] = {}
        for item in listed:
            known = self._ended.get(item["Id"])
            try:
                found[item["Id"]] = known or self._inspect(item["Id"])
            except (NotFound, KeyError, ValueError):
                continue
        self._ended = {
            container_id: container for container_id, container in found.items() if container.state == "exited"
        }
        return list(found.values())

    def stop(self, container_id: str, *, grace_s: int) -> None:
        with _translated():
            try:
                if grace_s:
                    self._api.stop(container_id, timeout=grace_s)
                else:
                    self._api.kill(container_id)
            except NotFound:
                return
            except APIError as error:
                if error.status_code != 409:  # not running
                    raise

    def remove(self, container_id: str) -> None:
        with _translated():
            try:
                name = self._api.inspect_container(container_id)["Name"].lstrip("/")
                self._api.remove_container(container_id, force=True, v=True)
            except NotFound:
                return
            for network in self._api.networks(names=[name]):
                if network["Name"] == name:
                    self._api.remove_network(network["Id"])

    def logs(self, container_id: str, *, since: str) -> Iterator[LogLine]:
        """Docker's own `since` includes its second; lines before the exact time are left out here."""
        moment = parse_time(since)
        options = {"since": int(moment.timestamp())} if moment else {}
        rest = b""
        with _translated():
            try:
                for piece in self._api.logs(container_id, stream=True, follow=False, timestamps=True, **options):
                    *lines, rest = (rest + piece).split(b"\n")
                    yield from (line for line in map(_log_line, lines) if line is not None and line.at >= since)
            except NotFound:
                return
            last = _log_line(rest)
            if last is not None and last.at >= since:
                yield last

    def _present(self, image: str) -> str | None:
        """The image by digest, if it is here."""
        with _translated(_pull_failure):
            try:
                found = self._api.inspect_image(image)
            except (NotFound, ImageNotFound):
                return None
        repository = image.partition("@")[0]
        if ":" in repository.rpartition("/")[2]:
            repository = repository.rpartition(":")[0]
        for digest in found.get("RepoDigests") or []:
            if digest.partition("@")[0] == repository or "@sha256:" in image:
                return str(digest)
        return str(found["Id"])

    def _network(self, plan: ContainerPlan) -> str:
        """A bridge of the job's own, named so that the egress table matches it; its containers cannot see each other."""
        with _translated():
            if not any(network["Name"] == plan.name for network in self._api.networks(names=[plan.name])):
                bridge = "gpx" + hashlib.sha256(plan.name.encode()).hexdigest()[:12]
                self._api.create_network(
                    plan.name,
                    driver="bridge",
                    options={"com.docker.network.bridge.name": bridge, "com.docker.network.bridge.enable_icc": "false"},
                    labels=plan.labels,
                    enable_ipv6=False,
                )
        return plan.name

    def _adopt(self, plan: ContainerPlan) -> str:
        found = self._api.inspect_container(plan.name)
        labels = found["Config"].get("Labels") or {}
        if (
            labels.get(LABEL_WORKLOAD) != plan.labels[LABEL_WORKLOAD]
            or labels.get(LABEL_MACHINE) != plan.labels[LABEL_MACHINE]
        ):
            raise EngineError(f"a container named {plan.name} exists that is not ours")
        return str(found["Id"])

    def _inspect(self, container_id: str) -> Container:
        with _translated():
            seen = self._api.inspect_container(container_id)
        labels, state = seen["Config"]["Labels"], seen["State"]
        started_at = parse_time(state.get("StartedAt"))
        failed_start = state["Status"] == "created" and state.get("ExitCode") not in (0, None)
        ended = state["Status"] in ("exited", "dead") or failed_start
        return Container(
            id=seen["Id"],
            workload_id=labels[LABEL_WORKLOAD],
            attempt=int(labels[LABEL_ATTEMPT]),
            kind=labels.get(LABEL_KIND, "job"),
            state="exited" if ended else "created" if state["Status"] == "created" else "running",
            created_at=parse_time(seen.get("Created")),
            started_at=started_at,
            finished_at=parse_time(state.get("FinishedAt")) if ended else None,
            exit_code=state.get("ExitCode") if ended else None,
            oom_killed=bool(state.get("OOMKilled")),
            gpu_uuids=tuple(filter(None, labels.get(LABEL_GPUS, "").split(","))),
            error=str(state.get("Error") or "")[:500],
        )


class _Layers:
    """How far a pull has come: downloading counts four fifths of a layer, unpacking the rest."""

    def __init__(self) -> None:
        self._done: dict[str, float] = {}

    def take(self, line: dict[str, Any]) -> None:
        layer, status = line.get("id"), str(line.get("status") or "")
        if not layer or status.startswith(("Pulling from", "Digest", "Status")):
            return
        detail = line.get("progressDetail") or {}
        part = detail["current"] / detail["total"] if detail.get("total") and detail.get("current") else 0.0
        if status in ("Pull complete", "Already exists"):
            self._done[layer] = 1.0
        elif status == "Downloading":
            self._done[layer] = max(self._done.get(layer, 0.0), 0.8 * part)
        elif status == "Extracting":
            self._done[layer] = max(self._done.get(layer, 0.0), 0.8 + 0.2 * part)
        else:
            self._done.setdefault(layer, 0.0)

    def fraction(self) -> float | None:
        return sum(self._done.values()) / len(self._done) if self._done else None


def _has_tag(image: str) -> bool:
    return "@" in image or ":" in image.rpartition("/")[2]


def _log_line(raw: bytes) -> LogLine | None:
    at, space, text = raw.decode("utf-8", "replace").partition(" ")
    return LogLine(at=at, text=text.rstrip("\r")) if space and at[:1].isdigit() else None


def _pull_failure(text: str) -> Exception:
    """The registry's and the engine's words, as the contract's causes. First match wins."""
    lowered = text.lower()
    if "no space left" in lowered:
        return DiskFull(text)
    if "invalid reference" in lowered or "no matching manifest" in lowered or "unsupported media type" in lowered:
        return ImageInvalid(text)
    if (
        "denied" in lowered
        or "unauthorized" in lowered
        or "authentication required" in lowered
        or "forbidden" in lowered
    ):
        return ImageDenied(text)
    if "manifest unknown" in lowered or "not found" in lowered or "does not exist" in lowered:
        return ImageMissing(text)
    return EngineError(text)


def _start_failure(text: str) -> Exception:
    lowered = text.lower()
    if "no space left" in lowered:
        return DiskFull(text)
    if "unsatisfied condition" in lowered and "cuda" in lowered:
        return CudaTooOld(text)
    return EngineError(text)


@contextmanager
def _translated(meaning: Callable[[str], Exception] = EngineError) -> Iterator[None]:
    """Docker's exceptions as ours. NotFound inside is the caller's to take."""
    try:
        yield
    except requests.exceptions.ReadTimeout as error:
        if meaning is _pull_failure:
            raise
        raise EngineDown(f"the engine did not answer within {CALL_S} s") from error
    except requests.exceptions.ConnectionError as error:
        raise EngineDown(str(error)) from error
    except APIError as error:
        raise meaning(str(error.explanation or error)) from error
    except DockerException as error:
        raise EngineError(str(error)) from error


assert STOP_GRACE_S < CALL_S  # a stop is answered only after the grace
