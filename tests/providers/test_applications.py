"""The rules of applying: transitions, deadlines, decisions, mails, and two admins at once."""

import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.db import connection

from gpunex.accounts.models import Notice
from gpunex.kit import show
from gpunex.kit.secrets import decrypt, digest
from gpunex.outbox.models import Message
from gpunex.policy.models import Policy, Tier, TierPolicy
from providers import applications
from providers.applications import (
    AlreadyDecided,
    AnswerMissing,
    BelowTier,
    EnterpriseNeedsUps,
    MessageMissing,
    NoEntries,
    TooManyEntries,
    WrongState,
)
from providers.models import Application, EnrolmentKey, GpuModel, Provider
from providers.weeks import NotAWindow, WindowsOverlap
from tests.providers.applying import answers, entry, organisation_of, person, submitted

FRIDAY = datetime(2026, 10, 16, 9, 30, tzinfo=UTC)


@pytest.fixture
def yusuf(db, now):
    return person("Yusuf", at=now)


@pytest.fixture
def admin(db, now):
    return person("Ada", staff=True, at=now)


def mail_of(event: str) -> tuple[Message, dict]:
    message = Message.objects.get(event=event)
    return message, decrypt(message.body)


@pytest.mark.spec("A6")
def test_submitting_sets_the_deadline_in_business_days_and_writes_history_and_mail(yusuf):
    application = submitted(yusuf, at=FRIDAY)
    assert application.state == "submitted"
    assert application.due_at == datetime(2026, 10, 21, 9, 30, tzinfo=UTC), "Monday, Tuesday, Wednesday"
    event = application.events.get()
    assert (event.from_state, event.to_state, event.actor) == ("draft", "submitted", yusuf)
    message, body = mail_of("application_submitted")
    assert message.to == yusuf.email
    assert message.subject == "Application received: 2 × H100 80GB"
    assert show.moment(application.due_at) in body["text"]
    assert Notice.objects.get().organisation == organisation_of(yusuf)


@pytest.mark.spec("A6")
def test_the_review_days_are_read_from_the_policy(yusuf):
    Policy.objects.filter(pk=1).update(review_days_most=1)
    assert submitted(yusuf, at=FRIDAY).due_at == FRIDAY + timedelta(days=3)


def test_overdue_is_what_waits_past_its_deadline(yusuf):
    application = submitted(yusuf, at=FRIDAY)
    assert list(Application.objects.overdue(application.due_at)) == []
    assert list(Application.objects.overdue(application.due_at + timedelta(seconds=1))) == [application]


def test_submitting_twice_sends_once(yusuf, now):
    first = submitted(yusuf, at=now)
    again = applications.submit(application=first, answers=answers(company="Other"), by=yusuf, at=now)
    assert again.pk == first.pk
    assert again.company == ""
    assert Application.objects.count() == Message.objects.count() == 1


def test_an_organisation_has_one_open_application(yusuf, now):
    first = submitted(yusuf, at=now)
    again = applications.open_application(organisation=organisation_of(yusuf), by=yusuf, at=now)
    assert again.pk == first.pk


@pytest.mark.parametrize(
    ("entries", "refusal"),
    [
        (lambda: [], NoEntries),
        (lambda: [entry()] * 51, TooManyEntries),
        (lambda: [entry(always_available=False, windows=[[0, "09:00", "09:00"]])], NotAWindow),
        (
            lambda: [entry(always_available=False, windows=[[0, "09:00", "12:00"], [0, "11:00", "13:00"]])],
            WindowsOverlap,
        ),
    ],
)
def test_answers_that_cannot_be_are_refused_and_nothing_is_written(yusuf, now, entries, refusal):
    draft = applications.open_application(organisation=organisation_of(yusuf), by=yusuf, at=now)
    with pytest.raises(refusal):
        applications.submit(application=draft, answers=answers(entries=entries()), by=yusuf, at=now)
    draft.refresh_from_db()
    assert draft.state == "draft"
    assert not draft.entries.exists()
    assert not Message.objects.exists()


@pytest.mark.spec("A7")
def test_asking_answering_and_approving_is_a_history_with_a_mail_each(yusuf, admin):
    application = submitted(yusuf, at=FRIDAY)
    applications.ask(application=application, message="Which UPS is it?", by=admin, at=FRIDAY + timedelta(hours=1))
    _message, body = mail_of("application_needs_info")
    assert "Which UPS is it?" in body["text"]
    application = applications.resubmit(
        application=application,
        answers=answers(company="Darwish GmbH"),
        message="An APC.",
        by=yusuf,
        at=FRIDAY + timedelta(days=3),
    )
    assert (application.state, application.company) == ("submitted", "Darwish GmbH")
    assert application.due_at == datetime(2026, 10, 22, 9, 30, tzinfo=UTC), "the three days begin anew"
    application = applications.approve(
        application=application, tier=Tier.ENTERPRISE, by=admin, at=FRIDAY + timedelta(days=4)
    )
    assert [event.to_state for event in application.events.all()] == [
        "submitted",
        "needs_info",
        "submitted",
        "approved",
    ]
    assert [event.message for event in application.events.all()] == ["", "Which UPS is it?", "An APC.", ""]
    assert Message.objects.count() == 4
    provider = Provider.objects.get(organisation=application.organisation)
    assert (provider.tier, provider.commitment_months) == ("enterprise", 6)


def test_an_answer_and_a_message_are_needed(yusuf, admin, now):
    application = submitted(yusuf, at=now)
    for decide in (applications.ask, applications.reject):
        with pytest.raises(MessageMissing):
            decide(application=application, message="  ", by=admin, at=now)
    applications.ask(application=application, message="Which?", by=admin, at=now)
    with pytest.raises(AnswerMissing):
        applications.resubmit(application=application, answers=answers(), message=" ", by=yusuf, at=now)


@pytest.mark.spec("A8")
def test_approval_mails_the_install_line_and_a_token_that_is_stored_as_a_hash_only(yusuf, admin, now, settings):
    application = applications.approve(
        application=submitted(yusuf, at=now), tier=Tier.COMMUNITY, message="Welcome, neighbour.", by=admin, at=now
    )
    key = EnrolmentKey.objects.get()
    _message, body = mail_of("application_approved_community")
    token = next(word for word in body["text"].split() if word.startswith("gpxe_"))
    assert key.hash == digest(token)
    assert key.application == application
    assert key.expires_at == now + timedelta(days=7)
    assert f"curl -fsSL {settings.PUBLIC_URL}/agent | bash" in body["text"]
    assert "The platform keeps 10 % of what renters pay; you keep 90 %." in body["text"]
    assert token in body["html"]
    assert "Welcome, neighbour." in body["text"]
    with connection.cursor() as cursor:
        for table in ("providers_enrolmentkey", "accounts_notice", "outbox_message", "providers_applicationevent"):
            cursor.execute(f"SELECT count(*) FROM {table} t WHERE t::text LIKE %s", [f"%{token}%"])
            assert cursor.fetchone() == (0,), f"{table} holds the token in clear text"


@pytest.mark.spec("A6", "A8", "J1")
def test_every_mail_speaks_the_applicants_language(admin, now):
    yusuf = person("Yusuf", language="ar", at=now)
    application = submitted(yusuf, at=now)
    applications.ask(application=application, message="ما هو مصدر الطاقة؟", by=admin, at=now)
    applications.resubmit(application=application, answers=answers(), message="APC", by=yusuf, at=now)
    applications.approve(application=application, tier=Tier.COMMUNITY, by=admin, at=now)
    for message in Message.objects.all():
        body = decrypt(message.body)
        assert 'dir="rtl"' in body["html"]
        assert 'lang="ar"' in body["html"]
    assert "ما هو مصدر الطاقة؟" in mail_of("application_needs_info")[1]["text"]


@pytest.mark.spec("A5", "A7", "E1")
def test_enterprise_without_ups_is_refused_even_with_a_reason(yusuf, admin, now):
    application = submitted(yusuf, ups=False, at=now)
    with pytest.raises(EnterpriseNeedsUps):
        applications.approve(application=application, tier=Tier.ENTERPRISE, overrule="trust me", by=admin, at=now)
    application.refresh_from_db()
    assert application.state == "submitted"
    assert not Provider.objects.exists()
    assert not EnrolmentKey.objects.exists()


@pytest.mark.spec("A7", "E1", "K")
def test_a_missed_requirement_is_named_and_can_be_overruled_with_a_reason(yusuf, admin, now):
    slow = entry(upload_gbps=Decimal("0.5"))
    application = submitted(yusuf, entries=[slow], at=now)
    with pytest.raises(BelowTier) as refusal:
        applications.approve(application=application, tier=Tier.ENTERPRISE, by=admin, at=now)
    assert "Internet: 1 Gbps each way" in str(refusal.value)
    application = applications.approve(
        application=application, tier=Tier.ENTERPRISE, overrule="A second line is coming.", by=admin, at=now
    )
    assert application.events.last().overruled == "A second line is coming."
    _message, body = mail_of("application_approved_enterprise")
    assert "A second line" not in body["text"]


@pytest.mark.spec("E3", "K")
def test_the_floor_is_the_one_an_admin_set(yusuf, admin, now):
    TierPolicy.objects.filter(tier=Tier.ENTERPRISE).update(network_mbps=20_000)
    application = submitted(yusuf, at=now)
    with pytest.raises(BelowTier) as refusal:
        applications.approve(application=application, tier=Tier.ENTERPRISE, by=admin, at=now)
    assert "Internet: 20 Gbps each way" in str(refusal.value)


@pytest.mark.spec("A4", "E2")
def test_a_model_outside_the_catalogue_is_for_a_person_to_judge(yusuf, admin, now):
    application = submitted(yusuf, entries=[entry(gpu_model=None, other_model="RTX 5090 32GB")], at=now)
    assert applications.approve(application=application, tier=Tier.COMMUNITY, by=admin, at=now).state == "approved"


def test_withdrawing_ends_it_and_frees_the_way_for_another(yusuf, now):
    application = submitted(yusuf, at=now)
    applications.withdraw(application=application, by=yusuf, at=now)
    assert mail_of("application_withdrawn")[0].to == yusuf.email
    assert submitted(yusuf, at=now).pk != application.pk


def test_a_discarded_draft_is_history_without_a_mail(yusuf, now):
    draft = applications.open_application(organisation=organisation_of(yusuf), by=yusuf, at=now)
    applications.withdraw(application=draft, by=yusuf, at=now)
    assert draft.events.get().to_state == "withdrawn"
    assert not Message.objects.exists()


@pytest.mark.parametrize("state", Application.State.values)
def test_no_step_leads_anywhere_the_table_does_not(yusuf, admin, now, state):
    application = submitted(yusuf, at=now)
    Application.objects.filter(pk=application.pk).update(state=state, tier="community" if state == "approved" else "")
    steps = {
        "needs_info": lambda: applications.ask(application=application, message="?", by=admin, at=now),
        "rejected": lambda: applications.reject(application=application, message="no", by=admin, at=now),
        "approved": lambda: applications.approve(application=application, tier="community", by=admin, at=now),
    }
    for target, step in steps.items():
        if target not in applications.TRANSITIONS[state]:
            with pytest.raises(WrongState):
                step()
    application.refresh_from_db()
    assert application.state == state


def test_further_hardware_goes_through_the_same_review(yusuf, admin, now):
    applications.approve(application=submitted(yusuf, at=now), tier=Tier.COMMUNITY, by=admin, at=now)
    second = submitted(yusuf, entries=[entry(gpu_model=GpuModel.objects.get(slug="l4-24gb"))], at=now)
    applications.approve(application=second, tier=Tier.ENTERPRISE, by=admin, at=now + timedelta(days=1))
    provider = Provider.objects.get()
    assert (provider.tier, provider.approved_at) == ("enterprise", now)
    assert EnrolmentKey.objects.count() == 2


@pytest.mark.spec("A7")
@pytest.mark.usefixtures("committed")
def test_of_two_admins_at_once_one_decides_and_the_other_is_told_by_whom(now):
    yusuf = person("Yusuf", at=now)
    admins = [person(name, staff=True, at=now) for name in ("Ada", "Grace")]
    application = submitted(yusuf, at=now)
    barrier, outcomes = threading.Barrier(2), {}

    def decide(admin, step):
        barrier.wait()
        try:
            step()
            outcomes[admin.full_name] = "done"
        except AlreadyDecided as refusal:
            outcomes[admin.full_name] = str(refusal)
        finally:
            connection.close()

    ada, grace = admins
    threads = [
        threading.Thread(
            target=decide,
            args=(ada, lambda: applications.approve(application=application, tier="community", by=ada, at=now)),
        ),
        threading.Thread(
            target=decide,
            args=(grace, lambda: applications.reject(application=application, message="no", by=grace, at=now)),
        ),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winner = next(name for name, outcome in outcomes.items() if outcome == "done")
    loser = next(name for name in outcomes if name != winner)
    assert outcomes[loser].startswith(f"{winner} decided this application at ")
    application.refresh_from_db()
    assert application.decided_by.full_name == winner
    assert application.events.exclude(to_state="submitted").count() == 1
    assert EnrolmentKey.objects.count() == (1 if winner == "Ada" else 0)


@pytest.mark.spec("A6")
@pytest.mark.usefixtures("committed")
def test_two_presses_at_once_open_one_application(now):
    yusuf = person("Yusuf", at=now)
    organisation = organisation_of(yusuf)
    barrier, found = threading.Barrier(2), []

    def press():
        barrier.wait()
        try:
            found.append(applications.open_application(organisation=organisation, by=yusuf, at=now).pk)
        finally:
            connection.close()

    threads = [threading.Thread(target=press) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert len(set(found)) == 1
