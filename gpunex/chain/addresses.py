"""Which Solana addresses are wallets, and which addresses are ours.

An address has no checksum: nearly every one-letter typo still decodes, half of them onto the curve, and a transfer to a token
account "as wallet" succeeds and strands the money. So an address is accepted only after ``check_wallet`` has also looked at what
stands there on chain, and the page shows its first and last characters back.
"""

import hashlib
import hmac
from collections.abc import Iterable
from uuid import UUID

from django.utils.translation import gettext_lazy as _
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from spl.token.instructions import get_associated_token_address

from gpunex.chain.rpc import TOKEN_ACCOUNT_BYTES, TOKEN_PROGRAM, TOKEN_PROGRAMS, Account, Rpc, RpcError, RpcUnavailable
from gpunex.kit.refusals import Refusal

SYSTEM_PROGRAM = "11111111111111111111111111111111"

# All of these decode, and most are on the curve: only a list can refuse them without asking the chain.
PROGRAMS = TOKEN_PROGRAMS | {
    SYSTEM_PROGRAM,
    "ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL",  # associated token accounts
    "MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr",
    "Memo1UhkJRfHyvLMcVucJwxXeuD728EqVDDwQDxFMNo",
    "ComputeBudget111111111111111111111111111111",
    "Stake11111111111111111111111111111111111111",
    "Vote111111111111111111111111111111111111111",
    "Config1111111111111111111111111111111111111",
    "BPFLoader1111111111111111111111111111111111",
    "BPFLoader2111111111111111111111111111111111",
    "BPFLoaderUpgradeab1e11111111111111111111111",
    "AddressLookupTab1e1111111111111111111111111",
    "Ed25519SigVerify111111111111111111111111111",
    "KeccakSecp256k11111111111111111111111111111",
    "SysvarRent111111111111111111111111111111111",
    "SysvarC1ock11111111111111111111111111111111",
    "1nc1nerator11111111111111111111111111111111",  # tokens sent here are destroyed
}
MINTS = frozenset(
    {
        "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v",  # USDC
        "4zMMC9srt5Ri5X14GAgXhaHii3GnPAEERYPJgZJDncDU",  # USDC on devnet
        "Es9vMFrzaCERmJfrF4H2FYD4KCoNkY11McCe8BenwNYB",  # USDT
        "So11111111111111111111111111111111111111112",  # wrapped SOL
    }
)

# Layout of spl-token accounts: mint 0..32, owner 32..64. Token-2022 extends both kinds and writes which one at byte 165.
_OWNER = slice(32, 64)
_MINT_BYTES = 82
_KIND_AT, _KIND_MINT, _KIND_ACCOUNT = 165, 1, 2


class NotAnAddress(Refusal):
    code = "not_an_address"
    message = _(
        "This is not a Solana address. One has 32 to 44 letters and digits, no spaces, and never 0, O, I or l: "
        "copy it from your wallet instead of typing it."
    )


class TokenAccountGiven(Refusal):
    code = "token_account_given"
    message = _(
        "This is a token account, not a wallet: USDC sent to it as a wallet could never be spent. "
        "It belongs to the wallet %(owner)s. If that is yours, enter it instead."
    )


class MintGiven(Refusal):
    code = "mint_given"
    message = _(
        "This is the address of a token itself, not of a wallet. Open your wallet, choose Receive and copy the address there."
    )


class ProgramGiven(Refusal):
    code = "program_given"
    message = _(
        "This address belongs to a program on Solana, not to a person's wallet. Open your wallet, choose Receive and copy the address there."
    )


class NotAWallet(Refusal):
    code = "not_a_wallet"
    message = _(
        "No key can sign for this address, so it is not a wallet: it may be a token account, or the vault of a multisig such as Squads. "
        "Enter the address of a wallet whose key you hold: open it, choose Receive and copy the address there."
    )


class OwnAddressGiven(Refusal):
    code = "own_address_given"
    message = _("This is an address of GPUnex itself. Enter the address of your own wallet.")


def parse_address(text: str) -> str:
    """``text`` if it is exactly one address: base58, 32 bytes, in its one canonical spelling. Raises NotAnAddress."""
    try:
        canonical = str(Pubkey.from_string(text))
    except ValueError as error:
        raise NotAnAddress from error
    if canonical != text:
        raise NotAnAddress
    return canonical


def check_wallet(*, rpc: Rpc, text: str, own: Iterable[str] = ()) -> str:
    """The wallet address in ``text``, proven fit to be paid to as far as can be without its owner's signature.

    ``own`` are our addresses that are not on the standard lists: the mint, the treasury and its token account, deposit addresses.
    Raises NotAnAddress, MintGiven, ProgramGiven, OwnAddressGiven, TokenAccountGiven, NotAWallet; RpcUnavailable where only the
    chain can tell and no node answers.
    """
    address = parse_address(text)
    if address in PROGRAMS:
        raise ProgramGiven
    if address in MINTS:
        raise MintGiven
    if address in set(own):
        raise OwnAddressGiven
    if not Pubkey.from_string(address).is_on_curve():
        # Refused in any case; the chain is asked only to say it better: a pasted token account is the common mistake.
        try:
            _refuse_what_stands_there(rpc.get_account(address))
        except (RpcUnavailable, RpcError):
            pass
        raise NotAWallet
    _refuse_what_stands_there(rpc.get_account(address))
    return address


def _refuse_what_stands_there(account: Account | None) -> None:
    """An address that was never used, or that the System program owns, is a wallet; everything else is refused by its kind."""
    if account is None or (account.owner == SYSTEM_PROGRAM and not account.executable):
        return
    if account.owner not in TOKEN_PROGRAMS or account.executable:
        raise ProgramGiven
    size = len(account.data)
    kind = account.data[_KIND_AT] if size > _KIND_AT else None
    if size == _MINT_BYTES or kind == _KIND_MINT:
        raise MintGiven
    if size == TOKEN_ACCOUNT_BYTES or kind == _KIND_ACCOUNT:
        owner = Pubkey.from_bytes(account.data[_OWNER])
        if owner.is_on_curve():
            raise TokenAccountGiven(owner=str(owner))
    raise ProgramGiven


def ata(owner: str, mint: str, program: str = TOKEN_PROGRAM) -> str:
    """The associated token account of ``owner`` for ``mint``, of the plain Token program (which USDC is) or of another one."""
    return str(
        get_associated_token_address(Pubkey.from_string(owner), Pubkey.from_string(mint), Pubkey.from_string(program))
    )


def derive_deposit_owner(seed: bytes, organisation_public_id: UUID) -> Keypair:
    """The key that owns an organisation's deposit account: HMAC-SHA256(seed, label || id) as Ed25519 seed.

    The address is thus valid for ever and can be made again from the seed alone. The label carries the version: another way of
    deriving gets another label, and old addresses stay derivable.
    """
    if len(seed) < 32:
        raise ValueError("the deposit seed has fewer than 32 bytes")
    label = b"gpunex/deposit-owner/v1/"
    return Keypair.from_seed(hmac.new(seed, label + organisation_public_id.bytes, hashlib.sha256).digest())
