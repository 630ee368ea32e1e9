"""A thin, synchronous Solana JSON-RPC client: nodes are asked in order, everything at commitment ``finalized``.

A node that answers with Retry-After is left alone until then; the others are asked meanwhile.

Two kinds of failure, because callers must treat them differently:

* ``RpcUnavailable``: nobody gave an answer that can be trusted (time-out, 429, 5xx, a node that is behind, nonsense). It says
  nothing about the chain: change no state, ask again later.
* ``RpcError``: a node answered and its answer is an error. For ``send_raw`` even that decides nothing: only the signature's
  status on chain does.

Answers are read as plain JSON. The error types of solders are kept out: they panic on answers of real nodes.
"""

import base64
import itertools
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
from solders.pubkey import Pubkey

STATUSES_PER_CALL = 256
ACCOUNTS_PER_CALL = 100
# A node that asks to be left alone is, but never for longer than this: its clock may be wrong.
REST_MOST_S = 60.0
TOKEN_PROGRAM = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"
TOKEN_2022_PROGRAM = "TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb"
TOKEN_PROGRAMS = frozenset({TOKEN_PROGRAM, TOKEN_2022_PROGRAM})
TOKEN_ACCOUNT_BYTES = 165

_FINALIZED = {"commitment": "finalized"}
# Rate limit, node behind, minimum slot not reached, internal error: the node's trouble, not an answer about the chain.
_NODE_TROUBLE = frozenset({429, -32005, -32016, -32603})
_UNSIGNED = re.compile(r"\d{1,20}", re.ASCII)


class RpcUnavailable(Exception):
    """No node gave a trustworthy answer; ``retry_after_s`` is what a node asked for, if it did."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class RpcError(Exception):
    """A node's JSON-RPC error, as it was given."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.data = data

    @property
    def transaction_error(self) -> Any:
        """The ``err`` of a failed preflight (``"BlockhashNotFound"``, ``{"InstructionError": [2, {"Custom": 17}]}``), else None."""
        return self.data.get("err") if isinstance(self.data, dict) else None


@dataclass(frozen=True, slots=True)
class Account:
    """An account as stored: ``owner`` is the program that owns it."""

    owner: str
    executable: bool
    data: bytes
    lamports: int


@dataclass(frozen=True, slots=True)
class TokenHolding:
    """A token account of a wallet: its address, its token, and how much of it, in the token's smallest unit."""

    account: str
    mint: str
    amount: int


class Rpc:
    """Asks ``urls`` in order until one answers; a call can be put to one node by its index in ``urls``."""

    def __init__(self, urls: list[str], timeout_s: float = 10.0) -> None:
        if not urls:
            raise ValueError("at least one node URL is needed")
        self.urls = list(urls)
        self._ids = itertools.count(1)
        self._rest_until = [0.0] * len(self.urls)  # by the monotonic clock: until when a node asked to be left alone
        self._clients = [
            # A proxy from the environment must not be asked for a node on this machine.
            httpx.Client(timeout=httpx.Timeout(timeout_s), trust_env=not _is_loopback(url))
            for url in self.urls
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def wake(self) -> None:
        """Ask every node again, also one that asked to be left alone."""
        self._rest_until = [0.0] * len(self.urls)

    @property
    def nodes(self) -> range:
        """Indexes for the ``node`` argument of the calls below."""
        return range(len(self.urls))

    # -- what the chain is -------------------------------------------------------------------------------------------

    def genesis_hash(self, *, node: int | None = None) -> str:
        return self.call("getGenesisHash", node=node, read=_text)

    def is_healthy(self, *, node: int | None = None) -> bool:
        try:
            return self.call("getHealth", node=node) == "ok"
        except (RpcUnavailable, RpcError):
            return False

    def get_latest_blockhash(self) -> tuple[str, int]:
        """The newest blockhash and the last block height at which a transaction with it can land."""
        return self.call(
            "getLatestBlockhash",
            _FINALIZED,
            read=lambda answer: (_text(answer["value"]["blockhash"]), _count(answer["value"]["lastValidBlockHeight"])),
        )

    def get_block_heights(self) -> list[int]:
        """The block height by each node that answers. Use the least of them: a node may answer with the (higher) slot.

        Raises RpcUnavailable if none answers.
        """
        heights, last = [], RpcUnavailable("no node answered")
        for node in self.nodes:
            try:
                heights.append(self.call("getBlockHeight", _FINALIZED, node=node, read=_count))
            except RpcUnavailable as unavailable:
                last = unavailable
            except RpcError as error:
                last = RpcUnavailable(str(error))
        if not heights:
            raise last
        return heights

    def rent_exempt_minimum(self, size_bytes: int) -> int:
        """Lamports that an account of this size must hold. It changes over time: never keep it."""
        return self.call("getMinimumBalanceForRentExemption", size_bytes, _FINALIZED, read=_count)

    def recent_priority_fee(self, accounts: Sequence[str]) -> int:
        """The 75th percentile of recent priority fees for writing to ``accounts``, in micro-lamports per compute unit; 0 if none."""

        def read(answer: Any) -> int:
            fees = sorted(_count(row["prioritizationFee"]) for row in answer)
            return fees[math.ceil(0.75 * len(fees)) - 1] if fees else 0

        return self.call("getRecentPrioritizationFees", list(accounts), read=read)

    # -- accounts ----------------------------------------------------------------------------------------------------

    def get_balance(self, pubkey: str) -> int:
        """Lamports; 0 for an account that does not exist."""
        return self.call("getBalance", pubkey, _FINALIZED, read=lambda answer: _count(answer["value"]))

    def get_account(self, address: str) -> Account | None:
        """The account at ``address``; None where there is none."""

        def read(answer: Any) -> Account | None:
            return _account(answer["value"])

        return self.call("getAccountInfo", address, {**_FINALIZED, "encoding": "base64"}, read=read)

    def get_accounts(self, addresses: Sequence[str]) -> list[Account | None]:
        """The accounts at many addresses, in order, a hundred a call; None where there is none."""

        def read(answer: Any) -> list[Account | None]:
            return [_account(value) for value in answer["value"]]

        options = {**_FINALIZED, "encoding": "base64"}
        accounts: list[Account | None] = []
        for start in range(0, len(addresses), ACCOUNTS_PER_CALL):
            chunk = list(addresses[start : start + ACCOUNTS_PER_CALL])
            found = self.call("getMultipleAccounts", chunk, options, read=read)
            if len(found) != len(chunk):
                raise RpcUnavailable("getMultipleAccounts: not one account an address")
            accounts += found
        return accounts

    def get_token_balance(self, token_account: str) -> int | None:
        """The token account's amount in the mint's smallest unit; None where there is no token account at this address."""
        account = self.get_account(token_account)
        if account is None or account.owner not in TOKEN_PROGRAMS or len(account.data) < TOKEN_ACCOUNT_BYTES:
            return None
        # Layout of spl-token's Account: mint 0..32, owner 32..64, amount 64..72 (little-endian).
        return int.from_bytes(account.data[64:72], "little")

    def get_token_holdings(self, owner: str, program: str) -> list[TokenHolding]:
        """All token accounts of ``owner`` under one token program, the standard one and any others."""

        def read(answer: Any) -> list[TokenHolding]:
            holdings = []
            for row in answer["value"]:
                encoded, encoding = row["account"]["data"]
                data = base64.b64decode(encoded, validate=True)
                if encoding != "base64" or len(data) < TOKEN_ACCOUNT_BYTES:
                    raise ValueError("not a token account in base64")
                holdings.append(
                    TokenHolding(
                        account=_text(row["pubkey"]),
                        # Layout of spl-token's Account, which Token-2022 begins with too: mint 0..32, owner 32..64, amount 64..72.
                        mint=str(Pubkey.from_bytes(data[:32])),
                        amount=int.from_bytes(data[64:72], "little"),
                    )
                )
            return holdings

        options = {**_FINALIZED, "encoding": "base64"}
        return self.call("getTokenAccountsByOwner", owner, {"programId": program}, options, read=read)

    # -- transactions ------------------------------------------------------------------------------------------------

    def send_raw(self, raw: bytes, *, preflight: bool, node: int | None = None) -> str:
        """Hand over a signed transaction and return its signature. Sending the same bytes again is harmless.

        Whatever this raises, the transaction may have landed; the caller resolves by signature.
        """
        options = {
            "encoding": "base64",
            "skipPreflight": not preflight,
            "preflightCommitment": "finalized",
            "maxRetries": 0,  # the caller resends, with its own clock
        }
        return self.call("sendTransaction", base64.b64encode(raw).decode(), options, node=node, read=_text)

    def simulate_units(self, raw: bytes) -> int | None:
        """The compute units that a transaction would need now; None if it would fail. It needs no signature, and should have none:
        whoever holds a signed one can send it."""

        def read(answer: Any) -> int | None:
            value = answer["value"]
            return None if value["err"] is not None else _count(value["unitsConsumed"])

        options = {**_FINALIZED, "encoding": "base64", "sigVerify": False, "replaceRecentBlockhash": True}
        return self.call("simulateTransaction", base64.b64encode(raw).decode(), options, read=read)

    def get_signature_statuses(
        self, signatures: Sequence[str], history: bool = True, *, node: int | None = None
    ) -> list[dict[str, Any] | None]:
        """One entry a signature, in order: ``{"slot", "err", "confirmationStatus", …}``, or None where the node knows nothing.

        Without ``history`` a node looks only at its recent cache, so None there is not evidence.
        """
        statuses: list[dict[str, Any] | None] = []
        for start in range(0, len(signatures), STATUSES_PER_CALL):
            chunk = list(signatures[start : start + STATUSES_PER_CALL])

            def read(answer: Any, expected: int = len(chunk)) -> list[dict[str, Any] | None]:
                rows = answer["value"]
                if len(rows) != expected:
                    raise ValueError("not one status a signature")
                for row in rows:
                    if row is not None:
                        row["confirmationStatus"], row["err"], _count(row["slot"])
                return list(rows)

            statuses += self.call(
                "getSignatureStatuses", chunk, {"searchTransactionHistory": history}, node=node, read=read
            )
        return statuses

    def get_transaction(self, signature: str, *, node: int | None = None) -> dict[str, Any] | None:
        """The finalized transaction with base64 ``transaction`` and its ``meta``, as gpunex.chain.transfers reads it; else None."""

        def read(answer: Any) -> dict[str, Any] | None:
            if answer is None:
                return None
            answer["meta"]["err"], answer["transaction"][0], answer["slot"]
            return dict(answer)

        options = {**_FINALIZED, "encoding": "base64", "maxSupportedTransactionVersion": 0}
        return self.call("getTransaction", signature, options, node=node, read=read)

    def get_signatures_for_address(
        self,
        address: str,
        *,
        until: str | None = None,
        before: str | None = None,
        limit: int = 1000,
        node: int | None = None,
    ) -> list[dict[str, Any]]:
        """Newest first: ``{"signature", "slot", "err", "memo", "blockTime", …}``, older than ``before``, newer than ``until``."""
        options: dict[str, Any] = {**_FINALIZED, "limit": limit}
        if until:
            options["until"] = until
        if before:
            options["before"] = before

        def read(answer: Any) -> list[dict[str, Any]]:
            for row in answer:
                _text(row["signature"]), row["err"], _count(row["slot"])
            return list(answer)

        return self.call("getSignaturesForAddress", address, options, node=node, read=read)

    # -- the wire ----------------------------------------------------------------------------------------------------

    def call[T](
        self,
        method: str,
        *params: Any,
        node: int | None = None,
        read: Callable[[Any], T] = lambda answer: answer,
    ) -> T:
        """Put one call to ``node``, or to each node in turn until one answers, and ``read`` the result's shape.

        An answer that ``read`` cannot make sense of counts as no answer.
        """
        unavailable: list[RpcUnavailable] = []
        for index in self.nodes if node is None else (node,):
            try:
                result = self._ask(index, method, params)
                try:
                    return read(result)
                except (KeyError, TypeError, ValueError, IndexError, AttributeError) as malformed:
                    raise RpcUnavailable(f"{method}: an answer of another shape") from malformed
            except RpcUnavailable as failure:
                unavailable.append(failure)
        waits = [failure.retry_after_s for failure in unavailable if failure.retry_after_s is not None]
        raise RpcUnavailable(
            "; ".join(map(str, unavailable)), retry_after_s=min(waits) if waits else None
        ) from unavailable[-1]

    def _ask(self, index: int, method: str, params: Iterable[Any]) -> Any:
        resting = self._rest_until[index] - time.monotonic()
        if resting > 0:
            raise RpcUnavailable(f"{method}: the node asked to be left alone", resting)
        call_id = next(self._ids)
        request = {"jsonrpc": "2.0", "id": call_id, "method": method, "params": list(params)}
        try:
            response = self._clients[index].post(self.urls[index], json=request)
        except httpx.HTTPError as error:
            raise RpcUnavailable(f"{method}: {type(error).__name__}") from error
        if response.status_code == httpx.codes.TOO_MANY_REQUESTS or response.status_code >= 500:
            wait = _retry_after(response)
            self._rest_until[index] = time.monotonic() + min(wait or 0.0, REST_MOST_S)
            raise RpcUnavailable(f"{method}: HTTP {response.status_code}", wait)
        try:
            answer = json.loads(response.content)
        except ValueError as error:
            raise RpcUnavailable(f"{method}: HTTP {response.status_code} without JSON") from error
        if not isinstance(answer, dict):
            raise RpcUnavailable(f"{method}: not a JSON-RPC answer")
        if answer.get("error") is not None:
            raise _as_exception(method, answer["error"], _retry_after(response))
        if answer.get("id") != call_id or "result" not in answer:
            raise RpcUnavailable(f"{method}: not an answer to this call")
        return answer["result"]


def _as_exception(method: str, error: Any, retry_after_s: float | None) -> RpcError | RpcUnavailable:
    code = error.get("code") if isinstance(error, dict) else error  # some proxies give the bare number
    if not isinstance(code, int):
        return RpcUnavailable(f"{method}: an error without a code")
    message = str(error.get("message", "")) if isinstance(error, dict) else ""
    if code in _NODE_TROUBLE:
        return RpcUnavailable(f"{method}: {code} {message}".rstrip(), retry_after_s)
    return RpcError(code, message, error.get("data") if isinstance(error, dict) else None)


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds from a Retry-After header, which is a number or a date (RFC 9110 section 10.2.3); None if absent or odd."""
    value = response.headers.get("Retry-After", "").strip()
    if _UNSIGNED.fullmatch(value):
        return float(value)
    try:
        until = parsedate_to_datetime(value)
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


def _account(value: Any) -> Account | None:
    if value is None:
        return None
    encoded, encoding = value["data"]
    if encoding != "base64":
        raise ValueError("the data is not base64")
    return Account(
        owner=_text(value["owner"]),
        executable=bool(value["executable"]),
        data=base64.b64decode(encoded, validate=True),
        lamports=_count(value["lamports"]),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError("not a count")
    return value


def _is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in {"localhost", "127.0.0.1", "::1"}
