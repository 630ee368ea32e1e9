"""Answers of the agent API: the server's time in each, and refusals as status, code and sentence."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.http import HttpRequest, JsonResponse
from django.utils import timezone

from gpunex.kit.refusals import Refusal
from gpunex.kit.time import iso_z

STATUS = {
    "key_unknown": 401,
    "key_used": 401,
    "key_expired": 401,
    "key_revoked": 401,
    "revoked": 401,
    "secret_unknown": 401,
    "uuid_taken": 409,
    "stale_attempt": 409,
    "offset": 409,
    "not_found": 404,
}
OTHERWISE = 422


def status_of(refusal: Refusal) -> int:
    return STATUS.get(refusal.code, OTHERWISE)


def refusal_body(refusal: Refusal) -> dict[str, Any]:
    body: dict[str, Any] = {"code": refusal.code, "detail": str(refusal)}
    if refusal.code == "offset":
        body["wanted"] = refusal.fields["wanted"]
    if status_of(refusal) == OTHERWISE:
        body["errors"] = {}
    return body


def stamped(body: Mapping[str, Any], at: datetime | None = None) -> dict[str, Any]:
    return {**body, "server_time": iso_z(at or timezone.now())}


def as_json(body: Mapping[str, Any], *, status: int = 200) -> JsonResponse:
    return JsonResponse(stamped(body), status=status)


def refused(refusal: Refusal) -> JsonResponse:
    return as_json(refusal_body(refusal), status=status_of(refusal))


def bearer(request: HttpRequest) -> str:
    """The text of ``Authorization: Bearer …``; "" without it."""
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""
