"""A browser without a screen for the demonstration's own check: pages and their forms over HTTP, nothing behind them."""

import html
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Self
from urllib.parse import urljoin, urlsplit

import httpx


class Unexpected(Exception):
    """A page did not answer as the story needs; the message is fit for the terminal."""


@dataclass
class Form:
    """A form as the page has it: where it goes and what it would send untouched."""

    action: str
    method: str
    fields: dict[str, list[str]] = field(default_factory=dict)
    buttons: list[tuple[str, str]] = field(default_factory=list)
    options: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # of each select: (value, text)


class _Reader(HTMLParser):
    """Collects the forms of a page and the text a person would read."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.forms: list[Form] = []
        self.by_id: dict[str, Form] = {}
        self.words: list[str] = []
        self._form: Form | None = None
        self._select: tuple[Form, str] | None = None
        self._option: list[str] | None = None
        self._chosen: list[str] = []
        self._area: tuple[Form, str, list[str]] | None = None
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {name: value or "" for name, value in attrs}
        if tag in {"script", "style", "template"}:
            self._silent += 1
        if tag == "form":
            self._form = Form(known.get("action", ""), known.get("method", "get").lower())
            self.forms.append(self._form)
            if "id" in known:
                self.by_id[known["id"]] = self._form
            return
        form = self.by_id.get(known["form"]) if "form" in known else self._form
        name = known.get("name", "")
        if form is None:
            return
        if tag == "input" and name and "disabled" not in known:
            kind = known.get("type", "text")
            if kind in {"submit", "image"}:
                form.buttons.append((name, known.get("value", "")))
            elif kind not in {"checkbox", "radio"} or "checked" in known:
                form.fields.setdefault(name, []).append(known.get("value", "on" if kind == "checkbox" else ""))
        elif tag == "button" and known.get("type", "submit") == "submit":
            form.buttons.append((name, known.get("value", "")))
        elif tag == "textarea" and name:
            self._area = (form, name, [])
        elif tag == "select" and name:
            self._select, self._chosen = (form, name), []
            form.options[name] = []
        elif tag == "option" and self._select:
            self._option = [known.get("value", ""), ""]
            if "selected" in known:
                self._chosen.append(known.get("value", ""))

    def handle_endtag(self, tag: str) -> None:
        if tag in {"script", "style", "template"}:
            self._silent = max(0, self._silent - 1)
        elif tag == "form":
            self._form = None
        elif tag == "textarea" and self._area:
            form, name, text = self._area
            form.fields.setdefault(name, []).append("".join(text).removeprefix("\n"))
            self._area = None
        elif tag in {"option", "select"} and self._select:
            form, name = self._select
            if self._option is not None:
                form.options[name].append((self._option[0], " ".join(self._option[1].split())))
                self._option = None
            if tag == "select":
                first = [value for value, _ in form.options[name][:1]]
                form.fields.setdefault(name, []).extend(self._chosen or first)
                self._select = None

    def handle_data(self, data: str) -> None:
        if self._area:
            self._area[2].append(data)
        if self._option is not None:
            self._option[1] += data
        if not self._silent:
            self.words.append(data)


class Page:
    """An answered page."""

    def __init__(self, response: httpx.Response) -> None:
        self.url = str(response.url)
        self.path = urlsplit(self.url).path
        self.status = response.status_code
        self.body = response.text
        reader = _Reader()
        reader.feed(self.body)
        self.forms = reader.forms
        self.text = " ".join(" ".join(reader.words).split())

    def form(self, *, having: str = "", action: str = "") -> Form:
        """The first form with a field, select or button named ``having`` and an address that contains ``action``."""
        for form in self.forms:
            names = {*form.fields, *form.options, *(name for name, _ in form.buttons)}
            if action in (form.action or self.path) and (not having or having in names):
                return form
        raise Unexpected(f"{self.path} has no form with {having or action!r}. It says: {self.summary()}")

    def links(self, pattern: str) -> list[str]:
        """Addresses in the page that match the regular expression, in order, once each."""
        found = re.findall(r'(?:href|action|src)="([^"]+)"', self.body)
        return list(dict.fromkeys(html.unescape(link) for link in found if re.search(pattern, link)))

    def find(self, pattern: str) -> str:
        """The first group of the pattern in the page's text. Raises Unexpected with what the page says."""
        match = re.search(pattern, self.text)
        if match is None:
            raise Unexpected(f"{self.path} does not say {pattern!r}. It says: {self.summary()}")
        return match[1]

    def summary(self) -> str:
        errors = re.findall(r'class="error"[^>]*>(.*?)</', self.body, re.DOTALL)
        said = " · ".join(" ".join(re.sub(r"<[^>]+>", " ", error).split()) for error in errors)
        return (said or self.text)[:400]


class Browser:
    """One person's session. Redirects are followed; a page that fails raises Unexpected."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = httpx.Client(base_url=url, follow_redirects=True, timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def get(self, path: str, *, expect: int = 200) -> Page:
        return self._answer(self.client.get(path), expect)

    def submit(self, page: Page, form: Form, *, press: str = "", expect: int = 200, **values: str) -> Page:
        """Send ``form`` of ``page`` with ``values`` filled in (dots in names are written as __), pressing button ``press``."""
        data = {name: list(kept) for name, kept in form.fields.items()}
        for name, value in values.items():
            data[name] = [value]
        for name, value in form.buttons:
            if name and name == press.split("=", maxsplit=1)[0] and press.partition("=")[2] in {"", value}:
                data[name] = [value]
                break
        target = urljoin(page.url, form.action or page.url)
        if form.method == "get":
            return self._answer(self.client.get(target, params=data), expect)
        return self._answer(self.client.post(target, data=data, headers={"Referer": page.url}), expect)

    def _answer(self, response: httpx.Response, expect: int) -> Page:
        page = Page(response)
        if page.status != expect:
            raise Unexpected(f"{page.path} answered {page.status}, not {expect}: {page.summary()}")
        return page
