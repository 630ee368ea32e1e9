"""Second factors: the pages in both directions, what is stored, who needs one, and credentials that no browser makes."""

import base64
import json
import re
import time

import pytest
from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, format_hotp_value, hotp_value
from django.conf import settings as site
from django.core.cache import cache
from django.test import Client
from django.urls import reverse
from django.utils import translation
from fido2.webauthn import (
    AttestationObject,
    AttestedCredentialData,
    AuthenticatorData,
)
from pytest_django import Settings

from gpunex.accounts.models import User
from gpunex.accounts.organisations import open_personal
from gpunex.outbox.models import Message
from tests.signin import confirm

pytestmark = pytest.mark.django_db
PASSWORD = "a long phrase nobody uses"
SECRET = "JBSWY3DPEHPK3PXP"


@pytest.fixture(autouse=True)
def nothing_tried_yet() -> None:
    """How often somebody tried, and which codes were used, is kept beside the database."""
    cache.clear()


@pytest.fixture
def person(now) -> User:
    user = User.objects.create_user(email="yusuf@example.com", password=PASSWORD, full_name="Yusuf Darwish")
    EmailAddress.objects.create(user=user, email=user.email, verified=True, primary=True)
    open_personal(user=user, at=now)
    return user


@pytest.fixture
def signed_in(client: Client, person: User) -> Client:
    client.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    return confirm(client, person)


@pytest.fixture
def key() -> "SoftKey":
    return SoftKey()


class SoftKey:
    """A passkey in software, as a phone or a browser holds one: made for a site, it signs what that site asks."""

    def __init__(self, origin: str = "http://localhost:8000") -> None:
        from cryptography.hazmat.primitives.asymmetric import ec

        self.private = ec.generate_private_key(ec.SECP256R1())
        self.id = b"k" * 32
        self.origin = origin

    def client_data(self, kind: str, challenge: str) -> bytes:
        return json.dumps({"type": kind, "challenge": challenge, "origin": self.origin, "crossOrigin": False}).encode()

    def _data(self, rp_id: str, attested: bytes | None) -> AuthenticatorData:
        import hashlib

        flags = AuthenticatorData.FLAG.UP | AuthenticatorData.FLAG.UV
        if attested is not None:
            flags |= AuthenticatorData.FLAG.AT
        return AuthenticatorData.create(hashlib.sha256(rp_id.encode()).digest(), flags, 1, attested or b"")

    def made_for(self, options: dict) -> dict:
        """The credential that a browser answers creation options with."""
        from fido2.cose import ES256

        asked = options["publicKey"]
        self.handle = asked["user"]["id"]
        public = ES256.from_cryptography_key(self.private.public_key())
        attested = AttestedCredentialData.create(bytes(16), self.id, public)
        data = self._data(asked["rp"]["id"], attested)
        seen = AttestationObject.create("none", data, {})
        return self._answer(
            {
                "clientDataJSON": b64(self.client_data("webauthn.create", asked["challenge"])),
                "attestationObject": b64(bytes(seen)),
            },
            {"credProps": {"rk": True}},
        )

    def answer_to(self, options: dict) -> dict:
        """The assertion that a browser answers request options with."""
        import hashlib

        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        asked = options["publicKey"]
        data = self._data(asked["rpId"], None)
        client = self.client_data("webauthn.get", asked["challenge"])
        signature = self.private.sign(bytes(data) + hashlib.sha256(client).digest(), ec.ECDSA(hashes.SHA256()))
        return self._answer(
            {
                "clientDataJSON": b64(client),
                "authenticatorData": b64(bytes(data)),
                "signature": b64(signature),
                "userHandle": self.handle,
            },
            {},
        )

    def _answer(self, response: dict, extensions: dict) -> dict:
        return {
            "type": "public-key",
            "id": b64(self.id),
            "rawId": b64(self.id),
            "clientExtensionResults": extensions,
            "response": response,
        }


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def options_of(page) -> dict:
    found = re.search(r'<script id="options" type="application/json">(.*?)</script>', page.content.decode(), re.S)
    assert found is not None
    return json.loads(found[1])


def add_passkey(client: Client, key: SoftKey, **typed: str):
    page = client.get(reverse("mfa_add_webauthn"))
    credential = key.made_for(options_of(page))
    return client.post(
        reverse("mfa_add_webauthn"),
        {"name": "Phone", "passwordless": "on", "credential": json.dumps(credential)} | typed,
    )


def app_of(user: User) -> Authenticator:
    return TOTP.activate(user, SECRET).instance


def code_now() -> str:
    return format_hotp_value(hotp_value(SECRET, int(time.time()) // 30))


# --- pages -----------------------------------------------------------------------------------------------------------


def pages(user: User) -> dict[str, str]:
    passkey = Authenticator.objects.create(
        user=user, type=Authenticator.Type.WEBAUTHN, data={"name": "Phone", "credential": stored(user)}
    )
    return {
        "mfa_index": reverse("mfa_index"),
        "mfa_activate_totp": reverse("mfa_activate_totp"),
        "mfa_list_webauthn": reverse("mfa_list_webauthn"),
        "mfa_add_webauthn": reverse("mfa_add_webauthn"),
        "mfa_edit_webauthn": reverse("mfa_edit_webauthn", args=[passkey.pk]),
        "mfa_remove_webauthn": reverse("mfa_remove_webauthn", args=[passkey.pk]),
        "mfa_reauthenticate_webauthn": reverse("mfa_reauthenticate_webauthn"),
        "mfa_generate_recovery_codes": reverse("mfa_generate_recovery_codes"),
    }


def stored(user: User) -> dict:
    return SoftKey().made_for(
        {
            "publicKey": {
                "challenge": b64(bytes(32)),
                "rp": {"id": "localhost"},
                "user": {"id": b64(str(user.pk).encode())},
            }
        }
    )


@pytest.mark.spec("J1")
@pytest.mark.parametrize(("language", "direction"), [("en", "ltr"), ("ar", "rtl")])
def test_every_page_of_factors_opens_in_both_directions(
    signed_in: Client, person: User, language: str, direction: str
) -> None:
    User.objects.filter(pk=person.pk).update(language=language)
    for name, url in pages(person).items():
        page = signed_in.get(url)
        text = page.content.decode()
        assert page.status_code == 200, name
        assert f'<html lang="{language}" dir="{direction}"' in text, name
        assert text.count("<h1>") == 1, name
        scripts = re.findall(r"<script\b[^>]*>", text)
        assert all(" src=" in tag or 'type="application/json"' in tag for tag in scripts), name
        assert " style=" not in text and " onclick=" not in text, name


@pytest.mark.parametrize(("language", "direction"), [("en", "ltr"), ("ar", "rtl")])
def test_the_pages_around_an_app_and_its_codes_open_in_both_directions(
    signed_in: Client, person: User, language: str, direction: str
) -> None:
    User.objects.filter(pk=person.pk).update(language=language)
    app_of(person)
    RecoveryCodes.activate(person)
    for name in ("mfa_index", "mfa_deactivate_totp", "mfa_view_recovery_codes", "mfa_reauthenticate"):
        page = signed_in.get(reverse(name))
        assert page.status_code == 200, name
        assert f'dir="{direction}"' in page.content.decode() and page.content.decode().count("<h1>") == 1, name
    codes = signed_in.get(reverse("mfa_view_recovery_codes")).content.decode()
    assert codes.count('<bdi dir="ltr" class="mono">') == 10


def test_an_app_is_turned_on_with_its_code_and_comes_with_recovery_codes(signed_in: Client, person: User) -> None:
    page = signed_in.get(reverse("mfa_activate_totp"))
    secret = page.context["form"].secret
    wrong = signed_in.post(reverse("mfa_activate_totp"), {"code": "000000"})
    assert "did not fit" in wrong.content.decode() or "code" in wrong.context["form"].errors
    code = format_hotp_value(hotp_value(secret, int(time.time()) // 30))
    assert signed_in.post(reverse("mfa_activate_totp"), {"code": code}).status_code == 302
    kinds = set(Authenticator.objects.filter(user=person).values_list("type", flat=True))
    assert kinds == {"totp", "recovery_codes"}


def test_what_makes_codes_is_stored_encrypted(person: User) -> None:
    app = app_of(person)
    codes = RecoveryCodes.activate(person)
    app.refresh_from_db()
    assert SECRET not in json.dumps(app.data)
    assert app.wrap().validate_code(code_now())
    assert len(codes.get_unused_codes()) == 10
    app.data["secret"] = SECRET  # as an earlier version stored it
    app.save()
    cache.clear()
    assert Authenticator.objects.get(pk=app.pk).wrap().validate_code(code_now())


# --- passkeys --------------------------------------------------------------------------------------------------------


def test_a_passkey_is_added_and_the_person_told_by_mail(signed_in: Client, person: User, key: SoftKey) -> None:
    assert add_passkey(signed_in, key).status_code == 302
    passkey = Authenticator.objects.get(type="webauthn")
    assert passkey.wrap().name == "Phone" and passkey.wrap().is_passwordless
    assert Authenticator.objects.filter(user=person, type="recovery_codes").exists()
    assert "passkey was added" in " ".join(Message.objects.filter(to=person.email).values_list("subject", flat=True))


def test_a_passkey_signs_in_by_itself_and_confirms(
    signed_in: Client, person: User, key: SoftKey, client: Client
) -> None:
    add_passkey(signed_in, key)
    fresh = Client()
    options = fresh.get(reverse("mfa_login_webauthn"), headers={"Accept": "application/json"}).json()
    credential = json.dumps(key.answer_to(options["request_options"]))
    answer = fresh.post(reverse("mfa_login_webauthn"), {"credential": credential, "next": "/balance"})
    assert answer.headers["Location"] == "/balance"
    assert fresh.get(reverse("accounts:settings")).status_code == 200
    where = f"{reverse('mfa_reauthenticate_webauthn')}?next={reverse('mfa_index')}"
    page = fresh.get(where)
    credential = key.answer_to(options_of(page))
    answer = fresh.post(where, {"credential": json.dumps(credential), "next": reverse("mfa_index")})
    assert answer.headers["Location"] == reverse("mfa_index")
    assert fresh.get(reverse("mfa_add_webauthn")).status_code == 200, "confirmed"


def test_a_password_alone_does_not_sign_in_past_a_passkey(signed_in: Client, person: User, key: SoftKey) -> None:
    add_passkey(signed_in, key)
    fresh = Client()
    answer = fresh.post(reverse("account_login"), {"login": person.email, "password": PASSWORD})
    assert answer.headers["Location"] == reverse("mfa_authenticate")
    assert fresh.get(reverse("accounts:settings")).status_code == 302
    page = fresh.get(reverse("mfa_authenticate"))
    fresh.post(reverse("mfa_authenticate"), {"credential": json.dumps(key.answer_to(options_of(page)))})
    assert fresh.get(reverse("accounts:settings")).status_code == 200


def test_a_recovery_code_lets_in_once_when_the_factor_is_lost(signed_in: Client, person: User, key: SoftKey) -> None:
    add_passkey(signed_in, key)
    code = Authenticator.objects.get(type="recovery_codes").wrap().get_unused_codes()[0]
    for expected in (200, 302):
        fresh = Client()
        fresh.post(reverse("account_login"), {"login": person.email, "password": PASSWORD})
        fresh.post(reverse("mfa_authenticate"), {"code": code})
        assert fresh.get(reverse("accounts:settings")).status_code == expected


def test_a_passkey_is_renamed_and_removed_with_a_mail_and_the_codes_go_with_the_last(
    signed_in: Client, person: User, key: SoftKey
) -> None:
    add_passkey(signed_in, key)
    passkey = Authenticator.objects.get(type="webauthn")
    url = reverse("mfa_edit_webauthn", args=[passkey.pk])
    assert signed_in.post(url, {"name": "x" * 61}).status_code == 200
    assert signed_in.post(url, {"name": "مفتاح"}).status_code == 302
    passkey.refresh_from_db()
    assert passkey.wrap().name == "مفتاح"
    signed_in.post(reverse("mfa_remove_webauthn", args=[passkey.pk]))
    assert not Authenticator.objects.filter(user=person).exists()
    assert Message.objects.filter(subject="A passkey was removed").exists()


def test_anothers_passkey_is_not_there(signed_in: Client, now) -> None:
    other = User.objects.create_user(email="other@example.com", password=PASSWORD)
    passkey = Authenticator.objects.create(
        user=other, type="webauthn", data={"name": "Theirs", "credential": stored(other)}
    )
    for name in ("mfa_edit_webauthn", "mfa_remove_webauthn"):
        assert signed_in.get(reverse(name, args=[passkey.pk])).status_code == 404


def test_an_open_session_alone_adds_and_removes_no_factor(client: Client, person: User) -> None:
    client.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    for name in ("mfa_activate_totp", "mfa_add_webauthn", "mfa_generate_recovery_codes"):
        answer = client.get(reverse(name))
        assert answer.status_code == 302 and "reauthenticate" in answer.headers["Location"], name


def test_a_passkey_of_another_site_is_refused(signed_in: Client, person: User, settings: Settings) -> None:
    settings.EMBEDDED, settings.MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = False, False
    settings.PUBLIC_URL = "https://gpunex.example"
    for origin in ("https://evil.example", "http://gpunex.example", "https://gpunex.example.evil.example"):
        add_passkey(signed_in, SoftKey(origin))
        assert not Authenticator.objects.exists(), origin
    add_passkey(signed_in, SoftKey("https://gpunex.example"))
    assert Authenticator.objects.filter(type="webauthn").exists()


STRANGE = [
    "",
    "null",
    "1",
    "[]",
    "{}",
    '"text"',
    "not json",
    '{"response": []}',
    '{"response": null}',
    '{"id": 1, "rawId": {}, "response": {"userHandle": 5}}',
    '{"type": "public-key", "id": "x", "rawId": "x", "response": {"clientDataJSON": "", "attestationObject": ""}}',
    json.dumps(
        {
            "type": "public-key",
            "id": "eA",
            "rawId": "eA",
            "clientExtensionResults": {},
            "response": {
                "clientDataJSON": b64(b"{}"),
                "attestationObject": b64(b"\xff"),
                "authenticatorData": b64(bytes(37)),
                "signature": b64(b"x"),
                "userHandle": "!!!",
            },
        }
    ),
    json.dumps(
        {
            "type": "public-key",
            "id": "eA",
            "rawId": "eA",
            "clientExtensionResults": {},
            "response": {
                "clientDataJSON": b64(b'{"type":"webauthn.get","challenge":"AA","origin":"http://localhost"}'),
                "authenticatorData": b64(bytes(37)),
                "signature": b64(b"x"),
                "userHandle": b64(b"999999999999999999999"),
            },
        }
    ),
    "[" * 2000,
]


@pytest.mark.parametrize("credential", STRANGE)
def test_a_credential_that_no_browser_makes_is_refused_everywhere(
    signed_in: Client, person: User, credential: str
) -> None:
    door = Client()
    door.get(reverse("mfa_login_webauthn"), headers={"Accept": "application/json"})
    assert door.post(reverse("mfa_login_webauthn"), {"credential": credential}).status_code in (200, 302)
    assert "_auth_user_id" not in door.session
    signed_in.get(reverse("mfa_add_webauthn"))
    assert signed_in.post(reverse("mfa_add_webauthn"), {"credential": credential}).status_code == 200
    assert not Authenticator.objects.exists()
    Authenticator.objects.create(user=person, type="webauthn", data={"name": "P", "credential": stored(person)})
    signed_in.get(reverse("mfa_reauthenticate_webauthn"))
    assert signed_in.post(reverse("mfa_reauthenticate_webauthn"), {"credential": credential}).status_code in (200, 302)
    second = Client()
    second.post(reverse("account_login"), {"login": person.email, "password": PASSWORD})
    assert second.post(reverse("mfa_authenticate"), {"credential": credential}).status_code == 200
    assert "_auth_user_id" not in second.session


# --- staff -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def staff(client: Client, person: User, settings: Settings) -> Client:
    settings.EMBEDDED = False
    User.objects.filter(pk=person.pk).update(is_staff=True, is_superuser=True)
    client.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    return client


ADMIN_PAGES = [
    "/admin/",
    "/admin/payouts/payout/",
    "/admin/payouts/payoutrun/",
    "/admin/billing/deposit/",
    "/admin/accounts/user/",
    "/admin/policy/policy/",
]


@pytest.mark.spec("H2")
@pytest.mark.parametrize("page", ADMIN_PAGES)
def test_staff_without_a_second_factor_reach_no_page_of_the_administration(staff: Client, page: str) -> None:
    for answer in (staff.get(page), staff.post(page, {})):
        assert answer.headers["Location"] == reverse("mfa_index")


@pytest.mark.parametrize("kind", ["totp", "webauthn"])
def test_either_factor_will_do_once_this_session_has_used_it(staff: Client, person: User, kind: str) -> None:
    if kind == "totp":
        app_of(person)
        where = reverse("mfa_reauthenticate")
    else:
        Authenticator.objects.create(user=person, type="webauthn", data={"name": "P", "credential": stored(person)})
        where = reverse("mfa_reauthenticate_webauthn")
    answer = staff.get("/admin/")
    assert answer.headers["Location"] == f"{where}?next=%2Fadmin%2F"
    confirm(staff, person, method="mfa")
    assert staff.get("/admin/").status_code == 200


def test_a_session_from_before_the_factor_confirms_with_it_and_goes_on(staff: Client, person: User) -> None:
    app_of(person)
    confirm(staff, person)  # by the password alone
    where = staff.get("/admin/").headers["Location"]
    answer = staff.post(where, {"code": code_now(), "next": "/admin/"})
    assert answer.headers["Location"] == "/admin/"
    assert staff.get("/admin/").status_code == 200


def test_recovery_codes_alone_are_no_second_factor(staff: Client, person: User) -> None:
    RecoveryCodes.activate(person)
    assert staff.get("/admin/").headers["Location"] == reverse("mfa_index")


def test_staff_who_lost_the_factor_get_in_with_a_recovery_code(staff: Client, person: User) -> None:
    app_of(person)
    code = RecoveryCodes.activate(person).get_unused_codes()[0]
    fresh = Client()
    fresh.post(reverse("account_login"), {"login": person.email, "password": PASSWORD})
    fresh.post(reverse("mfa_authenticate"), {"code": code})
    assert fresh.get("/admin/").status_code == 200


def test_in_the_demonstration_nobody_needs_one(client: Client, person: User) -> None:
    assert site.EMBEDDED
    User.objects.filter(pk=person.pk).update(is_staff=True, is_superuser=True)
    client.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    assert client.get("/admin/").status_code == 200


def test_the_words_of_the_ways_to_confirm_are_ours(person: User) -> None:
    from allauth.account.adapter import get_adapter

    app_of(person)
    with translation.override("en"):
        words = [str(method["description"]) for method in get_adapter().get_reauthentication_methods(person)]
    assert words == ["Use the password", "Use the app or a recovery code"]
