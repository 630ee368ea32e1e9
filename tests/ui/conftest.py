import re
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from gpunex.demo.check import Story
from gpunex.demo.people import ADMIN, PASSWORD
from tests.platform import Platform, told
from tests.requirements import require
from tests.ui.checks import HEIGHT, WIDTHS, problems_of

# Chromium also calls an answer of 422 an error; a refused form is not one.
REFUSED_FORM = re.compile(r"status of 422")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--no-first-run",
]
PATIENCE_MS = 40_000

expect.set_options(timeout=PATIENCE_MS)


class Visitor:
    """A person at a browser. Whatever its console calls an error is kept, refusals by the Content-Security-Policy among them."""

    def __init__(self, context: BrowserContext, url: str, language: str) -> None:
        self.context, self.url, self.language = context, url, language
        self.errors: list[str] = []
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.errors.append(f"{self.page.url}: {error}"))

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not REFUSED_FORM.search(message.text):
            self.errors.append(f"{self.page.url}: {message.text} {message.location['url']}")

    def open(self, path: str) -> Page:
        answer = self.page.goto(self.url + path)
        assert answer is not None
        assert answer.ok, f"{path} answered {answer.status}"
        return self.page

    @property
    def path(self) -> str:
        return urlsplit(self.page.url).path

    def look(self) -> None:
        """The page is as every page has to be."""
        assert not (found := problems_of(self.page, self.language)), "\n".join(found)

    def press(self) -> None:
        """Submits the form in ``main`` by its primary button."""
        self.page.locator("main form button[data-kind=primary][type=submit]").first.click()

    # What every person does

    def sign_up(self, email: str, name: str, password: str) -> None:
        page = self.open("/account/signup/")
        page.fill("[name=full_name]", name)
        page.fill("[name=email]", email)
        page.fill("[name=password1]", password)
        self.press()
        page.wait_for_url("**/account/confirm-email/")
        self.open_mail(email, "confirm-email")
        page.locator("main form button[type=submit]").click()
        page.wait_for_url(lambda url: "/confirm-email/" not in url)

    def open_mail(self, email: str, link: str) -> str:
        """The newest mail to ``email`` with such a link, waited for; the link is followed. Answers the mail's text."""
        for _ in range(PATIENCE_MS // 500):
            page = self.open(f"/dev/mail?to={email}")
            mails = page.locator("main table a[href^='/dev/mail/']")
            for number in range(mails.count()):
                mails.nth(number).click()
                page.wait_for_url("**/dev/mail/*")
                text = page.locator(".mail-text").inner_text()
                if link in text:
                    page.locator(f".mail-text a[href*='{link}']").first.click()
                    page.wait_for_load_state()
                    return text
                page.go_back()
            page.wait_for_timeout(500)
        raise AssertionError(f"no mail to {email} with {link}")

    def sign_in(self, email: str, password: str) -> None:
        page = self.open("/account/login/")
        page.fill("[name=login]", email)
        page.fill("[name=password]", password)
        self.press()
        page.wait_for_url(lambda url: "/account/login" not in url)

    def speak(self, language: str) -> None:
        """Change the language with the button that every page has; nothing happens if the page speaks it already."""
        button = self.page.locator(f"header button[name=language][value={language}]")
        if button.count():
            button.click()
            self.page.wait_for_function(f"document.documentElement.lang === '{language}'")
        self.language = language


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    program = require("chromium", "browser tests")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


type MakeVisitor = Callable[..., Visitor]


@pytest.fixture
def visitor(chromium: Browser, platform: Platform) -> Iterator[MakeVisitor]:
    """Makes people at browsers of their own. At the end none of their consoles may hold an error."""
    made: list[Visitor] = []

    def make(language: str = "en", *, width: int = WIDTHS[-1]) -> Visitor:
        context = chromium.new_context(
            locale=language, viewport={"width": width, "height": HEIGHT}, color_scheme="light"
        )
        made.append(Visitor(context, platform.url, language))
        return made[-1]

    yield make
    errors = [error for one in made for error in one.errors]
    for one in made:
        one.context.close()
    assert not errors, "\n".join(errors)


@pytest.fixture
def admin(visitor: MakeVisitor) -> Visitor:
    one = visitor()
    one.sign_in(ADMIN.email, PASSWORD)
    return one


@pytest.fixture(scope="package")
def market(platform: Platform) -> Iterator[Story]:
    """A provider with two connected, measured and priced GPUs on the market."""
    said: list[str] = []
    with told(platform.story(said), said, until="A renter signs up") as story:
        yield story
