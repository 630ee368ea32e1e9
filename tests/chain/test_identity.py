import pytest
from django.core.exceptions import ImproperlyConfigured

from gpunex.chain.identity import verify_at_start


def test_the_right_chain_starts(devchain):
    verify_at_start()


def test_a_node_of_another_chain_stops_the_start(devchain, settings):
    settings.SOLANA_GENESIS_HASH = "5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d"
    with pytest.raises(ImproperlyConfigured, match="another chain"):
        verify_at_start()


def test_a_mint_that_is_none_stops_the_start(devchain, settings):
    settings.USDC_MINT = "11111111111111111111111111111112"
    with pytest.raises(ImproperlyConfigured, match="not a token mint"):
        verify_at_start()


def test_a_chain_that_is_away_does_not_stop_the_pages(settings):
    settings.SOLANA_RPC_URLS = ["http://127.0.0.1:9"]
    verify_at_start()
