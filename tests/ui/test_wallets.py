"""Connecting a wallet in a browser: signed by the wallet in it, or by a signature that is pasted; on a phone, in both directions."""

import re
import secrets
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect
from solders.keypair import Keypair

from tests.ui.checks import WIDTHS
from tests.ui.conftest import MakeVisitor, Visitor

PHONE = WIDTHS[0]

# What a wallet's extension puts into a page, of before the Wallet Standard and of the standard; the key is in the test.
INJECTED = """
window.solana = {
  publicKey: null,
  connect: async () => { window.solana.publicKey = { toString: () => window.walletAddress }; },
  signMessage: async (message) => {
    const signature = await window.signInPython(Array.from(message));
    if (!signature) throw new Error("User rejected the request.");
    return { signature: Uint8Array.from(signature) };
  },
};
"""
STANDARD = """
{
  const account = () => ({ address: window.walletAddress, publicKey: new Uint8Array(32), chains: ["solana:mainnet"], features: ["solana:signMessage"] });
  const wallet = {
    version: "1.0.0",
    name: "Trial Wallet",
    icon: "data:image/svg+xml,<svg/>",
    chains: ["solana:mainnet"],
    get accounts() { return [account()]; },
    features: {
      "standard:connect": { version: "1.0.0", connect: async () => ({ accounts: [account()] }) },
      "solana:signMessage": {
        version: "1.1.0",
        signMessage: async ({ message }) => [{ signedMessage: message, signature: Uint8Array.from(await window.signInPython(Array.from(message))) }],
      },
    },
  };
  const announce = (api) => api.register(wallet);
  window.addEventListener("wallet-standard:app-ready", (event) => announce(event.detail));
  window.dispatchEvent(new CustomEvent("wallet-standard:register-wallet", { detail: announce }));
}
"""


def with_wallet(visitor: Visitor, script: str, key: Keypair, *, willing: Callable[[], bool] = lambda: True) -> None:
    def sign(message: list[int]) -> list[int] | None:
        return list(bytes(key.sign_message(bytes(message)))) if willing() else None

    visitor.context.expose_function("signInPython", sign)
    visitor.context.add_init_script(f"window.walletAddress = '{key.pubkey()}';{script}")


def arrive(visitor: Visitor) -> Page:
    """A new renter on the first of the two pages, confirmed by the password."""
    password = secrets.token_urlsafe(12)
    visitor.sign_up(f"wallet-{secrets.token_hex(4)}@ui.gpunex.example", "Noor Rahman", password)
    page = visitor.open("/balance/wallet")
    assert visitor.path == "/account/reauthenticate/"
    visitor.look()
    page.fill("[name=password]", password)
    visitor.press()
    page.wait_for_url("**/balance/wallet")
    return page


def name(visitor: Visitor, page: Page, key: Keypair) -> str:
    """The first step; answers with the text to sign."""
    page.fill("[name=address]", str(key.pubkey()))
    page.fill("[name=last_characters]", str(key.pubkey())[-6:])
    visitor.press()
    page.wait_for_url(re.compile(r"/balance/wallet/[0-9a-f-]{36}$"))
    return page.locator("#text").locator("xpath=ancestor::section").locator(".copy code").first.inner_text()


@pytest.mark.spec("H2", "J1")
@pytest.mark.parametrize("width", WIDTHS)
def test_a_signature_is_pasted(visitor: MakeVisitor, width: int) -> None:
    noor, key = visitor("en", width=width), Keypair()
    page = arrive(noor)
    noor.look()
    text = name(noor, page, key)
    noor.look()
    expect(page.locator("[data-wallet]")).to_be_hidden()
    page.fill("[name=signature]", str(Keypair().sign_message(text.encode())))
    noor.press()
    expect(page.locator("[name=signature][aria-invalid=true]")).to_be_focused()
    noor.look()
    page.fill("[name=signature]", str(key.sign_message(text.encode())))
    noor.press()
    page.wait_for_url("**/balance/return")
    expect(page.locator(".toasts")).to_contain_text(str(key.pubkey())[-6:])


@pytest.mark.spec("H2")
@pytest.mark.parametrize("script", [INJECTED, STANDARD], ids=["injected", "standard"])
def test_the_wallet_in_the_browser_signs(visitor: MakeVisitor, script: str) -> None:
    noor, key = visitor("en", width=PHONE), Keypair()
    answers = iter([False, True])
    with_wallet(noor, script, key, willing=lambda: next(answers))
    page = arrive(noor)
    name(noor, page, key)
    button = page.locator("[data-wallets] button")
    expect(button).to_have_count(1)
    noor.look()
    button.click()
    expect(page.locator("[data-wallet] [role=status]")).to_contain_text("did not sign")
    noor.look()
    button.click()
    page.wait_for_url("**/balance/return")
    expect(page.locator(".toasts")).to_contain_text(str(key.pubkey())[-6:])


def test_a_wallet_that_is_open_on_another_address_is_told_so(visitor: MakeVisitor) -> None:
    noor, named, other = visitor("en"), Keypair(), Keypair()
    with_wallet(noor, INJECTED, other)
    page = arrive(noor)
    name(noor, page, named)
    page.locator("[data-wallets] button").click()
    expect(page.locator("[data-wallet] [role=status]")).to_contain_text(str(other.pubkey())[-6:])
    assert "/balance/wallet/" in noor.path


@pytest.mark.spec("J1")
@pytest.mark.parametrize("width", WIDTHS)
def test_the_pages_of_wallets_run_from_right_to_left_in_arabic(visitor: MakeVisitor, width: int) -> None:
    noor, key = visitor("ar", width=width), Keypair()
    with_wallet(noor, INJECTED, key)
    page = arrive(noor)
    noor.look()
    name(noor, page, key)
    noor.look()
    expect(page.locator("html")).to_have_attribute("dir", "rtl")
    expect(page.locator(".copy code").first).to_have_css("direction", "ltr")
    page.locator("[data-wallets] button").click()
    page.wait_for_url("**/balance/return")


def test_without_scripts_the_signature_is_pasted(visitor: MakeVisitor) -> None:
    """What the pages show and send does not need JavaScript: here it is taken away before the second step."""
    noor, key = visitor("en"), Keypair()
    page = arrive(noor)
    page.route("**/*.js", lambda route: route.abort())
    noor.errors.clear()
    text = name(noor, page, key)
    page.fill("[name=signature]", str(key.sign_message(text.encode())))
    noor.press()
    page.wait_for_url("**/balance/return")
    noor.errors.clear()  # the scripts that were taken away
