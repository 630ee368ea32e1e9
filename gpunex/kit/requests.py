"""Per request: an id that the logs and the answer share, and the content security policy."""

import ipaddress
import re
import time
import uuid
from collections.abc import Callable

import structlog
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.middleware.csp import ContentSecurityPolicyMiddleware as DjangoPolicyMiddleware
from django.shortcuts import redirect
from django.urls import is_valid_path
from django.utils.csp import CSP

log = structlog.get_logger("gpunex.request")
_GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{8,64}", re.ASCII)
# What stands behind these is a secret: whoever reads it in a log could confirm an address, or set a password.
_SECRET_PATH = re.compile(r"(/account/(?:confirm-email|password/reset/key)/)[^/]+")
# Polled so often that a line each would drown the rest.
_QUIET = (
    "/static/",
    "/health/",
    "/metrics",
    "/api/agent/v1/heartbeat",
    "/api/agent/v1/assignments",
    "/api/agent/v1/telemetry",
)


class PageAboveMiddleware:
    """Whoever comes by browser to an address that only takes forms is taken to the page that it belongs to.

    People get there by changing the language on a refused form, by loading it again, and by signing in after a form was sent. The page
    is the nearest address above: from ``/offers/<id>/rent`` to ``/offers/<id>``. Programs are told 405, as ever.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        by_browser = request.method == "GET" and "text/html" in request.headers.get("Accept", "")
        if response.status_code != 405 or not by_browser or request.headers.get("HX-Request"):
            return response
        return response if request.path_info.startswith("/api/") else redirect(_page_above(request.path_info))


def _page_above(path: str) -> str:
    while path := path.rstrip("/").rpartition("/")[0]:
        for address in (path, f"{path}/"):
            if is_valid_path(address):
                return address
    return "/"


class RequestIdMiddleware:
    """``X-Request-ID``: the caller's if it is a sane one, else new; bound to every log line of the request."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        given = request.headers.get("X-Request-ID", "")
        request_id = given if _GIVEN_ID.fullmatch(given) else uuid.uuid4().hex
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        started = time.monotonic()
        response = self.get_response(request)
        response.headers["X-Request-ID"] = request_id
        if response.status_code >= 500 or not request.path.startswith(_QUIET):
            log.info(
                "request",
                method=request.method,
                path=_SECRET_PATH.sub(r"\1…", request.path),
                status=response.status_code,
                ms=round(1000 * (time.monotonic() - started)),
            )
        return response


class ClientAddressMiddleware:
    """Behind a proxy: ``REMOTE_ADDR`` is whom the proxy saw, not the proxy, which all limits by address would count as one client.

    The last entry of ``X-Forwarded-For`` is the proxy's own word; those before it are whatever the client claimed.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        last = request.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip()
        try:
            request.META["REMOTE_ADDR"] = str(ipaddress.ip_address(last))
        except ValueError:
            pass  # asked directly: the address of the connection stands
        return self.get_response(request)


class ContentSecurityPolicyMiddleware(DjangoPolicyMiddleware):
    """The strict policy everywhere; the admin's library alone needs ``unsafe-eval`` and inline styles."""

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if request.path.startswith("/admin/"):
            response._csp_config = settings.SECURE_CSP | {  # type: ignore[attr-defined]
                "script-src": [CSP.SELF, CSP.UNSAFE_EVAL, CSP.UNSAFE_INLINE],
                "style-src": [CSP.SELF, CSP.UNSAFE_INLINE],
                "frame-ancestors": [CSP.SELF],
            }
        return super().process_response(request, response)
