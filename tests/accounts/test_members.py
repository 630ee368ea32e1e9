"""What our own people change about who may do what: nobody does it unseen."""

from datetime import datetime

import pytest
from django.test import Client
from django.urls import reverse

from gpunex.accounts.models import Membership, Notice, Organisation, User
from gpunex.outbox.models import Message
from tests.billing.conftest import organisation, person
from tests.billing.test_views import BACKEND

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin() -> User:
    return person("admin", is_staff=True, is_superuser=True)


@pytest.fixture
def watcher() -> User:
    return person("watcher", is_staff=True, is_superuser=True)


@pytest.fixture
def client_of_admin(admin: User) -> Client:
    client = Client()
    client.force_login(admin, backend=BACKEND)
    return client


@pytest.fixture
def org() -> Organisation:
    return organisation("layla")


def told(org: Organisation) -> list[tuple[str, str]]:
    rows = Notice.objects.filter(organisation=org, event="members_changed").order_by("pk")
    return [(row.data["did"], row.data["role"]) for row in rows]


def test_the_owners_are_told_of_each_member_that_our_team_adds_changes_or_removes(
    client_of_admin: Client, org: Organisation
) -> None:
    other = person("other")
    added = client_of_admin.post(
        reverse("admin:accounts_membership_add"), {"user": other.pk, "organisation": org.pk, "role": "viewer"}
    )
    assert added.status_code == 302
    row = Membership.objects.get(user=other)
    change = reverse("admin:accounts_membership_change", args=[row.pk])
    assert client_of_admin.post(change, {"role": "owner"}).status_code == 302
    assert client_of_admin.post(change, {"role": "owner"}).status_code == 302, "which changed nothing"
    listed = reverse("admin:accounts_membership_changelist")
    client_of_admin.post(listed, {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})
    assert not Membership.objects.filter(user=other).exists()
    assert told(org) == [("added", "viewer"), ("changed", "owner"), ("removed", "owner")]
    mails = Message.objects.filter(event="members_changed", to=org.created_by.email)
    assert mails.count() == 3


def test_an_owner_who_is_removed_is_told_of_it(client_of_admin: Client, org: Organisation) -> None:
    row = Membership.objects.get(organisation=org)
    client_of_admin.post(reverse("admin:accounts_membership_delete", args=[row.pk]), {"post": "yes"})
    assert told(org) == [("removed", "owner")]
    assert Message.objects.get(event="members_changed").to == org.created_by.email


def test_neither_the_person_nor_the_day_of_a_membership_is_edited(
    client_of_admin: Client, org: Organisation, now: datetime
) -> None:
    thief, row = person("thief"), Membership.objects.get(organisation=org)
    client_of_admin.post(
        reverse("admin:accounts_membership_change", args=[row.pk]),
        {"user": thief.pk, "role": "owner", "created_at_0": "2020-01-01", "created_at_1": "00:00"},
    )
    row.refresh_from_db()
    assert row.user == org.created_by and row.created_at.year >= now.year
    client_of_admin.post(
        reverse("admin:accounts_membership_add"),
        {
            "user": thief.pk,
            "organisation": org.pk,
            "role": "owner",
            "created_at_0": "2020-01-01",
            "created_at_1": "0:00",
        },
    )
    assert Membership.objects.get(user=thief).created_at.year >= now.year


def test_every_administrator_sees_who_becomes_one(client_of_admin: Client, watcher: User) -> None:
    accomplice = person("accomplice")
    url = reverse("admin:accounts_user_change", args=[accomplice.pk])
    fields = {"full_name": "A", "language": "en", "timezone": "UTC", "is_active": "on"}
    fields |= {"memberships-TOTAL_FORMS": "0", "memberships-INITIAL_FORMS": "0"}
    page = client_of_admin.post(url, fields)
    assert page.status_code == 302, page.context["adminform"].form.errors
    assert not Message.objects.filter(event="payouts_need_attention").exists(), "a name is nobody's business"
    assert client_of_admin.post(url, fields | {"is_staff": "on", "is_superuser": "on"}).status_code == 302
    mail = Message.objects.get(event="payouts_need_attention", to=watcher.email)
    assert "who administers was changed" in mail.subject
