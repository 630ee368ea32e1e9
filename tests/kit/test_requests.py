"""What every request passes through: its line in the log, whose address it has, how long it may be."""

import asyncio
from typing import Any

import pytest
import structlog
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory

from gpunex.accounts.models import User
from gpunex.asgi import application
from gpunex.kit.requests import ClientAddressMiddleware

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("path", ["/account/confirm-email/{}/", "/account/password/reset/key/{}/"])
def test_a_secret_in_an_address_is_not_logged(client: Client, path: str):
    secret = "1x-d4f2c0ffee-0123456789abcdef"
    with structlog.testing.capture_logs() as lines:
        client.get(path.format(secret))
    assert any(line["event"] == "request" for line in lines)
    assert secret not in str(lines)


@pytest.mark.parametrize(
    ("forwarded", "address"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("198.51.100.1, 203.0.113.9", "203.0.113.9"),  # the first is what the client claims to be
        ("2001:db8::1", "2001:db8::1"),
        ("", "10.0.0.1"),
        ("nobody", "10.0.0.1"),
        ("203.0.113.9, unknown", "10.0.0.1"),
    ],
)
def test_behind_a_proxy_the_address_is_whom_the_proxy_saw(forwarded: str, address: str):
    seen: list[str] = []

    def view(request: HttpRequest) -> HttpResponse:
        seen.append(request.META["REMOTE_ADDR"])
        return HttpResponse()

    ClientAddressMiddleware(view)(
        RequestFactory().get("/", REMOTE_ADDR="10.0.0.1", headers={"X-Forwarded-For": forwarded})
    )
    assert seen == [address]


READ_BY_A_PERSON = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.mark.parametrize(
    ("path", "above"),
    [
        ("/offers/8f708089-28e7-45df-81a0-44db57787908/rent", "/offers/8f708089-28e7-45df-81a0-44db57787908"),
        ("/offers/8f708089-28e7-45df-81a0-44db57787908/check", "/offers/8f708089-28e7-45df-81a0-44db57787908"),
        ("/balance/test-usdc", "/balance"),
        ("/balance/wallet/cancel", "/balance/wallet"),
        ("/provider/payouts/bank/confirm", "/provider/payouts/bank"),
        ("/me/language", "/"),
    ],
)
def test_an_address_that_takes_only_forms_leads_a_person_to_its_page(client: Client, path: str, above: str):
    """Changing the language on a refused form, or signing in after one was sent, asks for its address."""
    client.force_login(User.objects.create_user("reader@example.com"), backend=settings.AUTHENTICATION_BACKENDS[-1])
    answer = client.get(path, headers=READ_BY_A_PERSON)
    assert (answer.status_code, answer.headers.get("Location")) == (302, above)
    assert client.get(path).status_code == 405
    assert client.get(path, headers=READ_BY_A_PERSON | {"HX-Request": "true"}).status_code == 405


def ask(chunks: list[bytes], headers: list[tuple[bytes, bytes]]) -> tuple[int | None, int]:
    """The status that a POST with this body gets, and how many pieces of it were taken."""
    taken, status = 0, None

    async def receive() -> dict[str, Any]:
        nonlocal taken
        if taken == len(chunks):
            return {"type": "http.disconnect"}
        taken += 1
        return {"type": "http.request", "body": chunks[taken - 1], "more_body": taken < len(chunks)}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)

    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": "/api/agent/v1/nothing", "query_string": b"",
        "headers": [(b"host", b"localhost"), *headers], "client": ("127.0.0.1", 1), "server": ("localhost", 80), "scheme": "http",
    }  # fmt: skip
    asyncio.run(application(scope, receive, send))
    return status, taken


def test_a_body_that_says_it_is_too_long_is_refused_unread():
    length = str(settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1).encode()
    assert ask([b"x"], [(b"content-length", length)]) == (413, 0)


def test_a_body_without_a_length_is_cut_off_at_the_limit():
    piece = b"x" * (1024 * 1024)
    status, taken = ask([piece] * 100, [(b"transfer-encoding", b"chunked")])
    assert status is None
    assert taken == settings.DATA_UPLOAD_MAX_MEMORY_SIZE // len(piece) + 1
