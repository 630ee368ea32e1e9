"""A peer that speaks the agent protocol from its other side, for the agent's own tests. The real server has tests of its own.

It keeps what it is told, answers as the contract says, and can be told to refuse, to fall silent and to lose answers.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TERMINAL = "finished"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """An agent that is killed leaves its connections as they are; that is no news."""


class Peer:
    """Counts and keeps; every public attribute may be read while `lock` is held or after the agent has ended."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.revision = 0
        self.wanted: dict[str, dict[str, Any]] = {}
        self.machine_id = str(uuid.uuid4())
        self.secret = f"gpxm_{uuid.UUID(self.machine_id).hex}_abc"
        self.keys = {"gpxe_good": "ok", "gpxe_used": "key_used", "gpxe_old": "key_expired", "gpxk_gone": "key_revoked"}
        self.enrolments: list[dict[str, Any]] = []
        self.heartbeats: list[dict[str, Any]] = []
        self.inventories: list[dict[str, Any]] = []
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self.results: list[tuple[str, dict[str, Any]]] = []
        self.events: dict[str, dict[str, Any]] = {}
        self.event_posts = 0
        self.samples: list[dict[str, Any]] = []
        self.logs: dict[str, bytes] = {}
        self.uninstalled = False
        self.silent = False  # answer 503 to everything
        self.lose_answers = 0  # take in that many posts, then break the connection instead of answering
        self.refuse: dict[str, tuple[int, str]] = {}  # path: status and code
        self.clock_ahead = timedelta(0)
        self._http = _Server(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.clock_ahead

    def want(self, **assignment: Any) -> str:
        """Assign a workload, or change one; returns its id."""
        with self.lock:
            workload_id = assignment.setdefault("id", str(uuid.uuid4()))
            before = self.wanted.get(workload_id, {})
            self.wanted[workload_id] = {
                "kind": "job",
                "attempt": 1,
                "wanted": "run",
                "stop_at": None,
                **before,
                **assignment,
            }
            self.revision += 1
            self.lock.notify_all()
            return str(workload_id)

    def drop(self, workload_id: str) -> None:
        with self.lock:
            self.wanted.pop(workload_id, None)
            self.revision += 1
            self.lock.notify_all()

    def wait(self, what: Callable[[], Any], *, timeout_s: float = 20) -> Any:
        """Wait, woken by each request, until `what` is true; returns its value."""
        deadline = time.monotonic() + timeout_s
        with self.lock:
            while not (found := what()):
                left = deadline - time.monotonic()
                assert left > 0, f"waited {timeout_s} s in vain; reports: {self.states()}"
                self.lock.wait(min(left, 0.2))
            return found

    def states(self, workload_id: str | None = None) -> list[str]:
        return [body["state"] for found, body in self.reports if workload_id in (None, found)]

    def finished(self, workload_id: str) -> list[dict[str, Any]]:
        return [body for found, body in self.reports if found == workload_id and body["state"] == TERMINAL]

    def wait_finished(self, workload_id: str, *, timeout_s: float = 20) -> dict[str, Any]:
        found: list[dict[str, Any]] = self.wait(lambda: self.finished(workload_id), timeout_s=timeout_s)
        return found[0]

    def _answer(
        self, method: str, path: str, query: dict[str, list[str]], bearer: str, raw: bytes
    ) -> tuple[int, dict[str, Any] | bytes]:
        if self.silent:
            return 503, {}
        for part, (status, code) in self.refuse.items():
            if part in path:
                return status, {"code": code, "detail": f"refused: {code}"}
        if path == "enrol":
            return self._enrol(bearer, json.loads(raw))
        if bearer != self.secret:
            return 401, {"code": "secret_unknown", "detail": "no machine has this secret"}
        if path == "speed":
            return self._speed(method, query, raw)
        if path == "assignments":
            return self._assignments(query)
        return self._keep(path, json.loads(raw))

    def _enrol(self, key: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        state = self.keys.get(key, "key_unknown")
        if state != "ok":
            return 401, {"code": state, "detail": f"refused: {state}"}
        self.enrolments.append(body)
        return 201, {
            "machine_id": self.machine_id,
            "name": body["hostname"],
            "secret": self.secret,
            "heartbeat_s": 1,
            "telemetry_s": 1,
        }

    def _speed(self, method: str, query: dict[str, list[str]], raw: bytes) -> tuple[int, dict[str, Any] | bytes]:
        if method == "GET":
            return 200, b"x" * int(query["bytes"][0])
        return 200, {"received_bytes": len(raw)}

    def _assignments(self, query: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        after, deadline = int(query["after"][0]), time.monotonic() + float(query["wait"][0])
        while self.revision <= after and not self.silent and (left := deadline - time.monotonic()) > 0:
            self.lock.wait(min(left, 0.5))
        return 200, {"revision": self.revision, "workloads": list(self.wanted.values())}

    def _keep(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        parts = path.split("/")
        if path == "heartbeat":
            self.heartbeats.append(body)
            return 200, {"revision": self.revision, "drain": False, "interval_s": 1}
        if path == "inventory":
            self.inventories.append(body)
            return 200, {"revision": self.revision, "rejected": []}
        if path == "telemetry":
            self.samples += body["samples"]
            return 200, {"kept": len(body["samples"])}
        if path == "events":
            self.event_posts += 1
            for event in body["events"]:
                self.events.setdefault(event["id"], event)
            return 200, {"acknowledged": max(event["sequence"] for event in body["events"])}
        if path == "uninstall":
            self.uninstalled = True
            return 200, {}
        return self._keep_workload(parts[1], parts[2], body)

    def _keep_workload(self, workload_id: str, what: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        assigned = self.wanted.get(workload_id)
        if assigned is not None and body["attempt"] < assigned["attempt"]:
            return 409, {"code": "stale_attempt", "detail": "another attempt runs"}
        if what == "logs":
            kept = self.logs.get(workload_id, b"")
            if body["offset"] != len(kept):
                return 409, {"code": "offset", "detail": "another offset is wanted", "wanted": len(kept)}
            self.logs[workload_id] = kept + body["text"].encode()
            return 200, {"next_offset": len(self.logs[workload_id])}
        if what == "result":
            self.results.append((workload_id, body))
            return 200, {}
        self.reports.append((workload_id, body))
        if body["state"] == TERMINAL and assigned is not None:
            del self.wanted[workload_id]
            self.revision += 1
        wish = assigned or {}
        return 200, {"revision": self.revision, "stop_at": wish.get("stop_at"), "wanted": wish.get("wanted", "stop")}

    def _handler(peer: Peer) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                parts = urlsplit(self.path)
                raw = self.rfile.read(int(self.headers.get("content-length") or 0))
                bearer = (self.headers.get("authorization") or "").removeprefix("Bearer ")
                path = parts.path.removeprefix("/api/agent/v1/")
                with peer.lock:
                    status, body = peer._answer(self.command, path, parse_qs(parts.query), bearer, raw)
                    peer.lock.notify_all()
                    if self.command == "POST" and peer.lose_answers > 0 and path not in ("heartbeat", "inventory"):
                        peer.lose_answers -= 1
                        self.close_connection = True
                        return
                    ahead = peer.now()
                if isinstance(body, dict):
                    stamp = ahead.isoformat().replace("+00:00", "Z")
                    body = json.dumps({**body, "server_time": stamp}).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = _serve

            def log_message(self, *_: Any) -> None:
                """Keep the tests' output clean."""

        return Handler
