"""Account settings: name, language, time zone, appearance; and the frame that follows them."""

from datetime import UTC, datetime

import pytest
from django.test import Client
from django.urls import reverse

from gpunex.accounts.models import User
from gpunex.accounts.organisations import open_personal

pytestmark = pytest.mark.django_db
AT = datetime(2026, 10, 14, 14, 5, tzinfo=UTC)
GOOD = {"full_name": "Priya Nair", "language": "en", "timezone": "Asia/Amman", "theme": "dark"}


@pytest.fixture
def user() -> User:
    user = User.objects.create_user("priya@example.com", "a-long-password", full_name="Priya")
    open_personal(user=user, at=AT)
    return user


@pytest.fixture
def client(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_settings_are_kept_with_the_account(client: Client, user: User) -> None:
    answer = client.post(reverse("accounts:settings"), GOOD, follow=True)
    user.refresh_from_db()
    assert (user.full_name, user.language, user.timezone, user.theme) == ("Priya Nair", "en", "Asia/Amman", "dark")
    assert 'data-theme="dark"' in answer.text
    assert "Your settings are kept" in answer.text


@pytest.mark.spec("J1")
def test_another_language_speaks_from_the_next_page_on(client: Client, user: User) -> None:
    answer = client.post(reverse("accounts:settings"), GOOD | {"language": "ar"}, follow=True)
    assert 'dir="rtl"' in answer.text
    assert client.cookies["django_language"].value == "ar"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"full_name": "  "}, "This field is required"),
        ({"full_name": "x" * 121}, "at most 120 characters"),
        ({"timezone": "Mars/Olympus"}, "“Mars/Olympus” is not a time zone"),
        ({"timezone": ""}, "This field is required"),
        ({"language": "xx"}, "Select a valid choice"),
        ({"theme": "sepia"}, "Select a valid choice"),
    ],
)
def test_what_cannot_be_is_refused_beside_its_field(
    client: Client, user: User, change: dict[str, str], words: str
) -> None:
    answer = client.post(reverse("accounts:settings"), GOOD | change)
    assert answer.status_code == 422
    assert words in answer.text
    user.refresh_from_db()
    assert user.full_name == "Priya"


def test_settings_lead_to_the_parts_of_the_account(client: Client) -> None:
    text = client.get(reverse("accounts:settings")).text
    for name in ("account_email", "account_change_password", "mfa_index", "accounts:notices"):
        assert f'href="{reverse(name)}"' in text


def test_a_name_with_markup_is_text(client: Client, user: User) -> None:
    client.post(reverse("accounts:settings"), GOOD | {"full_name": "<script>alert(1)</script>"})
    assert "<script>alert" not in client.get(reverse("accounts:settings")).text


def test_settings_need_somebody_who_is_signed_in() -> None:
    assert Client().get(reverse("accounts:settings")).status_code == 302


def test_the_frame_shows_the_balance_and_asks_for_nothing_where_nobody_is_signed_in(
    client: Client, django_assert_num_queries: object
) -> None:
    assert '<bdi dir="ltr" class="money">0.00' in client.get(reverse("accounts:settings")).text
    with django_assert_num_queries(0):
        assert Client().get(reverse("account_login")).status_code == 200
