"""The platform's side over HTTP: queue, decisions with their refusals, and who gets in."""

import re
from datetime import timedelta
from html import unescape

import pytest
from allauth.mfa.models import Authenticator
from django.contrib import admin as django_admin
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from gpunex.outbox import mail
from gpunex.policy.models import TierPolicy
from providers import applications
from providers.models import Application, EnrolmentKey, GpuModel, Provider
from tests.providers.applying import organisation_of, person, submitted
from tests.signin import confirm

QUEUE = "/admin/providers/application/"


@pytest.fixture
def yusuf(db, now):
    return person("Yusuf", at=now)


@pytest.fixture
def ada(db, now):
    return person("Ada", staff=True, at=now)


@pytest.fixture
def desk(ada):
    client = Client()
    client.force_login(ada)
    return client


def text_of(response) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", response.content.decode())))


def page_of(application) -> str:
    return reverse("admin:providers_application_change", args=[application.pk])


@pytest.mark.spec("A6", "A7")
def test_the_queue_has_the_one_due_first_on_top_and_marks_what_is_overdue(desk, yusuf, now):
    late = submitted(yusuf, at=now - timedelta(days=9))
    fresh = submitted(person("Noor", at=now), company="Noor Ltd", at=now)
    done = submitted(person("Omar", at=now), company="Omar Ltd", at=now - timedelta(days=20))
    applications.withdraw(application=done, by=done.created_by, at=now)
    page = desk.get(QUEUE)
    assert page.status_code == 200
    places = [page.content.decode().index(page_of(application)) for application in (late, fresh, done)]
    assert places == sorted(places)
    assert "overdue, " in text_of(page)
    only_late = desk.get(QUEUE, {"overdue": "yes"}).content.decode()
    assert page_of(late) in only_late
    assert page_of(fresh) not in only_late


@pytest.mark.parametrize(
    "query", [{"model": "h100-80gb"}, {"model": "other"}, {"country": "DE"}, {"state": "submitted"}, {"q": "yusuf"}]
)
def test_the_queue_is_filtered(desk, yusuf, now, query):
    application = submitted(yusuf, at=now)
    page = desk.get(QUEUE, query)
    assert page.status_code == 200
    assert (page_of(application) in page.content.decode()) == (query != {"model": "other"})


@pytest.mark.spec("A7", "E1")
def test_one_page_has_the_answers_the_checks_and_the_history(desk, yusuf, now):
    application = submitted(yusuf, ups=False, maintenance_notes="<script>alert(1)</script>", at=now)
    page = desk.get(page_of(application))
    assert page.status_code == 200
    words = text_of(page)
    for expected in (
        "H100 80GB",
        "Berlin, Germany",
        "not met: UPS",
        "met: Commitment of 6 months or more",
        "Record the decision",
    ):
        assert expected in words
    assert "<script>alert(1)" not in page.content.decode()


@pytest.mark.spec("A7", "A8")
def test_an_admin_approves_with_a_tier(desk, yusuf, now):
    application = submitted(yusuf, at=now)
    done = desk.post(page_of(application), {"decision": "approve", "tier": "enterprise"})
    assert done.headers["Location"] == reverse("admin:providers_application_changelist")
    application.refresh_from_db()
    assert (application.state, application.tier, application.decided_by.full_name) == ("approved", "enterprise", "Ada")
    assert EnrolmentKey.objects.get().provider == Provider.objects.get(organisation=organisation_of(yusuf))


@pytest.mark.parametrize(
    ("posted", "says"),
    [
        ({}, "Choose a decision."),
        ({"decision": "approve"}, "Choose the tier."),
        ({"decision": "approve", "tier": "gold"}, "Select a valid choice"),
        ({"decision": "approve", "tier": "enterprise"}, "requires a UPS"),
        ({"decision": "ask", "message": " "}, "Write what the applicant is told."),
        ({"decision": "reject"}, "Write what the applicant is told."),
    ],
)
def test_a_decision_that_is_none_is_refused_on_the_page(desk, yusuf, now, posted, says):
    application = submitted(yusuf, ups=False, at=now)
    refused = desk.post(page_of(application), posted)
    assert refused.status_code == 422
    assert says in text_of(refused)
    application.refresh_from_db()
    assert application.state == "submitted"


@pytest.mark.spec("A7")
def test_the_second_admin_is_told_who_decided(desk, yusuf, now):
    application = submitted(yusuf, at=now)
    other = Client()
    other.force_login(person("Grace", staff=True, at=now))
    other.post(page_of(application), {"decision": "reject", "message": "No."})
    late = desk.post(page_of(application), {"decision": "approve", "tier": "community"})
    assert late.status_code == 422
    application.refresh_from_db()
    assert application.state == "rejected"


@pytest.mark.spec("A4", "K")
def test_numbers_and_catalogue_are_edited_and_the_history_has_both_values(desk, db):
    community = TierPolicy.of("community")
    page = reverse("admin:policy_tierpolicy_change", args=[community.pk])
    values = {
        field.name: getattr(community, field.name)
        for field in TierPolicy._meta.fields
        if field.name not in ("id", "tier")
    }
    values = {name: value for name, value in values.items() if value is not False} | {"fee_bps": 900}
    assert desk.post(page, values).status_code == 302
    community.refresh_from_db()
    assert community.fee_bps == 900
    assert "1000 → 900" in LogEntry.objects.get().get_change_message()
    assert desk.get("/admin/policy/policy/", follow=True).status_code == 200
    added = {
        "slug": "b200-180gb",
        "name": "B200 180GB",
        "vram_gib": 180,
        "klass": "datacenter",
        "position": 5,
        "active": "on",
    }
    assert desk.post(reverse("admin:providers_gpumodel_add"), added).status_code == 302
    assert GpuModel.objects.filter(name="B200 180GB").exists()


@pytest.mark.parametrize("model", django_admin.site._registry, ids=lambda model: model._meta.label)
def test_every_list_of_the_admin_opens(desk, yusuf, ada, now, model):
    applications.approve(application=submitted(yusuf, at=now), tier="community", by=ada, at=now)
    assert (
        desk.get(reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"), follow=True).status_code
        == 200
    )
    row = model._default_manager.first()
    if row is not None:
        page = desk.get(
            reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_change", args=[row.pk]), follow=True
        )
        assert page.status_code == 200


def test_neither_hashes_nor_bodies_are_shown(desk, yusuf, ada, now):
    applications.approve(application=submitted(yusuf, at=now), tier="community", by=ada, at=now)
    key = EnrolmentKey.objects.get()
    page = desk.get(reverse("admin:providers_enrolmentkey_change", args=[key.pk])).content.decode()
    assert key.prefix in page
    assert key.hash not in page
    message = mail.Message.objects.first()
    page = desk.get(reverse("admin:outbox_message_change", args=[message.pk])).content.decode()
    assert message.subject in page
    assert bytes(message.body).decode() not in page


def test_there_is_no_way_to_edit_an_applications_state_by_hand(desk, yusuf, now):
    application = submitted(yusuf, at=now)
    desk.post(page_of(application), {"state": "approved", "tier": "enterprise", "_save": "Save"})
    application.refresh_from_db()
    assert application.state == "submitted"
    assert (
        desk.post(reverse("admin:providers_application_delete", args=[application.pk]), {"post": "yes"}).status_code
        == 403
    )


def test_staff_sign_in_by_the_same_door_and_for_others_there_is_no_administration(db, yusuf):
    stranger = Client()
    for page in ("/admin/", "/admin/login/", QUEUE):
        assert stranger.get(page).headers["Location"].startswith(reverse("account_login") + "?next=")
    stranger.force_login(yusuf)
    for page in ("/admin/", "/admin/login/", QUEUE):
        assert stranger.get(page).status_code == 404


def test_outside_embedded_mode_staff_need_a_second_factor(desk, ada, settings):
    settings.EMBEDDED = False
    assert desk.get("/admin/").headers["Location"] == reverse("mfa_index")
    Authenticator.objects.create(user=ada, type=Authenticator.Type.TOTP, data={"secret": "x"})
    assert desk.get("/admin/").headers["Location"].startswith(reverse("mfa_reauthenticate"))
    confirm(desk, ada, method="mfa")
    assert desk.get("/admin/").status_code == 200


def test_staff_without_the_right_look_and_do_not_decide(yusuf, now):
    reader = person("Reader", at=now)
    reader.is_staff = True
    reader.save()
    from django.contrib.auth.models import Permission

    reader.user_permissions.add(Permission.objects.get(codename="view_application"))
    client = Client()
    client.force_login(reader)
    application = submitted(yusuf, at=now)
    assert "Record the decision" not in text_of(client.get(page_of(application)))
    assert client.post(page_of(application), {"decision": "reject", "message": "No."}).status_code == 403
    assert Application.objects.get().state == "submitted"
