"""Money from nothing, on the development chain only: on a real one nobody here holds the mint's key, and nothing happens.

Also what a renter's own wallet app would do: send USDC to an address.
"""

import secrets

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from spl.token.constants import TOKEN_PROGRAM_ID
from spl.token.instructions import (
    create_idempotent_associated_token_account,
    freeze_account,
    mint_to,
    thaw_account,
)
from spl.token.models import FreezeAccountParams, MintToParams, ThawAccountParams

from gpunex.chain.addresses import ata
from gpunex.chain.rpc import TOKEN_ACCOUNT_BYTES, TOKEN_PROGRAMS, Rpc
from gpunex.chain.transfers import memo_instruction, sign, sign_transfer


def give(rpc: Rpc, faucet_key: Keypair, mint: str, destination: str, micro: int) -> str:
    """Mint USDC to a wallet, or to a token account, and return the signature. The wallet's token account is opened if need be.

    Raises RpcError if the key is not the mint's, RpcUnavailable.
    """
    faucet = faucet_key.pubkey()
    owner = wallet_of(rpc, destination)
    return _send(
        rpc,
        faucet_key,
        create_idempotent_associated_token_account(faucet, Pubkey.from_string(owner), Pubkey.from_string(mint)),
        mint_to(
            MintToParams(
                program_id=TOKEN_PROGRAM_ID,
                mint=Pubkey.from_string(mint),
                dest=Pubkey.from_string(ata(owner, mint)),
                mint_authority=faucet,
                amount=micro,
            )
        ),
    )


def give_sol(rpc: Rpc, address: str, lamports: int) -> str:
    """SOL for network fees; returns the signature."""
    signature: str = rpc.call("requestAirdrop", address, lamports)
    return signature


def send_usdc(rpc: Rpc, key: Keypair, mint: str, destination: str, micro: int, *, memo: str | None = None) -> str:
    """Send USDC from the wallet of ``key``, which pays the fee in its own SOL, to a wallet or token account; returns the signature."""
    blockhash, last = rpc.get_latest_blockhash()
    signed = sign_transfer(
        key=key,
        mint=mint,
        destination_owner=wallet_of(rpc, destination),
        amount_micro=micro,
        memo=memo or secrets.token_hex(8),
        blockhash=blockhash,
        last_valid_block_height=last,
        cu_price_micro_lamports=0,
    )
    return rpc.send_raw(signed.raw, preflight=True)


def set_frozen(rpc: Rpc, faucet_key: Keypair, mint: str, owner: str, *, frozen: bool) -> str:
    """Freeze or thaw a wallet's USDC, as the real issuer can; returns the signature."""
    account, mint_key, authority = Pubkey.from_string(ata(owner, mint)), Pubkey.from_string(mint), faucet_key.pubkey()
    if frozen:
        instruction = freeze_account(
            FreezeAccountParams(program_id=TOKEN_PROGRAM_ID, account=account, mint=mint_key, authority=authority)
        )
    else:
        instruction = thaw_account(
            ThawAccountParams(program_id=TOKEN_PROGRAM_ID, account=account, mint=mint_key, authority=authority)
        )
    return _send(rpc, faucet_key, instruction)


def wallet_of(rpc: Rpc, destination: str) -> str:
    """What wallet apps do with a pasted address: a token account stands for its owner, anything else for itself."""
    account = rpc.get_account(destination)
    if account and account.owner in TOKEN_PROGRAMS and len(account.data) >= TOKEN_ACCOUNT_BYTES:
        return str(Pubkey.from_bytes(account.data[32:64]))
    return destination


def _send(rpc: Rpc, payer: Keypair, *instructions: Instruction) -> str:
    blockhash, last = rpc.get_latest_blockhash()
    # The memo keeps two equal gifts on one blockhash from being one transaction.
    memo = memo_instruction(secrets.token_hex(8), payer.pubkey())
    signed = sign(payer=payer, instructions=[*instructions, memo], blockhash=blockhash, last_valid_block_height=last)
    return rpc.send_raw(signed.raw, preflight=True)
