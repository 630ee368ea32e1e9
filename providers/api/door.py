"""The fast door for heartbeats and telemetry: what hosts send every few seconds, many in one statement.

``gpunex.asgi`` puts it before everything else. It takes what is ordinary, a well-formed beat of a machine that is where it
was or well-formed samples, and answers it in the contract's words; anything else (an unknown secret, a field that is odd, a
host that is back, a row that is busy, a database that does not answer) it hands on, untouched, to the endpoints, which alone
say what is wrong. So there is one truth about errors, and the door only has to know what is certainly right.

Posts that come while a statement runs, or within ``WINDOW_S`` of one another, are written together, in a thread that keeps
one database connection. A batch of a hundred costs little more than one.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import structlog
from django.conf import settings
from django.db import connection
from django.utils import timezone

from gpunex.kit.secrets import digest
from providers.api import fields
from providers.api.answers import stamped
from providers.api.endpoints import offset_ms
from providers.inventory import card_uuid
from providers.machines import secret_of
from reliability import beats, telemetry

log = structlog.get_logger(__name__)

WINDOW_S = 0.01
MOST_AT_ONCE = 250
_ROOT = "/api/agent/v1/"
_NVML = frozenset({"ok", "hung", "absent"})
_INT = 2**31 - 1
_BIG = 2**53

type App = Callable[[Any, Any, Any], Awaitable[None]]


class Batch[T, A]:
    """Posts that are written together by ``write``: one answer each, None for those that have to go the long way."""

    def __init__(self, write: Callable[[Sequence[T]], Sequence[A | None]]) -> None:
        self._write = write
        self._waiting: list[tuple[T, asyncio.Future[A | None]]] = []
        self._writer: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1)

    async def add(self, post: T) -> A | None:
        answer: asyncio.Future[A | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((post, answer))
        if self._writer is None:
            self._writer = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(WINDOW_S)
            while self._waiting:
                taken, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
                answers = await loop.run_in_executor(self._thread, self._in_thread, [post for post, _ in taken])
                for (_, future), answer in zip(taken, answers, strict=True):
                    if not future.done():  # a host that hung up waits no more
                        future.set_result(answer)
        finally:
            self._writer = None
            for _, future in self._waiting:  # cancelled, at the end of the process
                if not future.done():
                    future.set_result(None)
            self._waiting = []

    def _in_thread(self, posts: list[T]) -> Sequence[A | None]:
        try:
            return self._write(posts)
        except Exception:  # the endpoints say what is wrong, each to the one whose post it is
            log.exception("batch_failed", posts=len(posts))
            connection.close()
            return [None] * len(posts)


def _keep_beats(posts: Sequence[beats.Beat]) -> list[beats.Answer | None]:
    """A machine that beats twice within a moment is written once, with its last."""
    last = {(beat.public_id, beat.secret_hash): n for n, beat in enumerate(posts)}
    kept = beats.keep([posts[n] for n in last.values()])
    answers = dict(zip(last, kept, strict=True))
    return [answers[beat.public_id, beat.secret_hash] for beat in posts]


class Door:
    """An ASGI application before another one."""

    def __init__(self, inner: App) -> None:
        self._inner = inner
        self._beats = Batch(_keep_beats)
        self._samples = Batch(telemetry.keep)
        self._takes: dict[
            str, Callable[[tuple[UUID, str], dict[str, Any], datetime], Awaitable[dict[str, Any] | None]]
        ] = {
            f"{_ROOT}heartbeat": self._heartbeat,
            f"{_ROOT}telemetry": self._telemetry,
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        take = self._takes.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if take is None:
            await self._inner(scope, receive, send)
            return
        at = timezone.now()
        messages = [await receive()]
        while messages[-1].get("more_body") and sum(map(_size, messages)) <= settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            messages.append(await receive())
        answer = None
        who = _who(scope["headers"])
        if who is not None and not messages[-1].get("more_body"):
            body = _json(b"".join(message.get("body", b"") for message in messages))
            answer = await take(who, body, at) if body is not None else None
        if answer is None:
            await self._inner(scope, _again(messages, receive), send)
            return
        payload = json.dumps(stamped(answer)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(payload)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": payload})

    async def _heartbeat(self, who: tuple[UUID, str], body: dict[str, Any], at: datetime) -> dict[str, Any] | None:
        beat = beat_of(who, body, at)
        answer = await self._beats.add(beat) if beat is not None else None
        if answer is None:
            return None
        return {"revision": answer.revision, "drain": answer.drain, "interval_s": answer.interval_s}

    async def _telemetry(self, who: tuple[UUID, str], body: dict[str, Any], at: datetime) -> dict[str, Any] | None:
        post = post_of(who, body, at)
        kept = await self._samples.add(post) if post is not None else None
        return None if kept is None else {"kept": kept}


def _size(message: Any) -> int:
    return len(message.get("body", b""))


def _again(messages: list[Any], receive: Any) -> Any:
    """What was read, once more, and then whatever comes."""
    left = iter(messages)

    async def replay() -> Any:
        return next(left, None) or await receive()

    return replay


def _who(headers: Sequence[tuple[bytes, bytes]]) -> tuple[UUID, str] | None:
    """The machine's id and its secret's hash, if the request is JSON, plain, and has a secret of the right shape."""
    found = dict(headers)
    scheme, _, text = found.get(b"authorization", b"").decode("latin-1").partition(" ")
    if scheme.lower() != "bearer" or b"content-encoding" in found:
        return None
    if found.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
        return None
    machine = secret_of(text.strip())
    return None if machine is None else (machine, digest(text.strip()))


def _json(body: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def beat_of(who: tuple[UUID, str], body: dict[str, Any], at: datetime) -> beats.Beat | None:
    """The beat, if all of it is certainly as ``fields.HeartbeatFields`` wants it."""
    boot_id, version = body.get("boot_id"), body.get("agent_version", "")
    if not (_plain(boot_id, 64) and boot_id and _plain(version, 20)):
        return None
    nvml, sequence, listed = body.get("nvml", "ok"), body.get("sequence", 0), body.get("workloads", [])
    if not isinstance(nvml, str) or nvml not in _NVML or not _whole(sequence, _BIG) or body.get("gap") is not None:
        return None
    if not isinstance(listed, list) or len(listed) > 1000:
        return None
    sent_at = body.get("sent_at")
    try:
        moment = None if sent_at is None else _moment(sent_at)
        running = [job for job in map(_running, listed) if job is not None]
    except (ValueError, TypeError, OverflowError, KeyError, AttributeError):
        return None
    return beats.Beat(*who, boot_id, at, nvml, version, offset_ms(moment, at), running)


def _running(listed: dict[str, Any]) -> tuple[UUID, int, datetime | None] | None:
    """A listed job that runs; None for one that does not. ValueError and its like for what is odd."""
    job, attempt, state, started = listed["id"], listed["attempt"], listed["state"], listed.get("container_started_at")
    if not (_plain(job, 36) and len(job) == 36 and _whole(attempt, 32767) and _plain(state, 20) and state):
        raise ValueError
    key = UUID(job)
    moment = None if started is None else _moment(started)
    return (key, attempt, moment) if state == "running" else None


# Each reading of a sample with its bounds, as ``fields.SampleFields`` has them.
_NUMBERS = {
    "temperature_c": (-100, _BIG), "power_w": (0, _BIG), "utilization_pct": (0, 100), "fan_pct": (0, 400),
}  # fmt: skip
_WHOLES = ("memory_used_mib", "memory_total_mib", "sm_clock_mhz", "memory_clock_mhz")


def post_of(who: tuple[UUID, str], body: dict[str, Any], at: datetime) -> telemetry.Post | None:
    """The samples, if all of them are certainly as ``fields.TelemetryFields`` wants them."""
    samples = body.get("samples")
    if not isinstance(samples, list) or len(samples) > fields.MOST_SAMPLES:
        return None
    try:
        sent_at = None if body.get("sent_at") is None else _moment(body["sent_at"])
        kept = [_sample(sample, sent_at, at) for sample in samples]
    except (ValueError, TypeError, OverflowError, KeyError, AttributeError):
        return None
    return telemetry.Post(*who, kept, at)


def _sample(sample: dict[str, Any], sent_at: datetime | None, at: datetime) -> dict[str, Any]:
    uuid = sample.get("gpu_uuid")
    if uuid is not None and not _plain(uuid, 80):
        raise ValueError
    found: dict[str, Any] = {"gpu_uuid": None if uuid is None else card_uuid(uuid)}
    found["at"] = telemetry.corrected(_moment(sample["at"]), sent_at=sent_at, received_at=at)
    for name, (low, high) in _NUMBERS.items():
        value = sample.get(name)
        if value is not None and (type(value) not in (int, float) or not low <= value <= high):
            raise ValueError
        found[name] = value
    for name in _WHOLES:
        value = sample.get(name)
        if value is not None and not _whole(value, _INT):
            raise ValueError
        found[name] = value
    reasons = sample.get("throttle_reasons")
    if reasons is not None and not (
        isinstance(reasons, list) and len(reasons) <= 32 and all(_plain(reason, 60) and reason for reason in reasons)
    ):
        raise ValueError
    found["throttle_reasons"] = reasons
    return found


def _plain(text: object, most: int) -> bool:
    """A short text of printable ASCII without space at its ends."""
    return (
        isinstance(text, str) and len(text) <= most and text.isascii() and text.isprintable() and text == text.strip()
    )


def _whole(value: object, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


def _moment(text: str) -> datetime:
    """A time with its zone. ValueError, TypeError for anything else."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None or len(text) < 20:
        raise ValueError
    return moment.astimezone(UTC)
