"""A renter's way in a browser, in English: from signing up to the bill."""

import re
import secrets

import pytest
from playwright.sync_api import expect

from gpunex.demo.check import Story
from tests.ui.conftest import MakeVisitor

MODEL = "rtx-4090-24gb"
COMMAND = "echo step one; sleep 5; echo step two; sleep 600"


@pytest.mark.spec("F1", "F2", "F3", "G1", "J1")
def test_signing_up_funding_renting_watching_stopping_and_the_bill(visitor: MakeVisitor, market: Story) -> None:
    renter = visitor("en")
    page = renter.open("/")
    renter.look()
    page.locator("header a.btn[href*=signup]").click()
    page.wait_for_url("**/account/signup/*")
    renter.look()
    renter.sign_up(f"noor-{secrets.token_hex(4)}@ui.gpunex.example", "Noor Rahman", secrets.token_urlsafe(12))

    renter.open("/balance")
    renter.look()
    page.fill("form[action='/balance/test-usdc'] [name=amount]", "25")
    page.locator("form[action='/balance/test-usdc'] button[type=submit]").click()
    expect(page.locator("#live")).to_contain_text("25.00")
    renter.look()

    renter.open("/offers")
    renter.look()
    page.locator("[name=model]").select_option(MODEL)
    expect(page).to_have_url(re.compile(rf"model={MODEL}"))
    page.locator("[name=gpus]").fill("2")
    page.locator("[name=gpus]").press("Enter")
    expect(page).to_have_url(re.compile(r"gpus=2"))
    renter.look()
    page.locator("#results a.rowlink", has_text=f"check-{market.mark}").click()
    page.wait_for_url(re.compile(r"/offers/[0-9a-f-]{36}"))
    renter.look()

    page.fill("[name=image]", "not an image!")
    page.fill("[name=command]", COMMAND)
    page.locator("#quote button[type=submit]").click()
    expect(page.locator("[name=image][aria-invalid=true]")).to_be_focused()
    assert page.locator("[name=command]").input_value() == COMMAND, "what was typed is kept"
    page.fill("[name=image]", "pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime")
    page.locator("#quote button[type=submit]").click()
    page.wait_for_url(re.compile(r"/rentals/[0-9a-f-]{36}"))

    page.evaluate("window.sameAsBefore = true")
    expect(page.locator("#log")).to_contain_text("step one")
    expect(page.locator("#rental-head")).to_contain_text("Running")
    expect(page.locator("#log")).to_contain_text("step two")
    expect(page.locator("#live")).to_contain_text(re.compile(r"[1-9]\d* billed seconds"))
    assert page.evaluate("window.sameAsBefore"), "all of it came without loading the page again"
    renter.look()

    page.locator("#rental-actions button[popovertarget=stop]").click()
    expect(page.locator("#stop")).to_be_visible()
    page.locator("#stop button[type=submit]").click()
    expect(page.locator("#rental-head")).to_contain_text("Ended")
    expect(page.locator("#live")).to_contain_text("Bill")
    renter.look()
    charged = re.search(r"Charged\s+(\d+\.\d+)", page.locator("#live").inner_text())
    assert charged is not None
    assert 0 < float(charged[1]) < 1

    renter.open("/rentals")
    renter.look()
    expect(page.locator("main table tbody tr")).to_have_count(1)
    renter.open("/balance")
    expect(page.locator("#live")).to_contain_text("24.9")
    renter.look()


@pytest.mark.spec("F2")
def test_a_payment_link_is_paid_by_a_wallet_and_says_so_by_itself(visitor: MakeVisitor) -> None:
    renter = visitor("en")
    renter.sign_up(f"sami-{secrets.token_hex(4)}@ui.gpunex.example", "Sami Haddad", secrets.token_urlsafe(12))
    page = renter.open("/balance")
    form = page.locator("form[action='/balance/requests']")
    form.locator("[name=amount]").fill("1e3")
    form.locator("button[type=submit]").click()
    expect(page.locator("[name=amount][aria-invalid=true]")).to_have_value("1e3")
    renter.look()
    page.locator("[name=amount]").fill("2.05")
    page.locator("form[action='/balance/requests'] button[type=submit]").click()
    page.wait_for_url(re.compile(r"/balance/requests/[0-9a-f-]{36}"))
    assert re.match(
        r"solana:\w{32,44}\?amount=2\.05&spl-token=", page.locator("main a.btn").get_attribute("href") or ""
    )
    renter.look()
    page.locator("form[action$='/pay'] button").click()
    expect(page.locator("main a[href^='solana:']")).to_have_count(0)
    expect(page.locator("#live")).to_contain_text("paid")
    expect(page.locator("main table tbody tr")).to_have_count(1)
    renter.look()
    renter.open("/balance")
    expect(page.locator("#live")).to_contain_text("2.05")
