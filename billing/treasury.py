"""The platform's purse on chain: the nodes that are asked, the keys that sign, and which accounts are ours."""

from functools import cache

from django.conf import settings
from django.db.models import Q
from solders.keypair import Keypair

from billing.models import DepositAddress
from gpunex.accounts.models import Organisation
from gpunex.chain.addresses import ata, derive_deposit_owner
from gpunex.chain.rpc import Rpc
from gpunex.chain.transfers import load_key

# Priority fee in micro-lamports per compute unit: never nothing, never a fortune (0.00008 SOL for a transfer).
CU_PRICE_LEAST = 1_000
CU_PRICE_MOST = 1_000_000


def rpc() -> Rpc:
    """The client of the configured nodes; one a process, it may be shared by threads."""
    return _client(tuple(settings.SOLANA_RPC_URLS))


@cache
def _client(urls: tuple[str, ...]) -> Rpc:
    return Rpc(list(urls))


def key() -> Keypair:
    """The treasury's key: it signs payouts and pays the network. Raises KeyFileRefused."""
    return _load(str(settings.TREASURY_KEY_FILE))


@cache
def _load(path: str) -> Keypair:
    return load_key(path)


def mint() -> str:
    return settings.USDC_MINT


def address() -> str:
    return str(key().pubkey())


def token_account() -> str:
    return ata(address(), mint())


def deposit_key(organisation: Organisation) -> Keypair:
    """The key of an organisation's deposit address, made again from the treasury's whenever it is needed; it is stored nowhere."""
    return derive_deposit_owner(bytes(key())[:32], organisation.public_id)


def is_ours(text: str) -> bool:
    """Whether an address is the platform's own, so that nobody can be paid to it."""
    if text in {mint(), address(), token_account()}:
        return True
    return DepositAddress.objects.filter(Q(owner=text) | Q(token_account=text)).exists()


def cu_price(accounts: list[str]) -> int:
    """What to offer the network for a transfer that writes to ``accounts``. Raises RpcUnavailable."""
    return min(CU_PRICE_MOST, max(CU_PRICE_LEAST, rpc().recent_priority_fee(accounts)))
