"""Applying to provide GPUs, from the draft to the decision.

    draft ──submit──▶ submitted ──approve──▶ approved
      │                │  ▲  │ └──reject───▶ rejected
      │               ask │  │                  ▲
      │                ▼  resubmit              │
      │            needs_info ──────reject──────┘
      └─────────withdraw (from draft, submitted, needs_info)──▶ withdrawn

An organisation has at most one open application; after a decision it may apply again, also for further hardware. Every
step locks the application, leaves an ApplicationEvent, and tells the applicant in the same transaction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import Organisation, User
from gpunex.accounts.notices import Event, notify
from gpunex.kit import show
from gpunex.kit.refusals import Refusal
from gpunex.kit.time import add_business_days, iso_z
from gpunex.policy.models import Policy, Tier, TierPolicy
from providers import notices
from providers.keys import make_token, token_expiry
from providers.models import Application, ApplicationEntry, ApplicationEvent, GpuModel, Provider
from providers.requirements import facts_of, fits
from providers.weeks import check_windows

State = Application.State
TRANSITIONS: dict[str, frozenset[str]] = {
    State.DRAFT: frozenset({State.SUBMITTED, State.WITHDRAWN}),
    State.SUBMITTED: frozenset({State.NEEDS_INFO, State.APPROVED, State.REJECTED, State.WITHDRAWN}),
    State.NEEDS_INFO: frozenset({State.SUBMITTED, State.REJECTED, State.WITHDRAWN}),
    State.APPROVED: frozenset(),
    State.REJECTED: frozenset(),
    State.WITHDRAWN: frozenset(),
}
MOST_ENTRIES = 50


class WrongState(Refusal):
    code = "wrong_state"
    message = _(
        "This application is now: %(state)s. What you asked for is not possible any more, and nothing was changed."
    )


class AlreadyDecided(Refusal):
    code = "already_decided"
    message = _("%(who)s decided this application at %(when)s: %(state)s. Your decision was not recorded.")


class NoEntries(Refusal):
    code = "no_entries"
    message = _("An application names at least one entry of GPUs.")


class TooManyEntries(Refusal):
    code = "too_many_entries"
    message = _("One application holds at most %(most)s entries. Put like GPUs of one site into one entry.")


class MessageMissing(Refusal):
    code = "message_missing"
    message = _("Write what the applicant is told.")


class AnswerMissing(Refusal):
    code = "answer_missing"
    message = _("Write an answer to the question.")


class EnterpriseNeedsUps(Refusal):
    code = "enterprise_needs_ups"
    message = _(
        "The enterprise tier requires a UPS, and this application names none. Ask about it, or approve as community."
    )


class BelowTier(Refusal):
    code = "below_tier"
    message = _(
        "This application misses requirements of the tier: %(missed)s. Give a reason to overrule them, or choose another tier."
    )


@dataclass(frozen=True)
class EntryAnswers:
    """One entry as answered. Windows as in ApplicationEntry; either ``gpu_model`` or ``other_model``."""

    quantity: int
    host_memory_gb: int
    download_gbps: Decimal
    upload_gbps: Decimal
    country: str
    gpu_model: GpuModel | None = None
    other_model: str = ""
    always_available: bool = True
    windows: list[Any] = field(default_factory=list)
    timezone: str = "UTC"
    city: str = ""
    datacenter_region: str = ""


@dataclass(frozen=True)
class Answers:
    """A whole application as answered."""

    full_name: str
    email: str
    entries: Sequence[EntryAnswers]
    company: str = ""
    ups: bool = False
    commitment_months: int = 3
    maintenance_notes: str = ""


@transaction.atomic
def open_application(
    *, organisation: Organisation, by: User, at: datetime, form_token: UUID | None = None
) -> Application:
    """The organisation's open application, or the one that this form made already, or a new draft.

    The organisation's row is locked, so that two presses of one button make one application.
    """
    Organisation.objects.select_for_update(no_key=True).get(pk=organisation.pk)
    mine = Application.objects.filter(organisation=organisation)
    found = mine.open().first() or (mine.filter(form_token=form_token).first() if form_token else None)
    if found is not None:
        return found
    chosen = (
        {"form_token": form_token}
        if form_token and not Application.objects.filter(form_token=form_token).exists()
        else {}
    )
    return Application.objects.create(organisation=organisation, created_by=by, created_at=at, **chosen)


@transaction.atomic
def save_draft(*, application: Application, typed: dict[str, list[str]], by: User, at: datetime) -> Application:
    """Keep what was typed, answers or not yet. Raises WrongState once the application is sent and nothing is asked."""
    application = _locked(application)
    if application.state not in (State.DRAFT, State.NEEDS_INFO):
        raise WrongState(state=application.get_state_display())
    application.draft, application.draft_saved_at = typed, at
    if application.state == State.DRAFT:
        application.full_name = _first(typed, "full_name", 120)
        application.company = _first(typed, "company", 120)
    application.save(update_fields=["draft", "draft_saved_at", "full_name", "company"])
    return application


@transaction.atomic
def submit(*, application: Application, answers: Answers, by: User, at: datetime) -> Application:
    """Send a draft to the review. Sent twice, it is sent once: the second call returns it as it is.

    Raises NoEntries, TooManyEntries, WrongState, and NotAWindow or WindowsOverlap for hours that are none.
    """
    application = _locked(application)
    if application.state == State.SUBMITTED:
        return application
    if application.state != State.DRAFT:
        raise WrongState(state=application.get_state_display())
    _write(application, answers)
    application.submitted_at = at
    return _into_review(application, event=notices.SUBMITTED, by=by, at=at, message="")


@transaction.atomic
def resubmit(*, application: Application, answers: Answers, message: str, by: User, at: datetime) -> Application:
    """Answer what was asked and go back into the review; the deadline starts anew. Raises as ``submit``, and AnswerMissing."""
    application = _locked(application)
    if application.state == State.SUBMITTED:
        return application
    if application.state != State.NEEDS_INFO:
        raise WrongState(state=application.get_state_display())
    if not message.strip():
        raise AnswerMissing
    _write(application, answers)
    return _into_review(application, event=notices.RESUBMITTED, by=by, at=at, message=message)


@transaction.atomic
def withdraw(*, application: Application, by: User, at: datetime) -> Application:
    """Take an open application back. A draft that nobody saw is discarded without a mail. Raises WrongState."""
    application = _locked(application)
    was = application.state
    if was == State.WITHDRAWN:
        return application
    _move(application, State.WITHDRAWN, by=by, at=at)
    if was != State.DRAFT:
        _tell(application, notices.WITHDRAWN, at=at)
    return application


@transaction.atomic
def ask(*, application: Application, message: str, by: User, at: datetime) -> Application:
    """Ask the applicant for more. Raises MessageMissing, AlreadyDecided, WrongState."""
    application = _locked(application, deciding=True)
    if not message.strip():
        raise MessageMissing
    _move(application, State.NEEDS_INFO, by=by, at=at, message=message)
    _tell(application, notices.NEEDS_INFO, at=at, data={"message": message.strip()})
    return application


@transaction.atomic
def reject(*, application: Application, message: str, by: User, at: datetime) -> Application:
    """Decline, with the reason. Raises MessageMissing, AlreadyDecided, WrongState."""
    application = _locked(application, deciding=True)
    if not message.strip():
        raise MessageMissing
    _decide(application, State.REJECTED, by=by, at=at, message=message)
    _tell(application, notices.REJECTED, at=at, data={"message": message.strip()})
    return application


@transaction.atomic
def approve(
    *, application: Application, tier: str, by: User, at: datetime, message: str = "", overrule: str = ""
) -> Application:
    """Approve in ``tier``: the organisation is a provider from now on, and its owners get the install line and a token.

    ``overrule`` is the reason for approving below the tier's requirements; a missing UPS cannot be overruled for
    enterprise. Two admins at once: the lock lets one through, the other gets AlreadyDecided, which names the first.
    Raises EnterpriseNeedsUps, BelowTier, AlreadyDecided, WrongState.
    """
    application = _locked(application, deciding=True)
    policy = TierPolicy.of(tier)
    if policy.ups_required and not application.ups:
        raise EnterpriseNeedsUps
    missed = next(fit.missed for fit in fits(facts_of(application)) if fit.tier == tier)
    if missed and not overrule.strip():
        raise BelowTier(missed="; ".join(check.text for check in missed))
    application.tier = tier
    _decide(application, State.APPROVED, by=by, at=at, message=message, overruled=overrule if missed else "")
    provider, _made = Provider.objects.update_or_create(
        organisation=application.organisation,
        defaults={"tier": tier, "commitment_months": application.commitment_months},
        create_defaults={"tier": tier, "commitment_months": application.commitment_months, "approved_at": at},
    )
    token = make_token(provider=provider, application=application, at=at)
    _tell(
        application,
        notices.APPROVED[Tier(tier)],
        at=at,
        data={
            "message": message.strip(),
            "fee": _percent(policy.fee_bps),
            "kept": _percent(10_000 - policy.fee_bps),
            "site": settings.PUBLIC_URL,
            "docker": Policy.load().docker_least,
            "toolkit": Policy.load().toolkit_least,
            "expires_at": iso_z(token_expiry(at=at)),
        },
        secret={"secret_token": token},
    )
    return application


def gpus_in_words(application: Application) -> str:
    """ "2 × H100 80GB, 4 × RTX 4090 24GB"."""
    return ", ".join(str(entry) for entry in application.entries.select_related("gpu_model"))


def _locked(application: Application, *, deciding: bool = False) -> Application:
    """The row as it is now, held until the transaction ends. A decision on a decided one is refused by name."""
    # Without joins: after a wait PostgreSQL re-reads the locked row only, so a joined decided_by would be the old one.
    application = Application.objects.select_for_update(no_key=True).get(pk=application.pk)
    if deciding and application.decided_at and application.decided_by:
        raise AlreadyDecided(
            who=application.decided_by.get_full_name(),
            when=show.moment(application.decided_at),
            state=application.get_state_display(),
        )
    return application


def _write(application: Application, answers: Answers) -> None:
    """The answers become the facts that are reviewed. Precondition: locked, and no machine is tied to an entry."""
    if not answers.entries:
        raise NoEntries
    if len(answers.entries) > MOST_ENTRIES:
        raise TooManyEntries(most=MOST_ENTRIES)
    for entry in answers.entries:
        check_windows(entry.windows)
    application.full_name = answers.full_name
    application.email = answers.email
    application.company = answers.company
    application.ups = answers.ups
    application.commitment_months = answers.commitment_months
    application.maintenance_notes = answers.maintenance_notes
    application.draft = application.draft_saved_at = None
    application.save()
    application.entries.all().delete()
    ApplicationEntry.objects.bulk_create(
        ApplicationEntry(
            application=application,
            position=position,
            gpu_model=entry.gpu_model,
            other_model="" if entry.gpu_model else entry.other_model,
            quantity=entry.quantity,
            host_memory_gb=entry.host_memory_gb,
            download_gbps=entry.download_gbps,
            upload_gbps=entry.upload_gbps,
            always_available=entry.always_available,
            windows=[] if entry.always_available else entry.windows,
            timezone=entry.timezone,
            country=entry.country,
            city=entry.city,
            datacenter_region=entry.datacenter_region,
        )
        for position, entry in enumerate(answers.entries)
    )


def _into_review(application: Application, *, event: Event, by: User, at: datetime, message: str) -> Application:
    application.due_at = add_business_days(at, Policy.load().review_days_most)
    _move(application, State.SUBMITTED, by=by, at=at, message=message)
    _tell(application, event, at=at, data={"due_at": iso_z(application.due_at)})
    return application


def _decide(application: Application, state: str, *, by: User, at: datetime, message: str, overruled: str = "") -> None:
    application.decided_at, application.decided_by = at, by
    _move(application, state, by=by, at=at, message=message, overruled=overruled)


def _move(
    application: Application, state: str, *, by: User, at: datetime, message: str = "", overruled: str = ""
) -> None:
    if state not in TRANSITIONS[application.state]:
        raise WrongState(state=application.get_state_display())
    ApplicationEvent.objects.create(
        application=application,
        at=at,
        actor=by,
        from_state=application.state,
        to_state=state,
        message=message.strip(),
        overruled=overruled.strip(),
    )
    application.state = state
    application.save()


def _tell(
    application: Application,
    event: Event,
    *,
    at: datetime,
    data: dict[str, Any] | None = None,
    secret: dict[str, str] | None = None,
) -> None:
    # The count of events numbers the steps: an application may be asked and answered more than once.
    step = application.events.count()
    notify(
        organisation=application.organisation,
        event=event,
        key=f"application:{application.public_id}:{step}",
        at=at,
        data={"application": str(application.public_id), "gpus": gpus_in_words(application)} | (data or {}),
        secret=secret,
    )


def _percent(bps: int) -> str:
    return show.cut(Decimal(bps) / 100, 0 if bps % 100 == 0 else 2)


def _first(typed: dict[str, list[str]], name: str, longest: int) -> str:
    return (typed.get(name) or [""])[0].replace("\0", "").strip()[:longest]
