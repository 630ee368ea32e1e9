"""Tokens and API keys: shown once, stored as hashes, single use, revocable, rotatable."""

import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse

from gpunex.policy.models import Policy
from providers import keys
from providers.keys import KeyExpired, KeyNameMissing, KeyRevoked, KeyUnknown, KeyUsed
from providers.models import EnrolmentKey, Provider
from tests.providers.applying import organisation_of, person

ADDRESS = "203.0.113.7"


def provider_of(user, at) -> Provider:
    return Provider.objects.create(
        organisation=organisation_of(user), tier="community", approved_at=at, commitment_months=3
    )


@pytest.fixture
def yusuf(db, now):
    return person("Yusuf", at=now)


@pytest.fixture
def provider(yusuf, now):
    return provider_of(yusuf, now)


@pytest.fixture
def browser(yusuf, provider):
    client = Client()
    client.force_login(yusuf)
    return client


def verify(text, at, *, fingerprint="host-a"):
    return keys.verify(text=text, fingerprint=fingerprint, address=ADDRESS, at=at)


@pytest.mark.spec("A8")
def test_a_token_connects_one_host_which_may_present_it_again(provider, now):
    token = keys.make_token(provider=provider, application=None, at=now)
    key = verify(token, now)
    assert (key.used_at, key.used_fingerprint, key.last_used_from) == (now, "host-a", ADDRESS)
    assert verify(token, now + timedelta(minutes=1)).pk == key.pk
    with pytest.raises(KeyUsed):
        verify(token, now, fingerprint="host-b")


@pytest.mark.spec("A8")
def test_a_token_expires_after_the_policys_days(provider, now):
    Policy.objects.filter(pk=1).update(enrolment_token_days=2)
    token = keys.make_token(provider=provider, application=None, at=now)
    verify(token, now + timedelta(days=2, seconds=-1))
    other = keys.make_token(provider=provider, application=None, at=now)
    with pytest.raises(KeyExpired):
        verify(other, now + timedelta(days=2))


def test_what_is_no_key_is_unknown(provider, now):
    for text in ("", "gpxe_00000000_nothing", "x" * 5000, "gpxk_\N{SNOWMAN}"):
        with pytest.raises(KeyUnknown):
            verify(text, now)


@pytest.mark.spec("A8")
def test_an_api_key_connects_any_number_until_it_is_revoked(provider, yusuf, now):
    text = keys.make_api_key(provider=provider, name="  rack   4 ", by=yusuf, at=now)
    key = verify(text, now)
    assert verify(text, now + timedelta(days=400), fingerprint="host-b").pk == key.pk
    assert (key.name, key.used_at) == ("rack 4", None)
    keys.revoke(key=key, by=yusuf, at=now)
    with pytest.raises(KeyRevoked):
        verify(text, now)


def test_a_rotated_key_works_on_for_a_day(provider, yusuf, now):
    old = keys.make_api_key(provider=provider, name="rack 4", by=yusuf, at=now)
    new = keys.rotate(key=EnrolmentKey.objects.get(), by=yusuf, at=now)
    assert new != old
    verify(old, now + timedelta(hours=23))
    verify(new, now + timedelta(days=30))
    with pytest.raises(KeyExpired):
        verify(old, now + timedelta(hours=24))


def test_a_key_needs_a_name(provider, yusuf, now):
    with pytest.raises(KeyNameMissing):
        keys.make_api_key(provider=provider, name=" ", by=yusuf, at=now)


@pytest.mark.usefixtures("committed")
def test_of_two_hosts_at_once_with_one_token_one_is_let_in(now):
    token = keys.make_token(provider=provider_of(person("Yusuf", at=now), now), application=None, at=now)
    barrier, outcomes = threading.Barrier(2), []

    def enrol(fingerprint):
        barrier.wait()
        try:
            verify(token, now, fingerprint=fingerprint)
            outcomes.append("in")
        except KeyUsed:
            outcomes.append("used")
        finally:
            connection.close()

    threads = [threading.Thread(target=enrol, args=(name,)) for name in ("host-a", "host-b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["in", "used"]


@pytest.mark.spec("A8")
def test_the_page_shows_a_key_once(browser):
    made = browser.post(reverse("providers:keys"), {"name": "rack <b>4</b>"})
    text = made.content.decode()
    key = EnrolmentKey.objects.get()
    whole = next(word for word in text.replace("<", " ").replace(">", " ").split() if word.startswith(f"{key.prefix}_"))
    assert keys.digest(whole) == key.hash
    assert "no-store" in made.headers["Cache-Control"]
    again = browser.get(reverse("providers:keys")).content.decode()
    assert whole not in again
    assert key.prefix in again
    assert "rack &lt;b&gt;4&lt;/b&gt;" in again
    rotated = browser.post(reverse("providers:key_rotate", args=[key.pk]))
    assert EnrolmentKey.objects.count() == 2
    assert "shown this once" in rotated.content.decode()
    browser.post(reverse("providers:key_revoke", args=[key.pk]))
    key.refresh_from_db()
    assert key.revoked_at


def test_a_key_without_a_name_is_refused_beside_its_field(browser):
    refused = browser.post(reverse("providers:keys"), {"name": ""})
    assert refused.status_code == 422
    assert 'id="name_error"' in refused.content.decode()


@pytest.mark.spec("B1")
def test_the_install_page_makes_a_fresh_token_and_names_the_simulated_host(browser, settings, now):
    page = browser.get(reverse("providers:install")).content.decode()
    assert f"curl -fsSL {settings.PUBLIC_URL}/agent | bash" in page
    assert "--simulate rtx4090x2" in page
    made = browser.post(reverse("providers:install")).content.decode()
    token = EnrolmentKey.objects.get()
    assert f"GPUNEX_API_KEY={token.prefix}_" in made


def test_someone_elses_keys_are_not_there(browser, provider, now):
    keys.make_token(provider=provider, application=None, at=now)
    stranger = Client()
    stranger.force_login(person("Mallory", at=now))
    key = EnrolmentKey.objects.get()
    for name in ("keys", "install"):
        assert stranger.get(reverse(f"providers:{name}")).headers["Location"] == reverse("providers:roles")
    other = person("Noor", at=now)
    provider_of(other, now)
    stranger.force_login(other)
    assert stranger.post(reverse("providers:key_revoke", args=[key.pk])).status_code == 404
    assert stranger.post(reverse("providers:key_rotate", args=[key.pk])).status_code == 404
    key.refresh_from_db()
    assert key.revoked_at is None


@pytest.mark.spec("B1")
def test_the_installer_is_served_to_everybody_with_the_platforms_address(client, settings):
    answer = client.get("/agent")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/x-shellscript")
    script = answer.content.decode()
    assert script.startswith("#!")
    assert settings.PUBLIC_URL in script
    assert "@@GPUNEX" not in script
