"""The chain itself: LiteSVM executes; blocks, the blockhash window, history and their survival are kept here.

Block height is a function of the clock (a block every 400 ms since genesis, plus what tests skip), and the blockhash of a height is a
hash of genesis and height: neither needs a thread or storage, and blockhashes handed out before a restart stay valid after it.
Slots are 22 million ahead of heights, as on mainnet, so that code which confuses the two is caught.
"""

import base64
import hashlib
import json
import os
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from solders.account import Account
from solders.clock import Clock
from solders.hash import Hash
from solders.litesvm import LiteSVM
from solders.pubkey import Pubkey
from solders.rent import Rent
from solders.signature import Signature
from solders.system_program import ID as SYSTEM_PROGRAM
from solders.token.state import Mint, TokenAccount
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata

from gpunex.chain.devchain.journal import Journal
from gpunex.chain.rpc import TOKEN_ACCOUNT_BYTES, TOKEN_PROGRAMS
from gpunex.chain.transfers import memo_in

BLOCK_S = 0.4
FIRST_HEIGHT = 1_000
SLOTS_AHEAD = 22_000_000
BLOCKHASH_LIFE = 150
_MINT_BYTES = 82
_RENT_EXEMPTION_YEARS = 1.0  # with it, Rent's first figure is what a byte costs for good
_RENT_BURN_PERCENT = 50


class ReplayDiffers(Exception):
    """The journal does not lead to the outcome that it recorded: it was written by other programs, or edited."""


@dataclass(frozen=True, slots=True)
class Landed:
    """A transaction in a block; ``err`` is Solana's JSON form, None if it succeeded. The rest is in the journal."""

    signature: str
    height: int
    at: int
    err: Any
    memo: str | None
    offset: int
    length: int

    @property
    def slot(self) -> int:
        return self.height + SLOTS_AHEAD


class Chain:
    """Not thread-safe: the server holds one lock around every call."""

    def __init__(self, journal: Journal, *, faucet: str, faucet_lamports: int) -> None:
        # Signatures and the window are checked here, the latter because LiteSVM knows only one blockhash at a time.
        self.svm = LiteSVM().with_sigverify(False).with_blockhash_check(False).with_transaction_history(0)
        self.landed: list[Landed] = []
        self.by_signature: dict[str, Landed] = {}
        self.by_address: dict[str, list[int]] = {}
        self.tokens_of: dict[str, set[str]] = {}  # token accounts that a wallet was ever seen to own
        self._journal = journal
        self._skipped_blocks = 0
        self._blockhashes: dict[str, int] = {}
        self._newest = 0
        self._decimals: dict[str, int] = {}

        genesis: dict[str, Any] | None = None
        for offset, length, record in journal.replay():
            if genesis is None:
                genesis = record
                self._begin(record)
            else:
                self._apply(record, offset, length)
        if genesis is None:
            genesis = {
                "kind": "genesis",
                "hash": str(Hash(os.urandom(32))),
                "at": time.time(),
                "faucet": faucet,
                "lamports": faucet_lamports,
            }
            self._write(genesis)
            self._begin(genesis)
        if genesis["faucet"] != faucet:
            raise ReplayDiffers("the faucet's key file is not the one that this chain began with")

        # From here on the height follows a clock that cannot be set back.
        last = self.landed[-1].height if self.landed else FIRST_HEIGHT
        by_the_clock = FIRST_HEIGHT + int(max(0.0, time.time() - genesis["at"]) / BLOCK_S) + self._skipped_blocks
        self._base, self._skipped_blocks = max(last, by_the_clock), 0
        self._started = time.monotonic()

    # -- blocks ------------------------------------------------------------------------------------------------------

    @property
    def height(self) -> int:
        return self._base + self._skipped_blocks + int((time.monotonic() - self._started) / BLOCK_S)

    @property
    def slot(self) -> int:
        return self.height + SLOTS_AHEAD

    def latest_blockhash(self) -> tuple[str, int]:
        height = self.height
        return self._blockhash(height), height + BLOCKHASH_LIFE

    def is_blockhash_valid(self, blockhash: str) -> bool:
        height = self.height
        oldest = max(FIRST_HEIGHT, height - BLOCKHASH_LIFE)
        for missing in range(max(oldest, self._newest + 1), height + 1):
            self._blockhashes[self._blockhash(missing)] = missing
        self._newest = height
        while self._blockhashes and next(iter(self._blockhashes.values())) < oldest:
            del self._blockhashes[next(iter(self._blockhashes))]
        return blockhash in self._blockhashes

    def skip_blocks(self, count: int) -> None:
        """Let ``count`` blocks pass at once."""
        self._write({"kind": "skip", "blocks": count})
        self._skipped_blocks += count

    def set_rent(self, lamports_per_byte: int) -> None:
        self._write({"kind": "rent", "lamports_per_byte": lamports_per_byte})
        self.svm.set_rent(Rent(lamports_per_byte, _RENT_EXEMPTION_YEARS, _RENT_BURN_PERCENT))

    def _blockhash(self, height: int) -> str:
        return str(Hash(hashlib.sha256(f"{self.genesis_hash} {height}".encode()).digest()))

    # -- transactions ------------------------------------------------------------------------------------------------

    def refusal_of(self, transaction: VersionedTransaction) -> str | None:
        """Why no block takes this transaction, in Solana's words; None if one would."""
        if str(transaction.signatures[0]) in self.by_signature:
            return "AlreadyProcessed"
        if not self.is_blockhash_valid(str(transaction.message.recent_blockhash)):
            return "BlockhashNotFound"
        return None

    def simulate(self, transaction: VersionedTransaction) -> dict[str, Any]:
        """What would happen now: ``err`` (None if it would succeed), ``logs``, ``unitsConsumed``."""
        self._set_clock(self.height, int(time.time()))
        outcome = self.svm.simulate_transaction(transaction)
        meta = outcome.meta()
        return {"err": _error_of(outcome), "logs": meta.logs(), "unitsConsumed": meta.compute_units_consumed()}

    def land(self, transaction: VersionedTransaction) -> Landed | None:
        """Put the transaction into a block, failed or not; None if no block takes it (expired, a repeat, no fee payer)."""
        if self.refusal_of(transaction):
            return None
        height, at = self.height, int(time.time())
        keys = transaction.message.account_keys
        before = self._balances(keys)
        outcome = self._execute(transaction, height, at)
        if outcome is None:
            return None
        after = self._balances(keys)
        record = {
            "kind": "tx",
            "height": height,
            "at": at,
            "raw": base64.b64encode(bytes(transaction)).decode(),
            "meta": {
                "err": outcome["err"],
                "status": {"Ok": None} if outcome["err"] is None else {"Err": outcome["err"]},
                "fee": outcome["fee"],
                "computeUnitsConsumed": outcome["units"],
                "logMessages": outcome["logs"],
                "innerInstructions": None,
                "rewards": [],
                "loadedAddresses": {"writable": [], "readonly": []},
                "preBalances": before[0],
                "postBalances": after[0],
                "preTokenBalances": before[1],
                "postTokenBalances": after[1],
            },
        }
        offset, length = self._write(record)
        return self._index(transaction, record, offset, length)

    def record_of(self, landed: Landed) -> dict[str, Any]:
        """The journal's record of a transaction: ``raw`` in base64 and ``meta`` as getTransaction gives it."""
        return self._journal.read(landed.offset, landed.length)

    def _execute(self, transaction: VersionedTransaction, height: int, at: int) -> dict[str, Any] | None:
        self._set_clock(height, at)
        outcome = self.svm.send_transaction(transaction)
        meta = outcome.meta() if isinstance(outcome, FailedTransactionMetadata) else outcome
        if meta is not outcome and meta.signature() == Signature.default():
            return None  # refused before it ran: no fee payer, or one that cannot pay
        return {
            "err": _error_of(outcome),
            "fee": meta.fee(),
            "units": meta.compute_units_consumed(),
            "logs": meta.logs(),
        }

    def _set_clock(self, height: int, at: int) -> None:
        self.svm.set_clock(
            Clock(
                slot=height + SLOTS_AHEAD, epoch_start_timestamp=0, epoch=0, leader_schedule_epoch=0, unix_timestamp=at
            )
        )

    # -- the journal -------------------------------------------------------------------------------------------------

    def _begin(self, genesis: dict[str, Any]) -> None:
        self.genesis_hash: str = genesis["hash"]
        self.svm.set_account(
            Pubkey.from_string(genesis["faucet"]), Account(genesis["lamports"], b"", SYSTEM_PROGRAM, False)
        )

    def _apply(self, record: dict[str, Any], offset: int, length: int) -> None:
        match record["kind"]:
            case "tx":
                transaction = VersionedTransaction.from_bytes(base64.b64decode(record["raw"]))
                outcome = self._execute(transaction, record["height"], record["at"])
                if outcome is None or outcome["err"] != record["meta"]["err"]:
                    raise ReplayDiffers(f"transaction {transaction.signatures[0]} does not end as recorded")
                self._index(transaction, record, offset, length)
            case "skip":
                self._skipped_blocks += record["blocks"]
            case "rent":
                self.svm.set_rent(Rent(record["lamports_per_byte"], _RENT_EXEMPTION_YEARS, _RENT_BURN_PERCENT))
            case kind:
                raise ReplayDiffers(f"an unknown record of kind {kind!r}")

    def _write(self, record: dict[str, Any]) -> tuple[int, int]:
        try:
            return self._journal.append(record)
        except OSError:
            # Memory is now ahead of the disk. Answering from it would promise what a restart cannot keep.
            traceback.print_exc()
            os._exit(1)

    def _index(self, transaction: VersionedTransaction, record: dict[str, Any], offset: int, length: int) -> Landed:
        landed = Landed(
            signature=str(transaction.signatures[0]),
            height=record["height"],
            at=record["at"],
            err=record["meta"]["err"],
            memo=memo_in(transaction),
            offset=offset,
            length=length,
        )
        self.by_signature[landed.signature] = landed
        for key in transaction.message.account_keys:
            self.by_address.setdefault(str(key), []).append(len(self.landed))
        for row in record["meta"]["postTokenBalances"]:
            account = str(transaction.message.account_keys[row["accountIndex"]])
            self.tokens_of.setdefault(row["owner"], set()).add(account)
        self.landed.append(landed)
        return landed

    # -- balances ----------------------------------------------------------------------------------------------------

    def token_account(self, address: Pubkey) -> tuple[TokenAccount, int, str] | None:
        """The token account at ``address``, its mint's decimals and its program; None if there is none."""
        account = self.svm.get_account(address)
        if account is None or str(account.owner) not in TOKEN_PROGRAMS or len(account.data) < TOKEN_ACCOUNT_BYTES:
            return None
        token = TokenAccount.from_bytes(account.data[:TOKEN_ACCOUNT_BYTES])
        mint = str(token.mint)
        if mint not in self._decimals:
            mint_account = self.svm.get_account(token.mint)
            if mint_account is None:
                return None
            self._decimals[mint] = Mint.from_bytes(mint_account.data[:_MINT_BYTES]).decimals
        return token, self._decimals[mint], str(account.owner)

    def _balances(self, keys: Sequence[Pubkey]) -> tuple[list[int], list[dict[str, Any]]]:
        tokens = []
        for index, key in enumerate(keys):
            if (found := self.token_account(key)) is not None:
                token, decimals, program = found
                tokens.append(
                    {
                        "accountIndex": index,
                        "mint": str(token.mint),
                        "owner": str(token.owner),
                        "programId": program,
                        "uiTokenAmount": ui_amount(token.amount, decimals),
                    }
                )
        return [self.svm.get_balance(key) or 0 for key in keys], tokens


def ui_amount(amount: int, decimals: int) -> dict[str, Any]:
    """An amount as the RPC gives it. ``uiAmount`` is left null: it is a float, and deprecated."""
    whole, rest = divmod(amount, 10**decimals)
    digits = f"{rest:0{decimals}d}".rstrip("0") if decimals else ""
    text = f"{whole}.{digits}" if digits else str(whole)
    return {"amount": str(amount), "decimals": decimals, "uiAmount": None, "uiAmountString": text}


def _error_of(outcome: Any) -> Any:
    """Solana's JSON form of a failure; None for a success."""
    return json.loads(outcome.to_json())["err"] if isinstance(outcome, FailedTransactionMetadata) else None
