from collections.abc import Callable

import pytest
from pytest_django.fixtures import Settings

from tests.platform import Platform


@pytest.fixture
def at_home(platform: Platform, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Platform:
    """The platform, whose chain and database are those that this process means, too: it sends USDC as an exchange would."""
    _mean(platform, settings, monkeypatch)
    return platform


@pytest.fixture
def power_cut(at_home: Platform, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Kills everything and starts it again; says where the pages are."""

    def happen() -> str:
        at_home.kill()
        at_home.start()
        _mean(at_home, settings, monkeypatch)  # a service takes its usual port back if that was taken before
        return f"the pages answer again at {at_home.url}"

    return happen


def _mean(platform: Platform, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = platform.environment()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings.SOLANA_RPC_URLS = environment["SOLANA_RPC_URL"].split(",")
    settings.USDC_MINT = environment["USDC_MINT"]
    settings.FAUCET_KEY_FILE = platform.cluster.chain_dir / "faucet.json"
