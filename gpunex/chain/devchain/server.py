"""HTTP in front of the chain: JSON-RPC on every path, the fault switches on ``/faults``. One lock, a thread a connection."""

import json
import threading
import traceback
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from solders.keypair import Keypair

from gpunex.chain.devchain.chain import Chain
from gpunex.chain.devchain.faults import Faults, UnknownFault
from gpunex.chain.devchain.methods import MethodError, Methods, NoAnswer

_MOST_BODY_BYTES = 1 << 20
_Reply = tuple[HTTPStatus, Any, dict[str, str]]


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, chain: Chain, faucet: Keypair) -> None:
        self.lock = threading.Lock()
        self.chain = chain
        self.faults = Faults()
        self.methods = Methods(chain, faucet, self.faults)
        super().__init__(("127.0.0.1", port), _Handler)

    def rpc(self, request: Any, path: str) -> Any:
        """The answer to one JSON-RPC request or to a batch. Raises NoAnswer."""
        if isinstance(request, list) and request:
            return [self.rpc(one, path) for one in request if not isinstance(one, list)]
        if not isinstance(request, dict):
            return _answer(None, error={"code": -32600, "message": "Invalid request"})
        call_id = request.get("id")
        try:
            return _answer(call_id, result=self.methods.call(request.get("method"), request.get("params", []), path))
        except MethodError as error:
            return _answer(call_id, error=error.body)
        except NoAnswer:
            raise
        except Exception:  # one bad call must not end the chain; the trace is in its log
            traceback.print_exc()
            return _answer(call_id, error={"code": -32603, "message": "Internal error"})

    def change_faults(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Raises UnknownFault and then changes nothing."""
        numbers = {key: wanted[key] for key in ("advance_blocks", "rent_lamports_per_byte") if key in wanted}
        for key, value in numbers.items():
            if type(value) is not int or value < 0:
                raise UnknownFault(f"{key} takes a whole number from 0")
        self.faults.change(wanted)
        if wanted.get("reset"):
            self.methods.forget_held()
        if "advance_blocks" in numbers:
            self.chain.skip_blocks(numbers["advance_blocks"])
        if "rent_lamports_per_byte" in numbers:
            self.chain.set_rent(numbers["rent_lamports_per_byte"])
        if wanted.get("release"):
            self.methods.release()
        return self.faults.shown()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave in one write
    server: Server

    def do_GET(self) -> None:
        if self.path == "/faults":
            self._send(HTTPStatus.OK, self.server.faults.shown())
        else:
            self._send(HTTPStatus.NOT_FOUND, {"error": "this is a JSON-RPC server: POST to it"})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MOST_BODY_BYTES:
            self.close_connection = True
            self._send(HTTPStatus.BAD_REQUEST, {"error": "a body of at most 1 MiB with its length is expected"})
            return
        body = self.rfile.read(int(length))
        try:
            request = json.loads(body)
        except ValueError:
            self._send(HTTPStatus.OK, _answer(None, error={"code": -32700, "message": "Parse error"}))
            return
        with self.server.lock:
            reply = self._changed_faults(request) if self.path == "/faults" else self._rpc(request)
        if reply is None:
            self.close_connection = True
        else:
            self._send(*reply)

    def _rpc(self, request: Any) -> _Reply | None:
        """Status, body and headers; None to close the connection without an answer."""
        faults = self.server.faults
        if faults.apply_to(self.path):
            if faults.rpc_down:
                return HTTPStatus.SERVICE_UNAVAILABLE, {"error": "down"}, {}
            if faults.take("rate_limit"):
                body = _answer(None, error={"code": 429, "message": "Too many requests"})
                return HTTPStatus.TOO_MANY_REQUESTS, body, {"Retry-After": str(faults.retry_after_s)}
        try:
            return HTTPStatus.OK, self.server.rpc(request, self.path), {}
        except NoAnswer:
            return None

    def _changed_faults(self, wanted: Any) -> _Reply:
        try:
            if not isinstance(wanted, dict):
                raise UnknownFault("an object is expected")
            return HTTPStatus.OK, self.server.change_faults(wanted), {}
        except UnknownFault as error:
            return HTTPStatus.BAD_REQUEST, {"error": str(error)}, {}

    def _send(self, status: HTTPStatus, body: Any, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Calls are not logged: a payout worker makes thousands."""


def _answer(call_id: Any, **content: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, **content}
