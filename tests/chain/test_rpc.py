"""The client against a server that answers what the test tells it to."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gpunex.chain.rpc import Rpc, RpcError, RpcUnavailable


class Node:
    """``answer`` gets the request and gives (status, headers, body); a body that is not bytes is sent as JSON."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.answer: Callable[[dict[str, Any]], tuple[int, dict[str, str], Any]] = lambda request: (
            200,
            {},
            {"jsonrpc": "2.0", "id": request["id"], "result": None},
        )
        self.silent = threading.Event()
        node = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                node.requests.append(request)
                if node.silent.is_set():
                    released.wait(30)
                    self.close_connection = True
                    return
                status, headers, body = node.answer(request)
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_args: Any) -> None:
                pass

        released = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._released = released
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def result(self, result: Any) -> None:
        self.answer = lambda request: (200, {}, {"jsonrpc": "2.0", "id": request["id"], "result": result})

    def error(self, error: Any) -> None:
        self.answer = lambda request: (200, {}, {"jsonrpc": "2.0", "id": request["id"], "error": error})

    def http(self, status: int, body: Any = b"", **headers: str) -> None:
        self.answer = lambda _request: (status, headers, body)

    def close(self) -> None:
        self._released.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.close()


@pytest.fixture
def second() -> Iterator[Node]:
    node = Node()
    yield node
    node.close()


@pytest.fixture
def rpc(node: Node) -> Iterator[Rpc]:
    with Rpc([node.url], timeout_s=5) as rpc:
        yield rpc


@pytest.mark.case("money-F42")
def test_a_rate_limit_is_unavailable_and_says_for_how_long(node: Node, rpc: Rpc) -> None:
    node.http(429, b"slow down", **{"Retry-After": "7"})
    with pytest.raises(RpcUnavailable) as caught:
        rpc.get_latest_blockhash()
    assert caught.value.retry_after_s == 7


def test_retry_after_may_be_a_date(node: Node, rpc: Rpc) -> None:
    node.http(503, **{"Retry-After": format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)})
    with pytest.raises(RpcUnavailable) as caught:
        rpc.get_balance("x")
    assert caught.value.retry_after_s == pytest.approx(90, abs=5)


@pytest.mark.parametrize("odd", ["soon", "", "-3", "1e3", "\N{ARABIC-INDIC DIGIT SEVEN}".encode().decode("latin-1")])
def test_an_odd_retry_after_is_no_retry_after(node: Node, rpc: Rpc, odd: str) -> None:
    node.http(429, **{"Retry-After": odd})
    with pytest.raises(RpcUnavailable) as caught:
        rpc.get_balance("x")
    assert caught.value.retry_after_s is None


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_failing_node_is_unavailable(node: Node, rpc: Rpc, status: int) -> None:
    node.http(status, b"<html>Bad gateway</html>")
    with pytest.raises(RpcUnavailable):
        rpc.send_raw(b"\x01", preflight=True)


def test_a_silent_node_is_unavailable_once_the_time_is_up(node: Node) -> None:
    node.silent.set()
    with Rpc([node.url], timeout_s=0.2) as rpc:
        began = time.monotonic()
        with pytest.raises(RpcUnavailable):
            rpc.get_latest_blockhash()
        assert time.monotonic() - began < 5


def test_a_node_that_is_not_there_is_unavailable(node: Node) -> None:
    node.close()
    with Rpc([node.url], timeout_s=1) as rpc, pytest.raises(RpcUnavailable):
        rpc.get_latest_blockhash()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b"7",
        {"jsonrpc": "2.0", "id": 1},
        {"jsonrpc": "2.0", "id": 999, "result": {}},
        {"jsonrpc": "2.0", "id": 1, "result": None},
        {"jsonrpc": "2.0", "id": 1, "result": {"value": {"blockhash": 5, "lastValidBlockHeight": 5}}},
        {"jsonrpc": "2.0", "id": 1, "result": {"value": {"blockhash": "x", "lastValidBlockHeight": "5"}}},
        {"jsonrpc": "2.0", "id": 1, "result": {"value": {"blockhash": "x", "lastValidBlockHeight": -5}}},
        {"jsonrpc": "2.0", "id": 1, "error": "unwell"},
        {"jsonrpc": "2.0", "id": 1, "error": {"message": "no code"}},
    ],
)
def test_a_malformed_answer_is_no_answer(node: Node, rpc: Rpc, body: Any) -> None:
    node.http(200, body)
    with pytest.raises(RpcUnavailable):
        rpc.get_latest_blockhash()


@pytest.mark.parametrize("error", [429, {"code": 429, "message": "m"}, {"code": -32005, "message": "Node is behind"}])
def test_a_node_that_is_behind_or_busy_is_unavailable(node: Node, rpc: Rpc, error: Any) -> None:
    node.error(error)
    with pytest.raises(RpcUnavailable):
        rpc.get_latest_blockhash()


def test_an_error_without_data_is_an_error(node: Node, rpc: Rpc) -> None:
    node.error({"code": -32002, "message": "Transaction simulation failed"})
    with pytest.raises(RpcError) as caught:
        rpc.send_raw(b"\x01", preflight=True)
    assert (caught.value.code, caught.value.data, caught.value.transaction_error) == (-32002, None, None)


def test_an_error_of_a_kind_that_nobody_knows_is_carried_as_it_is(node: Node, rpc: Rpc) -> None:
    node.error(
        {"code": -32002, "message": "m", "data": {"err": {"InstructionError": [3, {"Brandnew": 1}]}, "logs": []}}
    )
    with pytest.raises(RpcError) as caught:
        rpc.send_raw(b"\x01", preflight=True)
    assert caught.value.transaction_error == {"InstructionError": [3, {"Brandnew": 1}]}


def test_a_send_leaves_resending_to_the_caller(node: Node, rpc: Rpc) -> None:
    node.result("signature")
    assert rpc.send_raw(b"\x01\x02", preflight=False) == "signature"
    [request] = node.requests
    assert request["params"][0] == "AQI="
    assert request["params"][1]["maxRetries"] == 0
    assert request["params"][1]["skipPreflight"] is True


def test_the_next_node_is_asked_when_one_does_not_answer(node: Node, second: Node) -> None:
    node.http(503)
    second.result({"value": 12})
    with Rpc([node.url, second.url]) as rpc:
        assert rpc.get_balance("x") == 12


def test_a_call_put_to_one_node_is_put_to_no_other(node: Node, second: Node) -> None:
    node.http(503)
    with Rpc([node.url, second.url]) as rpc, pytest.raises(RpcUnavailable):
        rpc.get_transaction("s", node=0)
    assert second.requests == []


@pytest.mark.case("money-F5")
def test_heights_come_from_each_node_that_answers(node: Node, second: Node) -> None:
    node.result(1_000)
    second.result(22_001_000)
    with Rpc([node.url, second.url]) as rpc:
        assert rpc.get_block_heights() == [1_000, 22_001_000]
        second.http(500)
        assert rpc.get_block_heights() == [1_000]
        node.http(500)
        with pytest.raises(RpcUnavailable):
            rpc.get_block_heights()


@pytest.mark.case("money-F3")
def test_statuses_are_asked_for_in_chunks_and_with_history(node: Node, rpc: Rpc) -> None:
    node.answer = lambda request: (
        200,
        {},
        {"jsonrpc": "2.0", "id": request["id"], "result": {"value": [None] * len(request["params"][0])}},
    )
    assert rpc.get_signature_statuses([f"s{n}" for n in range(600)]) == [None] * 600
    assert [len(request["params"][0]) for request in node.requests] == [256, 256, 88]
    assert all(request["params"][1] == {"searchTransactionHistory": True} for request in node.requests)


def test_statuses_that_do_not_match_the_question_are_no_answer(node: Node, rpc: Rpc) -> None:
    node.result({"value": [None]})
    with pytest.raises(RpcUnavailable):
        rpc.get_signature_statuses(["a", "b"])


@pytest.mark.parametrize(("fees", "expected"), [([], 0), ([7], 7), ([4, 1, 3, 2], 3), (list(range(1, 101)), 75)])
def test_the_recent_priority_fee_is_the_75th_percentile(node: Node, rpc: Rpc, fees: list[int], expected: int) -> None:
    node.result([{"slot": 1, "prioritizationFee": fee} for fee in fees])
    assert rpc.recent_priority_fee(["a"]) == expected


def test_a_token_balance_where_no_token_account_is_is_none(node: Node, rpc: Rpc) -> None:
    node.result({"value": None})
    assert rpc.get_token_balance("x") is None
    system = "11111111111111111111111111111111"
    node.result({"value": {"owner": system, "executable": False, "data": ["", "base64"], "lamports": 5}})
    assert rpc.get_token_balance("x") is None


def test_a_client_without_a_node_cannot_be_made() -> None:
    with pytest.raises(ValueError):
        Rpc([])
