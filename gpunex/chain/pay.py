"""Solana Pay transfer requests: the link that a wallet app reads, and what such an app then does.

    solana:<wallet>?amount=<units>&spl-token=<mint>&reference=<key>&label=<who asks>&message=<what for>

The recipient is a wallet, never a token account: the app finds the token account itself. The amount is in whole tokens with a point,
never with an exponent. The reference is any 32 bytes; the app adds it to the transfer as a key that neither signs nor is written, and
the network indexes the transaction by it. Specification: https://docs.solanapay.com/spec.

>>> wallet, mint, key = "mvines9iiHiQTysrwkJjGf2gb9Ex9jXJX8ns3qwf2kN", "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v", "1" * 32
>>> link(TransferRequest(wallet, 2_050_000, mint, (key,), label="GPUnex", message="Deposit 7"))
'solana:mvines9iiHiQTysrwkJjGf2gb9Ex9jXJX8ns3qwf2kN?amount=2.05&spl-token=EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v&reference=11111111111111111111111111111111&label=GPUnex&message=Deposit%207'
>>> read(_).amount
2050000
"""

import re
import secrets
from dataclasses import dataclass
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from spl.token.instructions import create_idempotent_associated_token_account, transfer_checked
from spl.token.models import TransferCheckedParams

from gpunex.chain.addresses import ata, parse_address
from gpunex.chain.rpc import Rpc
from gpunex.chain.transfers import DECIMALS, memo_instruction, sign

_AMOUNT = re.compile(r"(\d+)(?:\.(\d+))?", re.ASCII)
_MINT_DECIMALS_AT = 44  # of spl-token's Mint


@dataclass(frozen=True, slots=True)
class TransferRequest:
    """``amount`` is in the token's smallest unit (micro-USDC); ``wallet``, ``mint`` and ``references`` are base58 keys."""

    wallet: str
    amount: int
    mint: str
    references: tuple[str, ...] = ()
    label: str = ""
    message: str = ""
    memo: str = ""


def link(request: TransferRequest, *, decimals: int = DECIMALS) -> str:
    """The link of a request: exact, without trailing zeros."""
    fields = [("amount", units(request.amount, decimals)), ("spl-token", request.mint)]
    fields += [("reference", reference) for reference in request.references]
    fields += [(name, value) for name in ("label", "message", "memo") if (value := getattr(request, name))]
    # Spaces as %20: wallets read a plus as a plus.
    return f"solana:{request.wallet}?{urlencode(fields, quote_via=quote)}"


def read(text: str, *, decimals: int = DECIMALS) -> TransferRequest:
    """The request in a link, read as strictly as the specification asks of wallets. Raises ValueError, NotAnAddress."""
    parts = urlsplit(text)
    if parts.scheme != "solana" or parts.netloc:
        raise ValueError("not a Solana Pay link")
    fields = parse_qs(parts.query, keep_blank_values=True, strict_parsing=True)
    if any(len(values) > 1 for name, values in fields.items() if name != "reference"):
        raise ValueError("a field is there twice")
    amount = _AMOUNT.fullmatch(fields["amount"][0])
    if amount is None or len(amount[2] or "") > decimals:
        raise ValueError("not an amount of this token")
    return TransferRequest(
        wallet=parse_address(parts.path),
        amount=int(amount[1] + (amount[2] or "").ljust(decimals, "0")),
        mint=parse_address(fields["spl-token"][0]),
        references=tuple(str(Pubkey.from_string(key)) for key in fields.get("reference", ())),
        **{name: fields.get(name, [""])[0] for name in ("label", "message", "memo")},
    )


def units(amount: int, decimals: int = DECIMALS) -> str:
    """Smallest units as a wallet app is told them: no exponent, no trailing zeros, and a zero before the point.

    >>> [units(micro) for micro in (1, 10_000, 1_005_000, 4_100_000, 25_000_000)]
    ['0.000001', '0.01', '1.005', '4.1', '25']
    """
    whole, rest = divmod(amount, 10**decimals)
    digits = f"{rest:0{decimals}d}".rstrip("0") if decimals else ""
    return f"{whole}.{digits}" if digits else str(whole)


def pay(rpc: Rpc, key: Keypair, request: TransferRequest) -> str:
    """What a wallet app does with a request: send the tokens from the wallet of ``key`` and return the signature.

    Opens the recipient's token account if need be. Raises RpcError, RpcUnavailable.
    """
    mint = rpc.get_account(request.mint)
    if mint is None or len(mint.data) <= _MINT_DECIMALS_AT:
        raise ValueError(f"{request.mint} is no token")
    program, payer = Pubkey.from_string(mint.owner), key.pubkey()
    transfer = transfer_checked(
        TransferCheckedParams(
            program_id=program,
            source=Pubkey.from_string(ata(str(payer), request.mint, mint.owner)),
            mint=Pubkey.from_string(request.mint),
            dest=Pubkey.from_string(ata(request.wallet, request.mint, mint.owner)),
            owner=payer,
            amount=request.amount,
            decimals=mint.data[_MINT_DECIMALS_AT],
        )
    )
    references = [AccountMeta(Pubkey.from_string(reference), False, False) for reference in request.references]
    instructions = [
        create_idempotent_associated_token_account(
            payer, Pubkey.from_string(request.wallet), Pubkey.from_string(request.mint), program
        ),
        # A memo of its own keeps two equal payments on one blockhash from being one transaction.
        memo_instruction(request.memo or secrets.token_hex(8), payer),
        Instruction(program, transfer.data, [*transfer.accounts, *references]),
    ]
    blockhash, last = rpc.get_latest_blockhash()
    signed = sign(payer=key, instructions=instructions, blockhash=blockhash, last_valid_block_height=last)
    return rpc.send_raw(signed.raw, preflight=True)
