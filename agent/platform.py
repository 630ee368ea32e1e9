"""The agent's only way to the platform: HTTPS requests outwards, typed refusals, and a back-off that spreads a crowd."""

from __future__ import annotations

import ipaddress
import random
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx

from agent import __version__
from agent.clock import Clock, boot_seconds, iso, parse_time

BACKOFF_CAP_S = 60.0


class PlatformError(Exception):
    """The platform did not do what was asked."""


class Unreachable(PlatformError):
    """No usable answer: network, time-out, 5xx, or something that is not the platform. Trying again later is right."""


class Refused(PlatformError):
    """A typed answer of 4xx: trying the same again will not help, except where `code` says so."""

    def __init__(
        self, status: int, code: str, detail: str, body: dict[str, Any], retry_after_s: float | None = None
    ) -> None:
        super().__init__(detail or code)
        self.status = status
        self.code = code
        self.detail = detail
        self.body = body
        self.retry_after_s = retry_after_s


class InsecureAddress(Exception):
    """The platform's address is not https, nor this machine."""


def check_address(url: str, *, allow_http: bool = False) -> str:
    """The address without a trailing slash. Plain http is for this machine only: the secret would travel in the clear."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InsecureAddress(f"{url!r} is not an address such as https://gpunex.com")
    if parts.scheme == "http" and not allow_http and not _is_this_machine(parts.hostname):
        raise InsecureAddress(f"{url} is not https; the machine's secret would travel unencrypted")
    return url.rstrip("/")


def _is_this_machine(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Backoff:
    """Full jitter: a random wait up to base × 2^failures, never above the cap. `success()` starts over."""

    def __init__(
        self, base_s: float = 1.0, cap_s: float = BACKOFF_CAP_S, rng: Callable[[], float] = random.random
    ) -> None:
        self._base_s, self._cap_s, self._rng = base_s, cap_s, rng
        self.failures = 0

    def success(self) -> None:
        self.failures = 0

    def failure(self) -> float:
        """Seconds to wait after one more failure."""
        ceiling = min(self._cap_s, self._base_s * 2 ** min(self.failures, 16))
        self.failures += 1
        return max(0.05, self._rng() * ceiling)


class Platform:
    """One method per endpoint of the agent protocol v1. Safe to use from several threads."""

    def __init__(
        self, url: str, *, clock: Clock, secret: str | None = None, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._secret = secret
        self._http = httpx.Client(
            base_url=f"{url}/api/agent/v1/",
            headers={"User-Agent": f"gpunex-agent/{__version__}", "Accept": "application/json"},
            timeout=httpx.Timeout(15, connect=10),
            limits=httpx.Limits(max_connections=24, max_keepalive_connections=8),
            follow_redirects=False,
            transport=transport,
        )

    def use_secret(self, secret: str) -> None:
        with self._lock:
            self._secret = secret

    def close(self) -> None:
        self._http.close()

    def enrol(self, key: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._call("POST", "enrol", json=body, bearer=key)

    def inventory(self, body: dict[str, Any]) -> dict[str, Any]:
        return self._call("POST", "inventory", json=body)

    def heartbeat(self, body: dict[str, Any]) -> dict[str, Any]:
        return self._call("POST", "heartbeat", json=body, timeout=httpx.Timeout(8, connect=5))

    def assignments(self, *, after: int, wait_s: int) -> dict[str, Any]:
        """Answers when the machine's revision has passed `after`, or after `wait_s` seconds."""
        params = {"after": after, "wait": wait_s}
        return self._call("GET", "assignments", params=params, timeout=httpx.Timeout(wait_s + 10, connect=10))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What the outbox holds: reports, results."""
        return self._call("POST", path, json=body)

    def logs(self, workload_id: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._call("POST", f"workloads/{workload_id}/logs", json=body)

    def telemetry(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        return self._call("POST", "telemetry", json={"samples": samples, "sent_at": iso(self._clock.now())})

    def events(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        return self._call("POST", "events", json={"events": events, "sent_at": iso(self._clock.now())})

    def uninstall(self) -> dict[str, Any]:
        return self._call("POST", "uninstall", json={})

    def download(self, size: int) -> int:
        """Read `size` random bytes from the platform; returns how many came."""
        request = self._http.build_request("GET", "speed", params={"bytes": size}, headers=self._auth(None), timeout=30)
        try:
            response = self._http.send(request, stream=True)
            try:
                if response.status_code != 200:
                    response.read()
                    self._read(response)
                return sum(len(chunk) for chunk in response.iter_raw(65536))
            finally:
                response.close()
        except httpx.HTTPError as error:
            raise Unreachable(str(error) or type(error).__name__) from error

    def upload(self, payload: bytes) -> int:
        """Send bytes; returns how many the platform counted."""
        answer = self._call("POST", "speed", content=payload, timeout=httpx.Timeout(30, connect=10))
        return int(answer.get("received_bytes") or 0)

    def _auth(self, bearer: str | None) -> dict[str, str]:
        with self._lock:
            token = bearer or self._secret
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _call(self, method: str, path: str, *, bearer: str | None = None, **options: Any) -> dict[str, Any]:
        sent = boot_seconds()
        try:
            response = self._http.request(method, path, headers=self._auth(bearer), **options)
        except httpx.HTTPError as error:
            raise Unreachable(_why(error)) from error
        return self._read(response, sent=sent if path != "assignments" else None)

    def _read(self, response: httpx.Response, sent: float | None = None) -> dict[str, Any]:
        try:
            body = response.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            if response.status_code == 429:
                raise Refused(429, "retry_after", "too many requests", {}, _retry_after(response))
            raise Unreachable(f"answer {response.status_code} is not from the platform's agent interface")
        server_time = parse_time(body.get("server_time")) if isinstance(body.get("server_time"), str) else None
        if server_time is not None and sent is not None:  # a long poll's time says little about the way there and back
            self._clock.learn(server_time, sent=sent, received=boot_seconds())
        if response.status_code < 300:
            return body
        if response.status_code >= 500:
            raise Unreachable(f"the platform answered {response.status_code}")
        code = body.get("code") if isinstance(body.get("code"), str) else f"http_{response.status_code}"
        detail = body.get("detail") if isinstance(body.get("detail"), str) else ""
        raise Refused(response.status_code, str(code), str(detail), body, _retry_after(response))


def _retry_after(response: httpx.Response) -> float | None:
    try:
        return min(300.0, max(0.0, float(response.headers.get("retry-after", ""))))
    except ValueError:
        return None


def _why(error: httpx.HTTPError) -> str:
    text = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return f"the platform's certificate is not trusted here (a proxy that opens TLS, or a wrong clock?): {text}"
    return text
