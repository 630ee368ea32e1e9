"""A provider's way in a browser, in Arabic and from right to left: from signing up to the earnings."""

import os
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from gpunex.demo.check import AGENT
from tests.platform import ROOT
from tests.ui.conftest import MakeVisitor, Visitor

ARABIC = re.compile(r"[\u0600-\u06ff]")
ENTRY = {
    "quantity": "2",
    "host_memory_gb": "128",
    "download_gbps": "1.5",
    "upload_gbps": "0.5",
    "city": "عمّان",
    "timezone": "Asia/Amman",
}


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []
    yield running
    for agent in running:
        agent.terminate()
        agent.wait(20)


@pytest.mark.spec("A1", "A2", "A3", "A5", "A6", "A7", "B5", "C1", "C3", "D1", "G2", "J1")
def test_applying_being_approved_connecting_pricing_and_the_earnings(
    visitor: MakeVisitor, admin: Visitor, agents: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    email = f"layla-{secrets.token_hex(4)}@ui.gpunex.example"
    layla = visitor("ar")
    layla.sign_up(email, "ليلى المنصوري", secrets.token_urlsafe(12))
    page = layla.open("/roles")
    assert ARABIC.search(page.locator("h1").inner_text())
    layla.look()

    page.locator("main a[href='/roles/apply']").first.click()
    page.wait_for_url("**/roles/apply")
    layla.look()
    _fill_the_form(page)
    layla.look()
    page.locator("button[name=review]").click()
    page.wait_for_url("**/review")
    layla.look()
    layla.press()
    page.wait_for_url(re.compile(r"/roles/applications/[0-9a-f-]{36}$"))
    layla.look()

    _approve(admin.page, admin.url, email)
    mail = layla.open_mail(email, "/provider/install")
    assert ARABIC.search(mail)
    assert re.search(r"gpxe_[A-Za-z0-9_-]{20,}", mail)

    page.locator("main form button[type=submit]", has=page.locator("xpath=self::*[not(@popovertarget)]")).first.click()
    expect(page.locator(".copy code", has_text="gpxe_").first).to_be_visible()
    layla.look()
    page.evaluate("window.sameAsBefore = true")
    command = page.locator("aside .copy code").inner_text()
    agents.append(_start(command, tmp_path))
    expect(page.locator("#machines li[data-state=ok]")).to_contain_text("متصل")
    assert page.evaluate("window.sameAsBefore"), "it shows without loading the page again"

    for _ in range(60):
        layla.open("/provider/benchmarks")
        if "TFLOPS" in page.locator("main").inner_text() and page.locator("main [data-state=busy]").count() == 0:
            break
        page.wait_for_timeout(500)
    layla.look()
    layla.open("/provider/pricing")
    layla.look()
    price = page.locator("[name='rtx-4090-24gb']")
    price.fill("abc")
    price.press("Enter")
    expect(page.locator("[name='rtx-4090-24gb'][aria-invalid=true]")).to_have_value("abc")
    layla.look()
    page.locator("[name='rtx-4090-24gb']").fill("0.44")
    page.locator("[name='rtx-4090-24gb']").press("Enter")
    expect(page.locator("[name='rtx-4090-24gb']:not([aria-invalid=true])")).to_have_value(re.compile(r"^0\.44"))

    for path in (
        "/provider/",
        "/provider/machines",
        "/provider/earnings",
        "/provider/payouts",
        "/provider/performance",
    ):
        layla.open(path)
        assert ARABIC.search(page.locator("h1").inner_text()), path
        layla.look()


def _fill_the_form(page: Page) -> None:
    """Two entries stay; a third is added and removed by htmx, and nothing that was typed is lost."""
    page.fill("[name=full_name]", "ليلى المنصوري")
    page.evaluate("window.sameAsBefore = true")
    _fill_entry(page, 0, "rtx-4090-24gb")
    page.locator("button[name=add]").click()
    expect(page.locator("fieldset.entry")).to_have_count(2)
    _fill_entry(page, 1, "rtx-a6000-48gb")
    page.locator("button[name=add]").click()
    expect(page.locator("fieldset.entry")).to_have_count(3)
    page.locator("button[name=remove]").nth(2).click()
    expect(page.locator("fieldset.entry")).to_have_count(2)
    assert page.evaluate("window.sameAsBefore"), "rows come and go without loading the page again"
    for number, model in enumerate(("rtx-4090-24gb", "rtx-a6000-48gb")):
        entry = page.locator("fieldset.entry").nth(number)
        assert entry.locator("[name$=-gpu_model]").input_value() == model
        for name, value in ENTRY.items():
            assert entry.locator(f"[name$='-{name}']").input_value() == value
    assert page.locator("[name=full_name]").input_value() == "ليلى المنصوري"


def _fill_entry(page: Page, number: int, model: str) -> None:
    entry = page.locator("fieldset.entry").nth(number)
    entry.locator("[name$=-gpu_model]").select_option(model)
    entry.locator("[name$=-country]").select_option("JO")
    for name, value in ENTRY.items():
        field = entry.locator(f"[name$='-{name}']")
        if field.is_visible():
            field.fill(value)
        else:  # the time zone is asked for with weekly hours only
            field.evaluate("(one, value) => { one.value = value }", value)


def _approve(page: Page, url: str, email: str) -> None:
    page.goto(f"{url}/admin/providers/application/?q={email}")
    page.locator("#result_list tbody th a").first.click()
    page.locator("[name=decision][value=approve]").check()
    page.locator("[name=tier]").select_option("community")
    page.locator("#decision button[type=submit]").click()
    page.wait_for_load_state()


def _start(command: str, folder: Path) -> subprocess.Popen[bytes]:
    """The page's own line, with this Python and a place for the host's state."""
    words = shlex.split(command)
    variables = dict(word.split("=", 1) for word in words[: words.index(".venv/bin/python")])
    arguments = words[words.index("-m") :]
    assert arguments[:2] == ["-m", "agent"]
    with (folder / "agent.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *arguments, "--state", str(folder / "state")],
            cwd=ROOT,
            env={**os.environ, **AGENT, "GPUNEX_SIM_SEED": secrets.token_hex(4), **variables},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
