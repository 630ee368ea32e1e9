"""USDC transfers: signed here, sent elsewhere, and recognised again in what the chain says.

Each transfer carries a memo that no other has. Without it, two equal payments on one blockhash would be the same bytes, hence one
signature, and only one would be paid.
"""

import base64
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction
from spl.memo.constants import MEMO_PROGRAM_ID
from spl.memo.instructions import create_memo
from spl.memo.models import MemoParams
from spl.token.constants import TOKEN_PROGRAM_ID
from spl.token.instructions import create_idempotent_associated_token_account, transfer_checked
from spl.token.models import TransferCheckedParams

from gpunex.chain.addresses import ata

DECIMALS = 6
# A transfer that also opens the recipient's account took 14,443 units; finding that account's address can take some thousands more.
CU_LIMIT = 80_000
_MEMO_PROGRAMS = frozenset({str(MEMO_PROGRAM_ID), "Memo1UhkJRfHyvLMcVucJwxXeuD728EqVDDwQDxFMNo"})


@dataclass(frozen=True, slots=True)
class SignedTransfer:
    """A signed transaction. Commit it before sending; after ``last_valid_block_height`` (with a margin) it can no longer land."""

    raw: bytes
    signature: str
    blockhash: str
    last_valid_block_height: int


class KeyFileRefused(Exception):
    """A key file that others can read, or that holds no key. Not a Refusal: it concerns whoever runs the platform."""


def load_key(path: Path | str) -> Keypair:
    """The key in a solana-keygen file (a JSON array of 64 bytes), which only its owner may read: mode 0600. Raises KeyFileRefused."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or stat.S_IMODE(status.st_mode) != 0o600:
                raise KeyFileRefused(f"{path}: a key file must be a plain file of mode 0600")
            content = file.read()
    except OSError as error:
        raise KeyFileRefused(f"{path}: {error.strerror}") from error
    try:
        return Keypair.from_bytes(bytes(json.loads(content)))
    except (ValueError, TypeError):
        # Without the cause: it may quote the key.
        raise KeyFileRefused(f"{path}: not a solana-keygen key file") from None


def sign_transfer(
    *,
    key: Keypair,
    mint: str,
    destination_owner: str,
    amount_micro: int,
    memo: str,
    blockhash: str,
    last_valid_block_height: int,
    cu_price_micro_lamports: int,
    cu_limit: int = CU_LIMIT,
) -> SignedTransfer:
    """From ``key``'s own token account to that of ``destination_owner``, which ``key`` opens (and pays rent for) if there is none."""
    return _sign(
        payer=key,
        authority=key,
        mint=mint,
        destination_owner=destination_owner,
        amount_micro=amount_micro,
        memo=memo,
        blockhash=blockhash,
        last_valid_block_height=last_valid_block_height,
        cu_price_micro_lamports=cu_price_micro_lamports,
        cu_limit=cu_limit,
    )


def sign_sweep(
    *,
    owner_key: Keypair,
    treasury_key: Keypair,
    mint: str,
    amount_micro: int,
    memo: str,
    blockhash: str,
    last_valid_block_height: int,
    cu_price_micro_lamports: int,
    cu_limit: int = CU_LIMIT,
) -> SignedTransfer:
    """From a deposit account into the treasury's: the deposit's owner signs for the money, the treasury pays the network."""
    return _sign(
        payer=treasury_key,
        authority=owner_key,
        mint=mint,
        destination_owner=str(treasury_key.pubkey()),
        amount_micro=amount_micro,
        memo=memo,
        blockhash=blockhash,
        last_valid_block_height=last_valid_block_height,
        cu_price_micro_lamports=cu_price_micro_lamports,
        cu_limit=cu_limit,
    )


def _sign(
    *,
    payer: Keypair,
    authority: Keypair,
    mint: str,
    destination_owner: str,
    amount_micro: int,
    memo: str,
    blockhash: str,
    last_valid_block_height: int,
    cu_price_micro_lamports: int,
    cu_limit: int,
) -> SignedTransfer:
    if amount_micro <= 0:
        raise ValueError("a transfer moves a positive amount")
    if not memo:
        raise ValueError("a transfer carries a memo of its own")
    mint_key = Pubkey.from_string(mint)
    owner = Pubkey.from_string(destination_owner)
    instructions = [
        set_compute_unit_limit(cu_limit),
        set_compute_unit_price(cu_price_micro_lamports),
        create_idempotent_associated_token_account(payer.pubkey(), owner, mint_key),
        transfer_checked(
            TransferCheckedParams(
                program_id=TOKEN_PROGRAM_ID,
                source=Pubkey.from_string(ata(str(authority.pubkey()), mint)),
                mint=mint_key,
                dest=Pubkey.from_string(ata(destination_owner, mint)),
                owner=authority.pubkey(),
                amount=amount_micro,
                decimals=DECIMALS,
            )
        ),
        memo_instruction(memo, payer.pubkey()),
    ]
    return sign(
        payer=payer,
        others=() if authority is payer else (authority,),
        instructions=instructions,
        blockhash=blockhash,
        last_valid_block_height=last_valid_block_height,
    )


def memo_instruction(memo: str, signer: Pubkey) -> Instruction:
    return create_memo(MemoParams(program_id=MEMO_PROGRAM_ID, signer=signer, message=memo.encode()))


def memo_in(transaction: VersionedTransaction) -> str | None:
    """The first memo of a transaction; None if it has none. A program is never loaded from a lookup table."""
    keys = transaction.message.account_keys
    for instruction in transaction.message.instructions:
        if str(keys[instruction.program_id_index]) in _MEMO_PROGRAMS:
            return bytes(instruction.data).decode("utf-8", "replace")
    return None


def sign(
    *,
    payer: Keypair,
    instructions: Sequence[Instruction],
    blockhash: str,
    last_valid_block_height: int,
    others: Sequence[Keypair] = (),
) -> SignedTransfer:
    """One transaction of ``instructions``, paid for by ``payer`` and signed by it and by ``others``."""
    message = MessageV0.try_compile(payer.pubkey(), list(instructions), [], Hash.from_string(blockhash))
    transaction = VersionedTransaction(message, [payer, *others])
    return SignedTransfer(
        raw=bytes(transaction),
        signature=str(transaction.signatures[0]),
        blockhash=blockhash,
        last_valid_block_height=last_valid_block_height,
    )


def unsigned(raw: bytes) -> bytes:
    """The same transaction with empty signatures: what a node may see of one that must not land."""
    transaction = VersionedTransaction.from_bytes(raw)
    return bytes(
        VersionedTransaction.populate(transaction.message, [Signature.default()] * len(transaction.signatures))
    )


# -- What a transaction did: ``tx_json`` is what ``Rpc.get_transaction`` returns -----------------------------------------


def token_delta(tx_json: dict[str, Any], token_account: str, mint: str) -> int:
    """By how much the transaction changed a token account of this mint, in its smallest unit; 0 if it failed on chain."""
    meta = tx_json["meta"]
    if meta["err"] is not None:
        return 0
    keys = account_keys(tx_json)

    def amount(rows: list[dict[str, Any]] | None) -> int:
        return sum(
            int(row["uiTokenAmount"]["amount"])
            for row in rows or ()
            if keys[row["accountIndex"]] == token_account and row["mint"] == mint
        )

    return amount(meta["postTokenBalances"]) - amount(meta["preTokenBalances"])


def incoming(tx_json: dict[str, Any], token_account: str, mint: str) -> int:
    """Micro-USDC that the transaction brought into ``token_account``; 0 if it failed, took some out, or was about another mint."""
    return max(0, token_delta(tx_json, token_account, mint))


@dataclass(frozen=True, slots=True, order=True)
class TokenGain:
    """By how much one token account gained, in the smallest unit of its token."""

    account: str
    mint: str
    amount: int
    decimals: int


def token_gains(tx_json: dict[str, Any], owner: str) -> list[TokenGain]:
    """What the transaction brought into token accounts of ``owner``, of whatever token and program; nothing if it failed."""
    meta = tx_json["meta"]
    if meta["err"] is not None:
        return []
    keys = account_keys(tx_json)
    before = {
        (row["accountIndex"], row["mint"]): int(row["uiTokenAmount"]["amount"])
        for row in meta["preTokenBalances"] or ()
    }
    gains = [
        TokenGain(
            account=keys[row["accountIndex"]],
            mint=row["mint"],
            amount=int(row["uiTokenAmount"]["amount"]) - before.get((row["accountIndex"], row["mint"]), 0),
            decimals=int(row["uiTokenAmount"]["decimals"]),
        )
        for row in meta["postTokenBalances"] or ()
        if row.get("owner") == owner
    ]
    return sorted(gain for gain in gains if gain.amount > 0)


def token_payer(tx_json: dict[str, Any], mint: str) -> str:
    """The wallet whose tokens of ``mint`` became fewer, where it is exactly one; else empty."""
    meta = tx_json["meta"]
    before, after = (
        {
            row["accountIndex"]: (row.get("owner", ""), int(row["uiTokenAmount"]["amount"]))
            for row in meta[name] or ()
            if row["mint"] == mint
        }
        for name in ("preTokenBalances", "postTokenBalances")
    )
    payers = {owner for index, (owner, amount) in before.items() if after.get(index, (owner, 0))[1] < amount}
    return payers.pop() if len(payers) == 1 else ""


def memo_of(tx_json: dict[str, Any]) -> str | None:
    """The first memo of the transaction; None if it has none."""
    return memo_in(_transaction(tx_json))


def outgoing_matches(tx_json: dict[str, Any], destination_owner: str, mint: str, amount: int, memo: str) -> bool:
    """Whether the transaction succeeded and paid exactly ``amount`` to ``destination_owner``'s account with this memo."""
    account = ata(destination_owner, mint)
    keys = account_keys(tx_json)
    owners = {
        row.get("owner") for row in tx_json["meta"]["postTokenBalances"] or () if keys[row["accountIndex"]] == account
    }
    return (
        tx_json["meta"]["err"] is None
        and token_delta(tx_json, account, mint) == amount
        and owners == {destination_owner}
        and memo_of(tx_json) == memo
    )


def _transaction(tx_json: dict[str, Any]) -> VersionedTransaction:
    encoded, encoding = tx_json["transaction"]
    if encoding != "base64":
        raise ValueError("the transaction is not base64")
    return VersionedTransaction.from_bytes(base64.b64decode(encoded))


def account_keys(tx_json: dict[str, Any]) -> list[str]:
    """All accounts in the order that ``accountIndex`` counts: the message's own, then those loaded from lookup tables."""
    loaded = tx_json["meta"].get("loadedAddresses") or {}
    own = [str(key) for key in _transaction(tx_json).message.account_keys]
    return own + list(loaded.get("writable", ())) + list(loaded.get("readonly", ()))
