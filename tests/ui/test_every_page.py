"""Every main page in both languages: fitting, named, in both themes, and usable from the keyboard."""

import pytest
from playwright.sync_api import expect

from gpunex.demo.check import Story
from tests.ui.checks import background_of, problems_of
from tests.ui.conftest import MakeVisitor

OPEN = (
    "/",
    "/offers",
    "/prices",
    "/guide",
    "/roles",
    "/account/login/",
    "/account/signup/",
    "/account/password/reset/",
    "/dev/mail",
    "/dev/components",
)
OWN = (
    *(
        "/",
        "/offers",
        "/rentals",
        "/balance",
        "/balance/requests",
        "/statements",
        "/statements?of=payouts",
        "/prices",
        "/roles",
        "/roles/apply",
        "/me/settings",
        "/me/notices",
    ),
    *("/account/email/", "/account/password/change/", "/account/2fa/"),
    *(
        "/provider/",
        "/provider/machines",
        "/provider/benchmarks",
        "/provider/pricing",
        "/provider/availability",
        "/provider/performance",
    ),
    *("/provider/earnings", "/provider/payouts", "/provider/settings", "/provider/keys", "/provider/install"),
    "/dev/components?front=provider",
)


@pytest.mark.spec("J1")
@pytest.mark.parametrize("language", ["en", "ar"])
def test_open_pages_fit_and_are_named(visitor: MakeVisitor, market: Story, language: str) -> None:
    reader = visitor(language)
    found = []
    for path in (*OPEN, market.offer_path):
        reader.open(path)
        found += problems_of(reader.page, language)
    assert not found, "\n".join(found)


@pytest.mark.spec("J1")
@pytest.mark.parametrize("language", ["ar", "en"])
def test_pages_of_an_account_fit_and_are_named(visitor: MakeVisitor, market: Story, language: str) -> None:
    provider = visitor("en")
    provider.sign_in(market.provider_email, market.password)
    provider.speak(language)
    found = []
    for path in (*OWN, market.machine_path):
        provider.open(path)
        found += problems_of(provider.page, language)
    assert not found, "\n".join(found)


def test_the_keyboard_finds_its_way(visitor: MakeVisitor) -> None:
    reader = visitor("en")
    page = reader.open("/offers")
    page.keyboard.press("Tab")
    skip = page.locator("a.skip")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport(ratio=1)
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("Tab")
    ring = page.evaluate(
        "(() => { const s = getComputedStyle(document.activeElement); return [s.outlineStyle, parseFloat(s.outlineWidth), s.boxShadow] })()"
    )
    assert (ring[0] != "none" and ring[1] >= 2) or ring[2] != "none", "what has the focus shows it"
    assert page.evaluate("document.querySelector('#main').contains(document.activeElement)"), "the skip link skips"


def test_light_and_dark_are_chosen_at_once_and_stay(visitor: MakeVisitor) -> None:
    reader = visitor("en")
    page = reader.open("/offers")
    before = background_of(page)
    page.locator("header [data-theme-toggle]").first.click()
    after = background_of(page)
    assert after != before
    reader.open("/prices")
    assert background_of(page) == after
