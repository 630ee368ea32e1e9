"""The pages around an account (django-allauth's, in our look and words) and their mails."""

import re

import pytest
from allauth.account.models import EmailAddress
from django.conf import settings
from django.template.loader import render_to_string
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone, translation
from django.views.csrf import csrf_failure
from django.views.defaults import bad_request, permission_denied, server_error

from gpunex.accounts.models import User
from gpunex.outbox.models import Message

pytestmark = pytest.mark.django_db
PASSWORD = "a long phrase nobody uses"

OPEN_PAGES = [
    "account_login",
    "account_signup",
    "account_reset_password",
    "account_reset_password_done",
    "account_reset_password_from_key_done",
    "account_email_verification_sent",
    "account_inactive",
]
OWN_PAGES = ["account_email", "account_change_password", "account_logout", "account_reauthenticate", "mfa_index"]


@pytest.fixture
def person(client: Client) -> User:
    user = User.objects.create_user(email="yusuf@example.com", password=PASSWORD, full_name="Yusuf Darwish")
    EmailAddress.objects.create(user=user, email=user.email, verified=True, primary=True)
    return user


def speak(client: Client, language: str) -> None:
    client.cookies[settings.LANGUAGE_COOKIE_NAME] = language


@pytest.mark.spec("J1")
@pytest.mark.parametrize("name", OPEN_PAGES)
@pytest.mark.parametrize(("language", "direction"), [("en", "ltr"), ("ar", "rtl")])
def test_a_door_opens_in_both_languages_and_in_our_shell(client: Client, name: str, language: str, direction: str):
    speak(client, language)

    answer = client.get(reverse(name))

    text = answer.content.decode()
    assert answer.status_code == 200
    assert f'<html lang="{language}" dir="{direction}"' in text
    assert 'data-front="plain"' in text and text.count("<h1>") == 1


@pytest.mark.parametrize("name", OWN_PAGES)
def test_a_page_of_ones_own_account_has_one_heading_and_no_script_inside(client: Client, person: User, name: str):
    client.force_login(person)

    answer = client.get(reverse(name))

    text = answer.content.decode()
    assert answer.status_code == 200
    assert text.count("<h1>") == 1
    assert all(" src=" in tag for tag in re.findall(r"<script\b[^>]*>", text))


def test_signing_up_asks_for_one_password_and_keeps_what_was_typed(client: Client):
    answer = client.post(reverse("account_signup"), {"full_name": "Yusuf", "email": "no address", "password1": "short"})

    text = answer.content.decode()
    assert text.count('type="password"') == 1
    assert 'value="no address"' in text and 'value="Yusuf"' in text
    assert 'id="id_email_error"' in text and 'id="id_password1_error"' in text
    assert "short" not in text.split("<main")[1].replace("too short", "")
    assert not User.objects.exists()


def test_signing_up_sends_one_mail_with_one_link_in_the_language_of_the_page(client: Client):
    speak(client, "ar")

    client.post(reverse("account_signup"), {"full_name": "Yusuf", "email": "yusuf@example.com", "password1": PASSWORD})

    message = Message.objects.get()
    assert User.objects.get().language == "ar"
    assert message.to == "yusuf@example.com"


def test_a_confirmation_link_that_is_no_longer_valid_says_what_to_do(client: Client):
    answer = client.get(reverse("account_confirm_email", args=["abc:def"]))

    text = answer.content.decode()
    assert "no longer valid" in text and reverse("account_login") in text.split("<main")[1]


def test_a_reset_link_that_is_no_longer_valid_leads_to_a_new_one(client: Client):
    answer = client.get(reverse("account_reset_password_from_key", kwargs={"uidb36": "1", "key": "abc"}), follow=True)

    assert reverse("account_reset_password") in answer.content.decode().split("<main")[1]


def test_a_wrong_password_is_refused_in_our_words(client: Client, person: User):
    answer = client.post(reverse("account_login"), {"login": person.email, "password": "wrong"})

    text = answer.content.decode()
    assert "do not belong together" in text and f'value="{person.email}"' in text
    assert 'role="alert"' in text


MAILS = [
    "account/email/email_confirmation",
    "account/email/email_confirmation_signup",
    "account/email/password_reset_key",
    "account/email/account_already_exists",
    "account/email/unknown_account",
    "account/email/email_changed",
    "account/email/email_confirm",
    "account/email/email_deleted",
    "account/email/password_changed",
    "account/email/password_reset",
    "account/email/password_set",
    "mfa/email/totp_activated",
    "mfa/email/totp_deactivated",
    "mfa/email/recovery_codes_generated",
    "mfa/email/webauthn_added",
    "mfa/email/webauthn_removed",
]


@pytest.mark.parametrize("prefix", MAILS)
@pytest.mark.parametrize("language", ["en", "ar"])
def test_a_mail_says_the_same_as_text_and_as_html(prefix: str, language: str):
    urls = ("activate_url", "password_reset_url", "signup_url")
    context = {name: f"https://gpunex.example/{name}" for name in urls} | {
        "email": "yusuf@example.com",
        "from_email": "old@example.com",
        "to_email": "new@example.com",
        "deleted_email": "old@example.com",
        "timestamp": timezone.now(),
        "ip": "192.0.2.7",
        "user_agent": "Browser/1 <b>",
    }
    with translation.override(language):
        subject = render_to_string(f"{prefix}_subject.txt", context).strip()
        text = render_to_string(f"{prefix}_message.txt", context)
        html = render_to_string(f"{prefix}_message.html", context)

    assert subject and subject in text and subject in html
    assert f'dir="{"rtl" if language == "ar" else "ltr"}"' in html
    assert "{{" not in text + html and "None" not in text + html and "<b>" not in html
    assert set(re.findall(r"https://gpunex.example/\w+", text)) == set(re.findall(r"https://gpunex.example/\w+", html))
    assert set(re.findall(r"[\w.]+@example.com", text)) == set(re.findall(r"[\w.]+@example.com", html))


def test_pages_of_errors_stand_without_a_session_or_a_person(rf: RequestFactory):
    request = rf.get("/nowhere")

    assert bad_request(request, Exception()).status_code == 400
    assert permission_denied(request, Exception()).status_code == 403
    assert csrf_failure(request).status_code == 403
    broken = server_error(request)
    assert broken.status_code == 500
    assert "This is our fault" in broken.content.decode() and "الخطأ من جهتنا" in broken.content.decode()


def test_a_page_that_is_not_there_says_so_in_our_shell(client: Client):
    answer = client.get("/nowhere/at-all")

    assert answer.status_code == 404
    assert "Nothing is here" in answer.content.decode()


def test_an_address_that_no_mail_can_reach_is_refused_at_sign_up(client: Client):
    typed = {"full_name": "Yusuf", "email": f"a@{'\u0628' * 60}.com", "password1": PASSWORD}

    answer = client.post(reverse("account_signup"), typed)

    assert 'id="id_email_error"' in answer.content.decode()
    assert not User.objects.exists()
    assert not Message.objects.exists()


def test_an_open_session_alone_adds_no_way_in(client: Client, person: User):
    """Whoever finds one would else add their address, make it the account's, and choose a new password by mail."""
    client.force_login(person)
    add = {"email": "thief@example.com", "action_add": ""}

    answer = client.post(reverse("account_email"), add)

    assert answer.headers["Location"].startswith(reverse("account_reauthenticate"))
    assert not EmailAddress.objects.filter(email="thief@example.com").exists()
    client.post(answer.headers["Location"], {"password": PASSWORD})
    assert EmailAddress.objects.filter(email="thief@example.com").exists()
