"""The endpoints that wait or carry bulk, as plain async views: no thread and no database connection while nothing happens.

``gpunex.asgi`` sends their addresses around the middleware, so they authenticate by themselves. Each reads the database in a pool thread and gives that thread's connection back before it waits (Django keeps connections
per thread, and a pool thread outlives the request). Hundreds of waiting agents share the few threads of the pool, one
Redis subscription, and no connection.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from functools import wraps
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_not_required
from django.db import connections
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_http_methods

from gpunex.kit.refusals import Refusal
from gpunex.kit.time import iso_z
from providers import machines
from providers.api.answers import as_json, bearer, refused
from providers.models import Machine, Workload
from providers.nudges import listener
from providers.workloads import spec_of

MOST_WAIT_S = 25
MOST_BYTES = 25 * 1024 * 1024
PIECE = 64 * 1024
# Incompressible, made once a process: a line's speed is measured, not a random number generator's.
_NOISE = os.urandom(1024 * 1024)


def in_pool[**P, R](read: Callable[P, R]) -> Callable[P, Any]:
    """Run ``read`` in a pool thread, and give back the database connection it used."""

    @wraps(read)
    def with_connection(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return read(*args, **kwargs)
        finally:
            connections.close_all()

    return sync_to_async(with_connection, thread_sensitive=False)


@login_not_required
@require_GET
async def assignments(request: HttpRequest) -> HttpResponse:
    """GET assignments?after=<revision>&wait=<seconds>: what the machine should run.

    Answers once the revision is past ``after``, at the latest after ``wait`` (at most 25) seconds, with everything that the
    machine should know of. Asking again is harmless.
    """
    try:
        after, wait_s = int(request.GET.get("after", "-1")), float(request.GET.get("wait", "0"))
    except ValueError:
        return as_json({"code": "invalid", "detail": "after and wait are numbers.", "errors": {}}, status=422)
    text = bearer(request)
    try:
        machine_id = await _authenticate(text)
        return as_json(await _wait_for_change(machine_id, after=after, wait_s=min(max(0.0, wait_s), MOST_WAIT_S)))
    except Refusal as refusal:
        return refused(refusal)


async def _wait_for_change(machine_id: UUID, *, after: int, wait_s: float) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    hints = listener()
    # Listening begins before reading: a change in between is not missed.
    with hints.listening(machine_id) as event:
        while True:
            left = deadline - loop.time()
            answer = await _changed(machine_id, after, left <= 0)
            if answer is not None:
                return answer
            await hints.heard(event, seconds=left)


@in_pool
def _authenticate(text: str) -> UUID:
    return machines.authenticate(text=text, at=timezone.now()).public_id


@in_pool
def _changed(machine_id: UUID, after: int, anyway: bool) -> dict[str, Any] | None:
    """The machine's assignments if its revision is past ``after``, or ``anyway``. Raises SecretRevoked once it is retired."""
    machine = Machine.objects.only("pk", "revision", "retired_at").get(public_id=machine_id)
    if machine.retired_at is not None:
        raise machines.SecretRevoked
    if machine.revision <= after and not anyway:
        return None
    # The revision was read before the list: a change in between is sent now, and once more with the next answer.
    known = Workload.objects.known_to_machine().filter(machine=machine).order_by("pk")
    return {"revision": machine.revision, "workloads": [_assignment(workload) for workload in known]}


def _assignment(workload: Workload) -> dict[str, Any]:
    return {
        "id": str(workload.public_id),
        "kind": workload.kind,
        "attempt": workload.attempt,
        "wanted": workload.wanted,
        "stop_at": iso_z(workload.stop_at),
        "gpu_uuids": workload.gpu_uuids,
        "spec": spec_of(workload),
    }


@csrf_exempt
@login_not_required
@require_http_methods(["GET", "POST"])
async def speed(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """GET speed?bytes=N: N incompressible bytes, at most 25 MiB. POST speed: how many bytes arrived."""
    try:
        await _authenticate(bearer(request))
    except Refusal as refusal:
        return refused(refusal)
    if request.method == "POST":
        return as_json({"received_bytes": await sync_to_async(_count, thread_sensitive=False)(request)})
    try:
        size = int(request.GET.get("bytes", "0"))
    except ValueError:
        size = -1
    if not 0 <= size <= MOST_BYTES:
        return as_json(
            {"code": "invalid", "detail": f"bytes is a number up to {MOST_BYTES}.", "errors": {}}, status=422
        )
    response = StreamingHttpResponse(_noise(size), content_type="application/octet-stream")
    response.headers["Content-Length"] = str(size)
    response.headers["Cache-Control"] = "no-store"
    return response


def _count(request: HttpRequest) -> int:
    received = 0
    while piece := request.read(PIECE):
        received += len(piece)
    return received


async def _noise(size: int) -> AsyncIterator[bytes]:
    at = 0
    while at < size:
        start = at % len(_NOISE)
        piece = _NOISE[start : start + min(PIECE, size - at)]
        yield piece
        at += len(piece)


@csrf_exempt
@login_not_required
async def unknown(request: HttpRequest, path: str = "") -> JsonResponse:
    """Anything else below the API's root."""
    return as_json({"code": "not_found", "detail": "There is no such endpoint.", "path": path[:200]}, status=404)
