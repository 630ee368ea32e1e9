import pytest
from pytest_django.fixtures import Settings

from tests.platform import Platform


@pytest.fixture
def at_home(platform: Platform, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Platform:
    """The platform, whose chain and database are those that this process means, too: it sends USDC as an exchange would."""
    environment = platform.environment()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings.SOLANA_RPC_URLS = environment["SOLANA_RPC_URL"].split(",")
    settings.USDC_MINT = environment["USDC_MINT"]
    settings.FAUCET_KEY_FILE = platform.cluster.chain_dir / "faucet.json"
    return platform
