"""Passkeys in a browser with an authenticator of its own: added, signed in with, confirmed with, and told when the device says no."""

import secrets

import pytest
from playwright.sync_api import CDPSession, expect

from tests.ui.checks import WIDTHS
from tests.ui.conftest import MakeVisitor, Visitor

DEVICE = {
    "protocol": "ctap2",
    "transport": "internal",
    "hasResidentKey": True,
    "hasUserVerification": True,
    "isUserVerified": True,
    "automaticPresenceSimulation": True,
}


class Device:
    """The part of a phone or computer that keeps passkeys, and its owner's finger."""

    def __init__(self, visitor: Visitor) -> None:
        self.session: CDPSession = visitor.context.new_cdp_session(visitor.page)
        self.session.send("WebAuthn.enable")
        self.id = self.session.send("WebAuthn.addVirtualAuthenticator", {"options": DEVICE})["authenticatorId"]

    def credentials(self) -> list[dict]:
        return self.session.send("WebAuthn.getCredentials", {"authenticatorId": self.id})["credentials"]

    def finger(self, *, fits: bool) -> None:
        self.session.send("WebAuthn.setUserVerified", {"authenticatorId": self.id, "isUserVerified": fits})


def signed_up(visitor: Visitor) -> tuple[str, str]:
    email, password = f"key-{secrets.token_hex(4)}@ui.gpunex.example", secrets.token_urlsafe(12)
    visitor.sign_up(email, "Noor Rahman", password)
    return email, password


def add(visitor: Visitor, password: str, name: str) -> None:
    page = visitor.open("/account/2fa/webauthn/add/")
    if visitor.path == "/account/reauthenticate/":
        page.fill("[name=password]", password)
        visitor.press()
        page.wait_for_url("**/webauthn/add/")
    visitor.look()
    page.fill("[name=name]", name)
    visitor.press()
    page.wait_for_url("**/account/2fa/recovery-codes/")


def sign_out(visitor: Visitor) -> None:
    visitor.open("/account/logout/")
    visitor.press()
    visitor.page.wait_for_url(lambda url: "/logout/" not in url)


@pytest.mark.spec("H2", "J1")
@pytest.mark.parametrize(("language", "width"), [("en", WIDTHS[1]), ("ar", WIDTHS[0])])
def test_a_passkey_is_added_signs_in_and_confirms(visitor: MakeVisitor, language: str, width: int) -> None:
    noor = visitor(language, width=width)
    page, device = noor.page, Device(noor)
    _email, password = signed_up(noor)
    add(noor, password, "Phone")
    noor.look()
    assert [one["isResidentCredential"] for one in device.credentials()] == [True]
    page = noor.open("/account/2fa/webauthn/")
    expect(page.locator("main table")).to_contain_text("Phone")
    noor.look()
    noor.open("/account/2fa/")
    noor.look()

    sign_out(noor)
    page = noor.open("/account/login/")
    noor.look()
    page.locator("form[data-passkey] button").click()
    page.wait_for_url(lambda url: "/account/login" not in url)
    noor.open("/me/settings")

    # Signed in with it, and yet: where money goes asks once more.
    page = noor.open("/balance/wallet")
    assert noor.path == "/account/reauthenticate/"
    page.locator("a[href*='/webauthn/reauthenticate/']").click()
    page.wait_for_url("**/webauthn/reauthenticate/*")
    noor.look()
    noor.press()
    page.wait_for_url("**/balance/wallet")


def test_after_the_password_a_passkey_is_the_second_factor(visitor: MakeVisitor) -> None:
    noor = visitor("en", width=WIDTHS[0])
    device = Device(noor)
    email, password = signed_up(noor)
    add(noor, password, "Phone")
    sign_out(noor)
    page = noor.open("/account/login/")
    page.fill("[name=login]", email)
    page.fill("[name=password]", password)
    noor.press()
    page.wait_for_url("**/account/2fa/authenticate/")
    noor.look()
    page.locator("form[data-passkey] button").click()
    page.wait_for_url(lambda url: "/2fa/" not in url)
    assert len(device.credentials()) == 1


def test_a_device_that_says_no_is_told_and_nothing_is_added(visitor: MakeVisitor) -> None:
    noor = visitor("en")
    device = Device(noor)
    _email, password = signed_up(noor)
    device.finger(fits=False)
    page = noor.open("/account/2fa/webauthn/add/")
    page.fill("[name=password]", password)
    noor.press()
    page.wait_for_url("**/webauthn/add/")
    noor.press()
    expect(page.locator("[data-passkey] [role=status]")).to_contain_text("did not answer")
    noor.look()
    assert device.credentials() == []
    device.finger(fits=True)
    noor.press()
    page.wait_for_url("**/account/2fa/recovery-codes/")


def test_a_passkey_is_renamed_and_removed(visitor: MakeVisitor) -> None:
    noor = visitor("en")
    Device(noor)
    _email, password = signed_up(noor)
    add(noor, password, "Phone")
    page = noor.open("/account/2fa/webauthn/")
    page.locator("main table a").first.click()
    noor.look()
    page.fill("[name=name]", "Laptop")
    noor.press()
    expect(page.locator("main table")).to_contain_text("Laptop")
    page.locator("main table a").last.click()
    noor.look()
    page.locator("main form button[type=submit]").click()
    expect(page.locator("main")).to_contain_text("No passkey yet")
    noor.look()
