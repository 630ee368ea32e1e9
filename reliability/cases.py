"""Cases: questions and appeals, from a person to our team and back. Also the product's contact and support channel.

    state     becomes            when
    --------  -----------------  ------------------------------
    open      answered           our team writes
              closed             either side closes it
    answered  open               the person writes
              closed             either side closes it
    closed    nothing            a new case refers to it

A message is never edited. The other side is told of it: the person's organisation by notice and mail, our team by one mail
for each new case; the queue in the administration shows what waits, the longest first.
"""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import translation
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import Organisation, User
from gpunex.accounts.notices import notify, recipients, render
from gpunex.kit.refusals import Refusal
from gpunex.outbox import mail
from reliability import incidents, notices
from reliability.models import Case, CaseMessage, Incident

State = Case.State

MOST_CHARACTERS = 4000
MOST_OPEN = 10  # cases of one organisation that are not closed
MOST_A_DAY = 20  # cases that it opens
MOST_UNANSWERED = 20  # messages in a row without an answer of ours


class EmptyMessage(Refusal):
    code = "empty"
    message = _("Write what it is about.")


class MessageTooLong(Refusal):
    code = "too_long"
    message = _("A message has at most %(most)s characters. Send the rest in a second one.")


class TooManyCases(Refusal):
    code = "too_many_cases"
    message = _("%(most)s cases are open already. Close one that is settled, or write in it.")


class TooManyMessages(Refusal):
    code = "too_many_messages"
    message = _("There are many messages without our answer. Please wait for it; we have all of them.")


class CaseClosed(Refusal):
    code = "case_closed"
    message = _("This case is closed. Open a new one and name this one in it.")


class NothingToExcuse(Refusal):
    code = "nothing_to_excuse"
    message = _("This case refers to no incident of this organisation that could be excused.")


@transaction.atomic
def open_case(
    *, organisation: Organisation, by: User, kind: str, subject: str, reference: str = "", text: str, at: datetime
) -> Case:
    """Raises EmptyMessage, MessageTooLong, TooManyCases."""
    text = _checked(text)
    subject = " ".join(subject.split())[:120]
    if not subject:
        raise EmptyMessage
    Organisation.objects.select_for_update(no_key=True).only("pk").get(pk=organisation.pk)
    mine = Case.objects.filter(organisation=organisation)
    if (
        mine.exclude(state=State.CLOSED).count() >= MOST_OPEN
        or mine.filter(opened_at__gt=at - timedelta(days=1)).count() >= MOST_A_DAY
    ):
        raise TooManyCases(most=MOST_OPEN)
    case = Case.objects.create(
        organisation=organisation,
        opened_by=by,
        kind=kind,
        subject=subject,
        reference=" ".join(reference.split())[:80],
        opened_at=at,
        changed_at=at,
    )
    CaseMessage.objects.create(case=case, author=by, text=text, at=at)
    _tell_team(case, at)
    return case


@transaction.atomic
def write(*, case: Case, by: User, text: str, at: datetime) -> CaseMessage:
    """The person's next message. Raises EmptyMessage, MessageTooLong, TooManyMessages, CaseClosed."""
    text = _checked(text)
    case = _open(case)
    last = case.messages.filter(from_staff=True).order_by("-at", "-pk").first()
    since = case.messages.filter(from_staff=False, pk__gt=last.pk if last else 0)
    if since.count() >= MOST_UNANSWERED:
        raise TooManyMessages
    message = CaseMessage.objects.create(case=case, author=by, text=text, at=at)
    if case.state != State.OPEN:
        case.state, case.changed_at = State.OPEN, at
        case.save(update_fields=["state", "changed_at"])
    return message


@transaction.atomic
def answer(*, case: Case, by: User, text: str, at: datetime) -> CaseMessage:
    """Our team's message, which goes to the person by mail. Raises EmptyMessage, MessageTooLong, CaseClosed."""
    text = _checked(text)
    case = _open(case)
    message = CaseMessage.objects.create(case=case, author=by, from_staff=True, text=text, at=at)
    case.state, case.changed_at = State.ANSWERED, at
    case.save(update_fields=["state", "changed_at"])
    _tell_person(case, message, at)
    return message


@transaction.atomic
def uphold(*, case: Case, by: User, text: str, at: datetime) -> Incident:
    """Excuse the incident that the case appeals, with the answer as the reason, and answer: the score follows.

    Raises NothingToExcuse, and what ``answer`` raises.
    """
    incident = incident_of(case)
    if incident is None or incident.excused_at is not None:
        raise NothingToExcuse
    excused = incidents.excuse(incident=incident, by=by, reason=_checked(text)[:300], at=at)
    answer(case=case, by=by, text=text, at=at)
    return excused


@transaction.atomic
def close(*, case: Case, at: datetime) -> Case:
    """By either side. Repeating it is harmless."""
    case = Case.objects.select_for_update(of=("self",)).get(pk=case.pk)
    if case.state != State.CLOSED:
        case.state, case.closed_at = State.CLOSED, at
        case.save(update_fields=["state", "closed_at"])
    return case


def incident_of(case: Case) -> Incident | None:
    """The incident that an appeal names, if it is one of this organisation's own machines."""
    if case.kind != Case.Kind.INCIDENT or not case.reference:
        return None
    own = Incident.objects.filter(machine__provider__organisation=case.organisation_id).select_related("machine")
    found = own.filter(key=case.reference).first()
    if found is None and (reference := _uuid(case.reference)) is not None:
        found = own.filter(reference=reference).first()
    return found


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _checked(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "").strip()
    if not text:
        raise EmptyMessage
    if len(text) > MOST_CHARACTERS:
        raise MessageTooLong(most=f"{MOST_CHARACTERS:,}")
    return text


def _open(case: Case) -> Case:
    """Precondition: in a transaction. Raises CaseClosed."""
    case = Case.objects.select_for_update(of=("self",)).select_related("organisation", "opened_by").get(pk=case.pk)
    if case.state == State.CLOSED:
        raise CaseClosed
    return case


def _tell_person(case: Case, message: CaseMessage, at: datetime) -> None:
    data: dict[str, Any] = {"case": str(case.public_id), "subject": case.subject, "text": message.text}
    key = f"case-answered:{case.public_id}:{message.pk}"
    notify(organisation=case.organisation, event=notices.CASE_ANSWERED, key=key, data=data, at=at)
    if case.opened_by.is_active and case.opened_by not in recipients(case.organisation):
        _mail(notices.CASE_ANSWERED, case.opened_by, key, data, at)


def _tell_team(case: Case, at: datetime) -> None:
    data = {"id": case.pk, "subject": case.subject, "organisation": case.organisation.name}
    for user in User.objects.filter(is_staff=True, is_active=True).order_by("pk"):
        _mail(notices.CASE_OPENED, user, f"case-opened:{case.public_id}", data, at)


def _mail(event: notices.Event, user: User, key: str, data: dict[str, Any], at: datetime) -> None:
    with translation.override(user.language):
        subject, text, html = render(event, data=data, secret={})
    mail.queue(key=f"{key}:{user.pk}", event=event.name, to=user.email, subject=subject, text=text, html=html, at=at)
