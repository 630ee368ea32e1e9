import re
from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from allauth.account.models import EmailAddress
from django.core import mail as django_mail
from django.test import Client
from django.urls import reverse

from gpunex.accounts.models import Membership, Notice, Organisation, User
from gpunex.accounts.notices import Event, in_words, notify
from gpunex.accounts.organisations import acting_for, open_personal
from gpunex.outbox.mail import deliver_due
from gpunex.outbox.models import Message

pytestmark = pytest.mark.django_db
AT = datetime(2026, 10, 14, 14, 5, tzinfo=UTC)
PAID = Event(
    "test_paid",
    subject="You were paid %(amount_micro)s",
    paragraphs=("Sent on %(sent_at)s. Token: %(token)s.",),
    action="See it",
    path="/payouts/{payout}",
)


@pytest.fixture
def owner():
    user = User.objects.create_user("Owner@Example.com", "a-long-password", full_name="Owner One", language="ar")
    open_personal(user=user, at=AT)
    return user


def test_an_email_address_is_one_account_whatever_its_case(owner):
    assert owner.email == "owner@example.com"
    from django.db import IntegrityError, transaction

    with pytest.raises(IntegrityError), transaction.atomic():
        User.objects.create(email="OWNER@example.com")


def test_the_personal_organisation_is_made_once(owner):
    assert open_personal(user=owner, at=AT) == open_personal(user=owner, at=AT)
    assert Organisation.objects.filter(created_by=owner).count() == 1
    assert Membership.objects.get(user=owner).role == Membership.Role.OWNER


def test_one_acts_only_for_organisations_one_belongs_to(owner):
    stranger = open_personal(user=User.objects.create_user("stranger@example.com"), at=AT)
    assert acting_for(owner, str(stranger.public_id)) == Organisation.objects.get(created_by=owner)


def test_a_notice_formats_amounts_and_times_and_never_holds_the_secret(owner):
    organisation = Organisation.objects.get(created_by=owner)
    data = {"amount_micro": 12_345_678, "sent_at": AT.isoformat(), "payout": "p1"}
    for _ in range(2):
        notify(organisation=organisation, event=PAID, key="paid:1", at=AT, data=data, secret={"token": "gpxe_s3cret"})
    notice = Notice.objects.get()
    assert "s3cret" not in str(notice.data)
    message = Message.objects.get()
    assert message.subject == "You were paid \u206612.34 USDC\u2069"  # Arabic: the amount is an island
    deliver_due(at=AT)
    (sent,) = django_mail.outbox
    assert "gpxe_s3cret" in sent.body
    assert "14:05 UTC" in sent.body
    assert "/payouts/p1" in sent.body
    assert 'dir="rtl"' in sent.alternatives[0][0]
    assert in_words(notice)["subject"] == "You were paid 12.34 USDC"


def test_a_time_in_an_arabic_notice_keeps_its_arabic_month_outside_the_island(owner):
    """Within one island the day, the month and the year would be drawn in another order."""
    notify(organisation=Organisation.objects.get(created_by=owner), event=PAID, key="paid:2", at=AT, data={"amount_micro": 1, "sent_at": AT.isoformat(), "payout": "p1"}, secret={"token": "t"})  # fmt: skip
    deliver_due(at=AT)
    assert "Sent on 14 أكتوبر 2026، \u206614:05 UTC\u2069." in django_mail.outbox[0].body


def test_an_account_that_a_command_made_gets_its_organisation_when_it_signs_in(client):
    """``createsuperuser`` signs nobody up: without one, every page of money would have nobody to show."""
    user = User.objects.create_superuser("boss@example.com", "a-long-password", full_name="Boss")
    EmailAddress.objects.create(user=user, email=user.email, verified=True, primary=True)
    client.post(reverse("account_login"), {"login": user.email, "password": "a-long-password"})
    assert acting_for(user, None) == Organisation.objects.get(created_by=user)
    assert client.get("/balance").status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/rentals", "/me/notices", "/balance", "/balance/requests", "/balance/return", "/balance/wallet", "/statements",
     "/balance/returns/8f708089-28e7-45df-81a0-44db57787908", "/provider/payouts/8f708089-28e7-45df-81a0-44db57787908"],
)  # fmt: skip
def test_who_belongs_to_no_organisation_any_more_finds_no_page_of_one(client, owner, path: str):
    Membership.objects.filter(user=owner).delete()
    client.force_login(owner, backend="django.contrib.auth.backends.ModelBackend")
    assert client.get(path).status_code == 404


def test_an_unknown_event_of_an_older_version_still_shows(owner):
    notice = Notice.objects.create(
        organisation=Organisation.objects.get(created_by=owner), key="x", event="long_gone", created_at=AT
    )
    assert in_words(notice)["subject"] == "long_gone"


def test_signing_up_makes_an_organisation_and_asks_to_confirm_the_address(client):
    response = client.post(
        reverse("account_signup"),
        {"email": "new@example.com", "password1": "correct-horse-77", "full_name": "New Person"},
        headers={"Accept-Language": "ar"},
    )
    assert response.status_code == 302
    user = User.objects.get(email="new@example.com")
    assert (user.full_name, user.language) == ("New Person", "ar")
    assert Organisation.objects.get(created_by=user).name == "New Person"
    assert client.get(reverse("accounts:notices")).status_code == 302  # not signed in before the address is confirmed
    deliver_due(at=datetime.now(UTC))
    link = re.search(r"http\S+/account/confirm-email/\S+/", django_mail.outbox[0].body)[0]
    page = client.get(link[link.index("/account") :])
    assert page.status_code == 200
    client.post(link[link.index("/account") :])
    assert client.get(reverse("accounts:notices")).status_code == 200


def test_a_confirmation_link_that_expired_says_what_to_do(client):
    client.post(
        reverse("account_signup"),
        {"email": "slow@example.com", "password1": "correct-horse-77", "full_name": "Slow Person"},
    )
    deliver_due(at=datetime.now(UTC))
    found = re.search(r"http\S+(/account/confirm-email/\S+/)", django_mail.outbox[0].body)
    assert found is not None
    with time_machine.travel(datetime.now(UTC) + timedelta(days=4)):
        page = client.get(found[1])
        assert page.status_code == 200
        assert "sign in" in page.content.decode().lower()
        assert client.post(found[1]).status_code == 404
    assert not User.objects.get(email="slow@example.com").emailaddress_set.get().verified


def test_a_confirmation_link_that_is_none_says_what_to_do(client):
    page = client.get("/account/confirm-email/nonsense/")
    assert page.status_code == 200
    assert "sign in" in page.content.decode().lower()


@pytest.mark.spec("J1")
def test_the_language_is_remembered_on_the_account(client, owner):
    client.force_login(owner)
    page = client.get(reverse("accounts:notices"))
    assert page.headers["Content-Language"] == "ar"
    assert b'dir="rtl"' in page.content
    client.post(reverse("accounts:language"), {"language": "en", "next": "/me/notices"})
    owner.refresh_from_db()
    assert owner.language == "en"
    assert b'dir="ltr"' in client.get(reverse("accounts:notices")).content


@pytest.mark.spec("J1")
def test_the_language_switch_works_without_an_account_and_stays_on_the_site(client):
    response = client.post(reverse("accounts:language"), {"language": "ar", "next": "https://evil.example/"})
    assert response.url == "/"
    assert client.get(reverse("account_login")).headers["Content-Language"] == "ar"


def test_pages_carry_the_strict_policy(client):
    policy = client.get(reverse("account_login")).headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_a_request_has_an_id_that_the_answer_repeats(client):
    assert (
        client.get(reverse("health_live"), headers={"X-Request-ID": "abc-12345"}).headers["X-Request-ID"] == "abc-12345"
    )
    assert len(client.get(reverse("health_live"), headers={"X-Request-ID": "a\nb"}).headers["X-Request-ID"]) == 32


def test_health_says_that_database_and_redis_answer(client):
    answer = client.get(reverse("health_ready"))
    assert answer.status_code == 200
    assert answer.json()["parts"]["database"] == "ok"
    assert answer.json()["parts"]["redis"] == "ok"


@pytest.mark.parametrize("typed", ["", "abc", "\x00", "9" * 40])
def test_an_organisation_that_is_none_is_not_there_to_be_acted_for(client: Client, typed: str):
    client.force_login(User.objects.create_user("odd@example.org", full_name="Odd"))
    assert client.post("/me/organisation", {"organisation": typed}).status_code == 404
