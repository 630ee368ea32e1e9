"""Money from nothing, on the development chain only: on a real one nobody here holds the mint's key, and nothing happens.

Also what a renter's own wallet app would do: send USDC to an address.
"""

import secrets
from collections.abc import Sequence

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, create_account
from spl.token.constants import MINT_LEN, TOKEN_PROGRAM_ID
from spl.token.instructions import (
    close_account,
    create_idempotent_associated_token_account,
    freeze_account,
    initialize_mint2,
    mint_to,
    thaw_account,
    transfer_checked,
)
from spl.token.models import (
    CloseAccountParams,
    FreezeAccountParams,
    InitializeMint2Params,
    MintToParams,
    ThawAccountParams,
    TransferCheckedParams,
)

from gpunex.chain.addresses import ata
from gpunex.chain.rpc import TOKEN_ACCOUNT_BYTES, TOKEN_PROGRAM, TOKEN_PROGRAMS, Rpc
from gpunex.chain.transfers import DECIMALS, memo_instruction, sign, sign_transfer


def give(
    rpc: Rpc, faucet_key: Keypair, mint: str, destination: str, micro: int, *, program: str = TOKEN_PROGRAM
) -> str:
    """Mint USDC to a wallet, or to a token account, and return the signature. The wallet's token account is opened if need be.

    The same for another token of ``open_mint``. Raises RpcError if the key is not the mint's, RpcUnavailable.
    """
    faucet, program_key = faucet_key.pubkey(), Pubkey.from_string(program)
    owner = wallet_of(rpc, destination)
    return _send(
        rpc,
        faucet_key,
        create_idempotent_associated_token_account(
            faucet, Pubkey.from_string(owner), Pubkey.from_string(mint), program_key
        ),
        mint_to(
            MintToParams(
                program_id=program_key,
                mint=Pubkey.from_string(mint),
                dest=Pubkey.from_string(ata(owner, mint, program)),
                mint_authority=faucet,
                amount=micro,
            )
        ),
    )


def open_mint(rpc: Rpc, faucet_key: Keypair, *, decimals: int = 6, program: str = TOKEN_PROGRAM) -> str:
    """A new token, of the plain Token program or of Token-2022, that the faucet can mint; returns its address."""
    mint, faucet, program_key = Keypair(), faucet_key.pubkey(), Pubkey.from_string(program)
    _send(
        rpc,
        faucet_key,
        create_account(
            CreateAccountParams(
                from_pubkey=faucet,
                to_pubkey=mint.pubkey(),
                lamports=rpc.rent_exempt_minimum(MINT_LEN),
                space=MINT_LEN,
                owner=program_key,
            )
        ),
        initialize_mint2(
            InitializeMint2Params(program_id=program_key, mint=mint.pubkey(), decimals=decimals, mint_authority=faucet)
        ),
        others=[mint],
    )
    return str(mint.pubkey())


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


def close_account_of(rpc: Rpc, wallet_key: Keypair, mint: str, to: str) -> str:
    """What a wallet's owner can do: send all of its USDC on, close its token account and take the rent. Returns the signature."""
    owner, own = wallet_key.pubkey(), ata(str(wallet_key.pubkey()), mint)
    return _send(
        rpc,
        wallet_key,
        create_idempotent_associated_token_account(owner, Pubkey.from_string(to), Pubkey.from_string(mint)),
        transfer_checked(
            TransferCheckedParams(
                program_id=TOKEN_PROGRAM_ID,
                source=Pubkey.from_string(own),
                mint=Pubkey.from_string(mint),
                dest=Pubkey.from_string(ata(to, mint)),
                owner=owner,
                amount=rpc.get_token_balance(own) or 0,
                decimals=DECIMALS,
            )
        ),
        close_account(
            CloseAccountParams(program_id=TOKEN_PROGRAM_ID, account=Pubkey.from_string(own), dest=owner, owner=owner)
        ),
    )


def wallet_of(rpc: Rpc, destination: str) -> str:
    """What wallet apps do with a pasted address: a token account stands for its owner, anything else for itself."""
    account = rpc.get_account(destination)
    if account and account.owner in TOKEN_PROGRAMS and len(account.data) >= TOKEN_ACCOUNT_BYTES:
        return str(Pubkey.from_bytes(account.data[32:64]))
    return destination


def _send(rpc: Rpc, payer: Keypair, *instructions: Instruction, others: Sequence[Keypair] = ()) -> str:
    blockhash, last = rpc.get_latest_blockhash()
    # The memo keeps two equal gifts on one blockhash from being one transaction.
    memo = memo_instruction(secrets.token_hex(8), payer.pubkey())
    signed = sign(
        payer=payer,
        others=others,
        instructions=[*instructions, memo],
        blockhash=blockhash,
        last_valid_block_height=last,
    )
    return rpc.send_raw(signed.raw, preflight=True)
