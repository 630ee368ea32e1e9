"""The JSON-RPC methods, in Solana's forms: https://solana.com/docs/rpc/http. One commitment: everything is finalized at once.

Binary data is spoken in base64 only; a call that asks for another encoding is refused rather than misread.
"""

import base64
import binascii
from collections.abc import Callable
from typing import Any

from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction

from gpunex.chain.devchain.chain import BLOCKHASH_LIFE, Chain, Landed, ui_amount
from gpunex.chain.devchain.faults import Faults
from gpunex.chain.transfers import memo_instruction, sign

PACKET_BYTES = 1232
_MOST_SIGNATURES = 256
_MOST_HISTORY = 1000
# What a lying node says of a transaction: as if the recipient's account were frozen.
_FAILED = {"InstructionError": [3, {"Custom": 17}]}
_WORDS = {
    "AccountNotFound": "Attempt to debit an account but found no record of a prior credit.",
    "AlreadyProcessed": "This transaction has already been processed",
    "BlockhashNotFound": "Blockhash not found",
    "InsufficientFundsForFee": "Insufficient funds for fee",
}


class MethodError(Exception):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.body = {"code": code, "message": message} | ({} if data is None else {"data": data})


class NoAnswer(Exception):
    """The connection is to be closed without an answer, though the work is done."""


class Methods:
    """All calls come under the server's lock. ``path`` is the node that was asked."""

    def __init__(self, chain: Chain, faucet: Keypair, faults: Faults) -> None:
        self._chain = chain
        self._svm = chain.svm
        self._faucet = faucet
        self._faults = faults
        self._held: list[VersionedTransaction] = []
        self._by_name: dict[str, Callable[..., Any]] = {
            name: getattr(self, f"_{_snake(name)}")
            for name in [
                "getHealth",
                "getVersion",
                "getSlot",
                "getGenesisHash",
                "getBlockHeight",
                "getLatestBlockhash",
                "isBlockhashValid",
                "getBalance",
                "getAccountInfo",
                "getMultipleAccounts",
                "getMinimumBalanceForRentExemption",
                "getTokenAccountBalance",
                "getTokenAccountsByOwner",
                "getRecentPrioritizationFees",
                "requestAirdrop",
                "sendTransaction",
                "simulateTransaction",
                "getSignatureStatuses",
                "getSignaturesForAddress",
                "getTransaction",
            ]
        }

    def call(self, name: Any, params: Any, path: str) -> Any:
        method = self._by_name.get(name) if isinstance(name, str) else None
        if method is None:
            raise MethodError(-32601, "Method not found")
        if not isinstance(params, list):
            raise MethodError(-32602, "Invalid params: an array is expected")
        try:
            return method(path, *params)
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            raise MethodError(-32602, f"Invalid params: {error}") from error

    def forget_held(self) -> None:
        self._held = []

    def release(self) -> None:
        """Land the held transactions that still can."""
        held, self._held = self._held, []
        for transaction in held:
            self._chain.land(transaction)

    # -- the chain ---------------------------------------------------------------------------------------------------

    def _get_health(self, _path: str) -> str:
        return "ok"

    def _get_version(self, _path: str) -> dict[str, Any]:
        return {"solana-core": "3.0.0", "feature-set": 0}

    def _get_genesis_hash(self, _path: str) -> str:
        return self._chain.genesis_hash

    def _get_slot(self, _path: str, _config: Any = None) -> int:
        return self._chain.slot

    def _get_block_height(self, path: str, _config: Any = None) -> int:
        wrong = self._faults.height_as_slot and self._faults.apply_to(path)
        return self._chain.slot if wrong else self._chain.height

    def _get_latest_blockhash(self, path: str, _config: Any = None) -> dict[str, Any]:
        blockhash, last = self._chain.latest_blockhash()
        if self._faults.apply_to(path):
            last -= self._faults.short_life
        return self._with_context({"blockhash": blockhash, "lastValidBlockHeight": last})

    def _is_blockhash_valid(self, _path: str, blockhash: str, _config: Any = None) -> dict[str, Any]:
        return self._with_context(self._chain.is_blockhash_valid(blockhash))

    def _get_minimum_balance_for_rent_exemption(self, _path: str, size: int, _config: Any = None) -> int:
        return self._svm.minimum_balance_for_rent_exemption(size)

    def _get_recent_prioritization_fees(self, _path: str, _accounts: Any = None) -> list[dict[str, int]]:
        return [{"slot": self._chain.slot, "prioritizationFee": 0}]

    # -- accounts ----------------------------------------------------------------------------------------------------

    def _get_balance(self, _path: str, address: str, _config: Any = None) -> dict[str, Any]:
        return self._with_context(self._svm.get_balance(Pubkey.from_string(address)) or 0)

    def _get_account_info(self, _path: str, address: str, config: Any = None) -> dict[str, Any]:
        _need_base64(config)
        return self._with_context(self._account(address))

    def _get_multiple_accounts(self, _path: str, addresses: list[str], config: Any = None) -> dict[str, Any]:
        _need_base64(config)
        return self._with_context([self._account(address) for address in addresses])

    def _get_token_account_balance(self, _path: str, address: str, _config: Any = None) -> dict[str, Any]:
        found = self._chain.token_account(Pubkey.from_string(address))
        if found is None:
            raise MethodError(-32602, "Invalid param: could not find account")
        token, decimals, _program = found
        return self._with_context(ui_amount(token.amount, decimals))

    def _get_token_accounts_by_owner(
        self, _path: str, owner: str, wanted: dict[str, str], config: Any = None
    ) -> dict[str, Any]:
        _need_base64(config)
        if "programId" not in wanted:
            raise MethodError(-32602, "This chain looks token accounts up by program only: give programId")
        rows = []
        for address in sorted(self._chain.tokens_of.get(str(Pubkey.from_string(owner)), ())):
            found = self._chain.token_account(Pubkey.from_string(address))
            if found is not None and found[2] == wanted["programId"] and str(found[0].owner) == owner:
                rows.append({"pubkey": address, "account": self._account(address)})
        return self._with_context(rows)

    def _account(self, address: str) -> dict[str, Any] | None:
        account = self._svm.get_account(Pubkey.from_string(address))
        if account is None:
            return None
        return {
            "lamports": account.lamports,
            "owner": str(account.owner),
            "executable": account.executable,
            "rentEpoch": 0,
            "space": len(account.data),
            "data": [base64.b64encode(account.data).decode(), "base64"],
        }

    # -- transactions ------------------------------------------------------------------------------------------------

    def _request_airdrop(self, _path: str, address: str, lamports: int, _config: Any = None) -> str:
        """SOL from the faucet, by an ordinary transfer; its memo keeps two equal airdrops apart."""
        blockhash, last = self._chain.latest_blockhash()
        faucet = self._faucet.pubkey()
        drop = TransferParams(from_pubkey=faucet, to_pubkey=Pubkey.from_string(address), lamports=lamports)
        signed = sign(
            payer=self._faucet,
            instructions=[transfer(drop), memo_instruction(f"airdrop {len(self._chain.landed)}", faucet)],
            blockhash=blockhash,
            last_valid_block_height=last,
        )
        transaction = VersionedTransaction.from_bytes(signed.raw)
        self._preflight(transaction)
        self._chain.land(transaction)
        return signed.signature

    def _send_transaction(self, _path: str, encoded: str, config: Any = None) -> str:
        _need_base64(config)
        transaction = _decoded(encoded)
        signature = str(transaction.signatures[0])
        if not config.get("skipPreflight"):
            self._preflight(transaction)
        if self._faults.take("drop"):
            return signature
        if self._faults.take("hold"):
            self._held.append(transaction)
            return signature
        self._chain.land(transaction)
        if self._faults.take("timeout_after_land"):
            raise NoAnswer
        return signature

    def _simulate_transaction(self, _path: str, encoded: str, config: Any = None) -> dict[str, Any]:
        _need_base64(config)
        transaction = _decoded(encoded, verify=bool(config.get("sigVerify")))
        refusal = None if config.get("replaceRecentBlockhash") else self._chain.refusal_of(transaction)
        outcome = {"err": refusal, "logs": [], "unitsConsumed": 0} if refusal else self._chain.simulate(transaction)
        return self._with_context({**outcome, "accounts": None, "returnData": None})

    def _preflight(self, transaction: VersionedTransaction) -> None:
        refusal = self._chain.refusal_of(transaction)
        outcome = {"err": refusal, "logs": [], "unitsConsumed": 0} if refusal else self._chain.simulate(transaction)
        if outcome["err"] is not None:
            raise MethodError(
                -32002,
                f"Transaction simulation failed: {_in_words(outcome['err'])}",
                {**outcome, "accounts": None, "returnData": None},
            )

    # -- history -----------------------------------------------------------------------------------------------------

    def _get_signature_statuses(self, path: str, signatures: list[str], config: Any = None) -> dict[str, Any]:
        if len(signatures) > _MOST_SIGNATURES:
            raise MethodError(-32602, f"Too many inputs provided; max {_MOST_SIGNATURES}")
        whole_history = bool((config or {}).get("searchTransactionHistory"))
        oldest = 0 if whole_history else self._chain.height - BLOCKHASH_LIFE

        def status(signature: str) -> dict[str, Any] | None:
            landed = self._visible(signature, path)
            if landed is None or landed.height < oldest:
                return _status(self._chain.slot, None) if self._faults.lies(path) == "landed" else None
            return _status(landed.slot, _FAILED if self._faults.lies(path) == "failed" else landed.err)

        return self._with_context([status(signature) for signature in signatures])

    def _get_signatures_for_address(self, path: str, address: str, config: Any = None) -> list[dict[str, Any]]:
        config = config or {}
        limit = config.get("limit", _MOST_HISTORY)
        if not 1 <= limit <= _MOST_HISTORY:
            raise MethodError(-32602, f"Invalid limit; max {_MOST_HISTORY}")
        if self._faults.status_hidden(path):
            return []
        before, until = config.get("before"), config.get("until")
        rows: list[dict[str, Any]] = []
        passed_before = before is None
        for index in reversed(self._chain.by_address.get(str(Pubkey.from_string(address)), [])):
            landed = self._chain.landed[index]
            if landed.signature == until or len(rows) == limit:
                break
            if passed_before:
                rows.append(
                    {
                        "signature": landed.signature,
                        "slot": landed.slot,
                        "err": landed.err,
                        "memo": None if landed.memo is None else f"[{len(landed.memo.encode())}] {landed.memo}",
                        "blockTime": landed.at,
                        "confirmationStatus": "finalized",
                    }
                )
            elif landed.signature == before:
                passed_before = True
        return rows

    def _get_transaction(self, path: str, signature: str, config: Any = None) -> dict[str, Any] | None:
        _need_base64(config)
        landed = self._visible(signature, path)
        if landed is None:
            return None
        record = self._chain.record_of(landed)
        return {
            "slot": landed.slot,
            "blockTime": landed.at,
            "version": 0,
            "transaction": [record["raw"], "base64"],
            "meta": self._told(record["meta"], path),
        }

    def _told(self, meta: dict[str, Any], path: str) -> dict[str, Any]:
        """What a transaction did, or what this node says it did."""
        match self._faults.lies(path):
            case "failed":
                return meta | {
                    "err": _FAILED,
                    "status": {"Err": _FAILED},
                    "postTokenBalances": meta["preTokenBalances"],
                }
            case "empty":
                return meta | {"postTokenBalances": meta["preTokenBalances"]}
        return meta

    def _visible(self, signature: str, path: str) -> Landed | None:
        return None if self._faults.status_hidden(path) else self._chain.by_signature.get(signature)

    def _with_context(self, value: Any) -> dict[str, Any]:
        return {"context": {"slot": self._chain.slot, "apiVersion": "3.0.0"}, "value": value}


def _need_base64(config: Any) -> None:
    if not isinstance(config, dict) or config.get("encoding") != "base64":
        raise MethodError(-32602, 'This chain speaks base64 only: give {"encoding": "base64"}')


def _decoded(encoded: str, *, verify: bool = True) -> VersionedTransaction:
    try:
        raw = base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise MethodError(-32602, "invalid base64 encoding") from error
    if len(raw) > PACKET_BYTES:
        raise MethodError(-32602, f"base64 encoded transaction too large: {len(raw)} bytes (max: {PACKET_BYTES})")
    try:
        transaction = VersionedTransaction.from_bytes(raw)
        transaction.sanitize()
    except ValueError as error:
        raise MethodError(-32602, "failed to deserialize the transaction") from error
    if bytes(transaction) != raw:
        raise MethodError(-32602, "failed to deserialize the transaction: bytes after its end")
    if verify and not all(transaction.verify_with_results()):
        raise MethodError(-32003, "Transaction signature verification failure")
    return transaction


def _status(slot: int, err: Any) -> dict[str, Any]:
    return {
        "slot": slot,
        "confirmations": None,
        "err": err,
        "status": {"Ok": None} if err is None else {"Err": err},
        "confirmationStatus": "finalized",
    }


def _in_words(err: Any) -> str:
    """A transaction error as nodes word it in preflight failures."""
    match err:
        case str():
            return _WORDS.get(err, err)
        case {"InstructionError": [int(index), {"Custom": int(code)}]}:
            return f"Error processing Instruction {index}: custom program error: {code:#x}"
        case {"InstructionError": [int(index), reason]}:
            return f"Error processing Instruction {index}: {reason}"
        case _:
            return str(err)


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
