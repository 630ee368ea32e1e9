"""Support: what people ask, what our team answers, and who is told."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from gpunex.accounts.models import Membership, Notice, User
from gpunex.accounts.organisations import open_personal
from gpunex.outbox.models import Message
from reliability import cases, incidents
from reliability.models import Case, Incident
from tests.hosts import Host, approved, connected, person

pytestmark = pytest.mark.django_db
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


@pytest.fixture
def owner(now: datetime) -> User:
    user = person("owner")
    open_personal(user=user, at=now)
    return user


@pytest.fixture
def door(owner: User, client: Client) -> Client:
    client.force_login(owner, backend="django.contrib.auth.backends.ModelBackend")
    return client


def organisation(user: User) -> Any:
    return user.organisations.get()


def opened(user: User, at: datetime, **fields: Any) -> Case:
    values: dict[str, Any] = {"kind": "other", "subject": "A question", "text": "How does it work?"} | fields
    return cases.open_case(organisation=organisation(user), by=user, at=at, **values)


def test_a_person_asks_is_answered_by_mail_asks_on_and_closes(owner: User, now: datetime) -> None:
    staff = person("staff", is_staff=True)
    case = opened(owner, now)
    assert Message.objects.get(event="case_opened").to == staff.email
    cases.write(case=case, by=owner, text="One thing more", at=now + MINUTE)
    assert Message.objects.filter(event="case_opened").count() == 1
    cases.answer(case=case, by=staff, text="Like this:\n  so", at=now + 2 * MINUTE)
    case.refresh_from_db()
    assert case.state == "answered"
    assert Message.objects.get(event="case_answered").to == owner.email
    assert Notice.objects.get(event="case_answered").data["text"] == "Like this:\n  so"
    cases.write(case=case, by=owner, text="Thanks, but", at=now + 3 * MINUTE)
    case.refresh_from_db()
    assert (case.state, case.changed_at) == ("open", now + 3 * MINUTE)
    cases.close(case=case, at=now + 4 * MINUTE)
    with pytest.raises(cases.CaseClosed):
        cases.write(case=case, by=owner, text="Hello?", at=now + 5 * MINUTE)


def test_who_opened_it_is_told_also_if_no_owner(owner: User, now: datetime) -> None:
    member = person("member", language="ar")
    Membership.objects.create(user=member, organisation=organisation(owner), role="member")
    case = cases.open_case(organisation=organisation(owner), by=member, kind="other", subject="x", text="y", at=now)
    cases.answer(case=case, by=person("staff", is_staff=True), text="z", at=now)
    assert set(Message.objects.filter(event="case_answered").values_list("to", flat=True)) == {
        owner.email,
        member.email,
    }


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"text": " \r\n "}, cases.EmptyMessage),
        ({"subject": "  "}, cases.EmptyMessage),
        ({"text": "x" * 4001}, cases.MessageTooLong),
    ],
)
def test_what_says_nothing_or_too_much_is_refused(
    fields: dict[str, Any], refusal: type[Exception], owner: User, now: datetime
) -> None:
    with pytest.raises(refusal):
        opened(owner, now, **fields)
    assert not Case.objects.exists()


def test_ten_may_be_open_twenty_a_day_be_opened_and_twenty_messages_wait(owner: User, now: datetime) -> None:
    first = opened(owner, now)
    for _ in range(9):
        opened(owner, now)
    with pytest.raises(cases.TooManyCases):
        opened(owner, now)
    opened(person_with_organisation(now), now)  # others are not held up
    for _ in range(10):
        cases.close(case=Case.objects.filter(opened_by=owner, state="open").last(), at=now)  # type: ignore[arg-type]
        opened(owner, now)
    with pytest.raises(cases.TooManyCases):
        opened(owner, now)
    for _ in range(19):
        cases.write(case=first, by=owner, text="more", at=now)
    with pytest.raises(cases.TooManyMessages):
        cases.write(case=first, by=owner, text="more", at=now)
    cases.answer(case=first, by=person("staff", is_staff=True), text="Here", at=now)
    cases.write(case=first, by=owner, text="Thanks", at=now)


def person_with_organisation(now: datetime) -> User:
    user = person("other")
    open_personal(user=user, at=now)
    return user


# --- Appeals ---


def incident_of(host: Host, now: datetime) -> Incident:
    return incidents.record_incident(
        machine=host.machine, key="rental:1", cause="gpu_lost", at=now, reference=host.machine.public_id
    )


@pytest.mark.parametrize("by_key", [True, False])
def test_an_appeal_that_is_upheld_excuses_the_incident_with_the_answer(by_key: bool, now: datetime) -> None:
    host, staff = connected(approved(at=now), at=now), person("staff", is_staff=True)
    incident = incident_of(host, now)
    user = host.machine.provider.organisation.created_by
    case = opened(user, now, kind="incident", reference=incident.key if by_key else str(incident.reference))
    cases.uphold(case=case, by=staff, text="You are right: our own mistake.", at=now + MINUTE)
    incident.refresh_from_db()
    case.refresh_from_db()
    assert (incident.excused_by, incident.excused_reason) == (staff, "You are right: our own mistake.")
    assert case.state == "answered"
    with pytest.raises(cases.NothingToExcuse):
        cases.uphold(case=case, by=staff, text="Again", at=now + 2 * MINUTE)


def test_nobody_appeals_the_incident_of_another(owner: User, now: datetime) -> None:
    incident = incident_of(connected(approved(at=now), at=now), now)
    case = opened(owner, now, kind="incident", reference=incident.key)
    assert cases.incident_of(case) is None
    with pytest.raises(cases.NothingToExcuse):
        cases.uphold(case=case, by=person("staff", is_staff=True), text="Yes", at=now)
    assert case.messages.count() == 1


# --- Pages ---


def test_the_form_is_filled_in_by_the_page_that_links_to_it(door: Client) -> None:
    page = door.get(reverse("reliability:new_case"), {"about": "floor", "reference": "GPU-1 <b>"}).content.decode()
    assert 'value="floor" selected' in page
    assert "GPU-1 &lt;b&gt;" in page
    assert door.get(reverse("reliability:new_case"), {"about": "nonsense"}).status_code == 200


def test_a_case_is_opened_read_answered_and_closed_on_its_pages(door: Client, owner: User, now: datetime) -> None:
    typed = {"kind": "money", "subject": "<script>x</script>", "reference": "", "text": "<b>Where</b>\n\nis it?"}
    answer = door.post(reverse("reliability:new_case"), typed)
    case = Case.objects.get()
    assert answer.status_code == 302
    page = door.get(case.get_absolute_url()).content.decode()
    assert "&lt;b&gt;Where&lt;/b&gt;" in page
    assert "<script>x" not in page
    assert door.post(reverse("reliability:write_case", args=[case.public_id]), {"text": "More"}).status_code == 302
    assert case.messages.count() == 2
    assert door.post(reverse("reliability:close_case", args=[case.public_id])).status_code == 302
    refused = door.post(reverse("reliability:write_case", args=[case.public_id]), {"text": "Still here"})
    assert refused.status_code == 422
    assert "Support" in door.get(reverse("accounts:settings")).content.decode()


@pytest.mark.parametrize(
    "typed",
    [
        {"kind": "money", "subject": "", "text": "kept as typed"},
        {"kind": "nonsense", "subject": "kept as typed", "text": "x"},
        {"kind": "money", "subject": "kept as typed", "text": "x" * 4001},
    ],
)
def test_what_is_missing_is_said_and_what_was_typed_is_kept(typed: dict[str, str], door: Client) -> None:
    answer = door.post(reverse("reliability:new_case"), typed)
    assert answer.status_code == 422
    assert "kept as typed" in answer.content.decode()
    assert not Case.objects.exists()


def test_of_a_strangers_case_nobody_learns(door: Client, now: datetime) -> None:
    case = opened(person_with_organisation(now), now)
    for name in ("case", "write_case", "close_case"):
        address = reverse(f"reliability:{name}", args=[case.public_id])
        answer = door.get(address) if name == "case" else door.post(address, {"text": "x"})
        assert answer.status_code == 404, name
    assert case.messages.count() == 1
    assert "A question" not in door.get(reverse("reliability:cases")).content.decode()


def test_signing_in_comes_first_and_methods_are_kept(client: Client, door: Client, owner: User, now: datetime) -> None:
    assert Client().get(reverse("reliability:cases")).status_code == 302
    case = opened(owner, now)
    assert door.get(reverse("reliability:write_case", args=[case.public_id])).status_code == 405
    assert door.post(case.get_absolute_url()).status_code == 405


def test_lists_come_in_pages_and_cost_the_same_queries(
    door: Client, owner: User, now: datetime, django_assert_max_num_queries: Any
) -> None:
    for number in range(25):
        row = Case.objects.create(
            organisation=organisation(owner),
            opened_by=owner,
            kind="other",
            subject=f"Number {number}",
            changed_at=now + number * MINUTE,
        )
    with django_assert_max_num_queries(12):
        page = door.get(reverse("reliability:cases")).content.decode()
    assert "Number 24" in page
    assert "Number 4<" not in page
    for number in range(25):
        row.messages.create(author=owner, text=f"Said {number}.", at=now + number * MINUTE)
    with django_assert_max_num_queries(12):
        page = door.get(row.get_absolute_url()).content.decode()
    assert "Said 24." in page
    assert "Said 3." not in page
    assert "Said 3." in door.get(row.get_absolute_url(), {"page": 2}).content.decode()
