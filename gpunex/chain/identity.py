"""Is this the chain we think it is? Asked when a process starts: a wrong node or mint must stop it, an absent one must not."""

import struct

import structlog
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from gpunex.chain.rpc import TOKEN_PROGRAMS, Rpc, RpcError, RpcUnavailable
from gpunex.chain.transfers import load_key

log = structlog.get_logger(__name__)
USDC_DECIMALS = 6
_MINT_DECIMALS_AT = 44  # SPL token Mint: COption<Pubkey> 36, supply 8, decimals 1


def verify_at_start() -> None:
    """Check treasury key, genesis hash and mint of the settings. Raises ImproperlyConfigured; a node that is away is only logged.

    A payout is never signed while no node answers, so that an unreachable chain harms nothing but time.
    """
    load_key(settings.TREASURY_KEY_FILE)
    with Rpc(settings.SOLANA_RPC_URLS, timeout_s=5) as rpc:
        for node in rpc.nodes:
            try:
                found = rpc.genesis_hash(node=node)
            except (RpcUnavailable, RpcError) as error:
                log.warning("chain_node_away_at_start", node=node, error=str(error))
                continue
            if settings.SOLANA_GENESIS_HASH and found != settings.SOLANA_GENESIS_HASH:
                raise ImproperlyConfigured(
                    f"SOLANA_RPC_URL number {node + 1} is a node of another chain: its genesis hash is {found}, "
                    f"SOLANA_GENESIS_HASH is {settings.SOLANA_GENESIS_HASH}."
                )
        try:
            mint = rpc.get_account(settings.USDC_MINT)
        except (RpcUnavailable, RpcError) as error:
            log.warning("chain_mint_not_checked_at_start", error=str(error))
            return
    if mint is None or mint.owner not in TOKEN_PROGRAMS or len(mint.data) < _MINT_DECIMALS_AT + 1:
        raise ImproperlyConfigured(f"USDC_MINT {settings.USDC_MINT} is not a token mint on this chain.")
    (decimals,) = struct.unpack_from("<B", mint.data, _MINT_DECIMALS_AT)
    if decimals != USDC_DECIMALS:
        raise ImproperlyConfigured(f"USDC_MINT has {decimals} decimals; USDC has {USDC_DECIMALS}.")
