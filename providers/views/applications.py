"""Roles, and the way to becoming a provider: the form, its summary, and the application's own page."""

from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.cache import patch_vary_headers
from django.utils.dates import WEEKDAYS
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gpunex.accounts.models import Membership, Organisation
from gpunex.kit import show
from gpunex.kit.refusals import Refusal
from gpunex.kit.time import zone_names
from gpunex.policy.models import Policy, Tier, TierPolicy
from marketplace.models import Rental
from providers import applications
from providers.forms import ApplicationForm, form_token, posted
from providers.models import Application, Machine
from providers.places import country_name
from providers.requirements import TierFit, entries_that_meet, facts_of, fits
from providers.weeks import minutes_of_week

State = Application.State
STATES = {
    State.DRAFT: "idle",
    State.SUBMITTED: "info",
    State.NEEDS_INFO: "warn",
    State.APPROVED: "ok",
    State.REJECTED: "bad",
    State.WITHDRAWN: "idle",
}


@login_not_required
@require_safe
def roles(request: HttpRequest) -> HttpResponse:
    """What each role can do, its state for this person, and the next step as one button."""
    organisation = request.organisation if request.user.is_authenticated else None
    provider = getattr(organisation, "provider", None) if organisation else None
    latest = _latest(organisation)
    keeps = sorted(10_000 - policy.fee_bps for policy in TierPolicy.objects.all())
    return render(
        request,
        "providers/roles.html",
        {
            "nav": "roles",
            "provider": provider,
            "application": latest,
            "state": STATES[State(latest.state)] if latest else "idle",
            "steps": _role_steps(provider, latest),
            "running": Rental.objects.filter(organisation__pk=organisation.pk).open().count() if organisation else 0,
            "keeps": [f"{keep / 100:g}" for keep in keeps],
            "policy": Policy.load(),
        },
    )


@require_http_methods(["GET", "HEAD", "POST"])
def apply(request: HttpRequest) -> HttpResponse:
    """The form. Every button posts the whole page: one more entry, one less, hours to start from, keep, check, or go on."""
    organisation, at = _applicant(request), timezone.now()
    application = Application.objects.filter(organisation=organisation).open().first()
    if application and application.state == State.SUBMITTED:
        return redirect(application)
    if request.method != "POST":
        return _form_page(request, _start(request, organisation, application), application)

    token = form_token(request.POST.get("form_token"))
    application = applications.open_application(organisation=organisation, form_token=token, by=request.user, at=at)
    if application.state not in (State.DRAFT, State.NEEDS_INFO):
        return redirect(application)  # sent already, by an earlier press of the same page
    form = ApplicationForm(posted(request.POST), asked=application.state == State.NEEDS_INFO)
    if "add" in request.POST:
        form = form.with_entry()
    elif "remove" in request.POST:
        form = form.without_entry(request.POST["remove"])
    elif "preset" in request.POST:
        key, _colon, preset = request.POST["preset"].partition(":")
        form = form.with_hours(key, preset)
    application = applications.save_draft(application=application, typed=form.typed, by=request.user, at=at)
    if "save" in request.POST:
        messages.success(request, _("The draft is kept. Nothing was sent."))
        return redirect("providers:roles")
    if {"add", "remove", "preset", "check"} & request.POST.keys():
        return _form_page(request, form, application)
    form = form.checked()
    if form.is_valid():
        return redirect("providers:application_review", application.public_id)
    return _form_page(request, form, application, status=422)


@require_http_methods(["GET", "HEAD", "POST"])
def review(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """Everything once more before it is sent; the button on it sends."""
    application = _own(request, public_id)
    if application.state not in (State.DRAFT, State.NEEDS_INFO):
        return redirect(application)
    form = ApplicationForm.of(application, asked=application.state == State.NEEDS_INFO).checked()
    if not form.is_valid():
        return _form_page(request, form, application, status=422)
    refusal = ""
    if request.method == "POST":
        try:
            _send(application, form, request, timezone.now())
        except Refusal as caught:
            refusal = str(caught)
        else:
            return redirect(application)
    facts, answers = form.facts(), form.answers()
    return render(
        request,
        "providers/application_review.html",
        {
            "nav": "roles",
            "application": application,
            "answers": answers,
            "entries": [_entry_in_words(entry) for entry in answers.entries],
            "commitment": Application.Commitment(answers.commitment_months).label,
            "answer": form.contact.cleaned_data.get("answer", ""),
            "fits": fits(facts),
            "policy": Policy.load(),
            "refusal": refusal,
        },
        status=422 if refusal else 200,
    )


@require_safe
def application(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """The application as it stands: where it is, what was asked, what was sent, and everything that happened to it."""
    found = _own(request, public_id)
    if found.state == State.DRAFT:
        return redirect("providers:apply")
    events = list(found.events.select_related("actor"))
    question = next((event for event in reversed(events) if event.to_state == State.NEEDS_INFO), None)
    return render(
        request,
        "providers/application.html",
        {
            "nav": "roles",
            "application": found,
            "state": STATES[State(found.state)],
            "steps": _timeline(found),
            "question": question if found.state == State.NEEDS_INFO else None,
            "reason": next((event.message for event in reversed(events) if event.to_state == found.state), ""),
            "events": [
                {"event": event, "state": STATES[State(event.to_state)], "by": _who(event, request)} for event in events
            ],
            "entries": [_entry_in_words(entry) for entry in found.entries.select_related("gpu_model")],
            "fits": fits(facts_of(found)),
            "fee": f"{TierPolicy.of(found.tier).fee_bps / 100:g}" if found.tier else "",
            "open": found.state in Application.OPEN_STATES,
        },
    )


@require_POST
def withdraw(request: HttpRequest, public_id: UUID) -> HttpResponse:
    found = _own(request, public_id)
    was_draft = found.state == State.DRAFT
    try:
        applications.withdraw(application=found, by=request.user, at=timezone.now())
    except Refusal as refusal:
        messages.error(request, str(refusal))
        return redirect(found)
    messages.success(request, _("The draft is discarded.") if was_draft else _("The application is withdrawn."))
    return redirect("providers:roles") if was_draft else redirect(found)


def _applicant(request: HttpRequest) -> Organisation:
    """The organisation the person acts for, if they may speak for it."""
    organisation = request.organisation
    speaks = (Membership.Role.OWNER, Membership.Role.MEMBER)
    if (
        not organisation
        or not Membership.objects.filter(user=request.user, organisation=organisation, role__in=speaks).exists()
    ):
        raise PermissionDenied
    return Organisation.objects.get(pk=organisation.pk)


def _own(request: HttpRequest, public_id: UUID) -> Application:
    """An application of the organisation the person acts for; anyone else's is not there."""
    return get_object_or_404(
        Application.objects.select_related("organisation", "decided_by"),
        public_id=public_id,
        organisation=_applicant(request),
    )


def _latest(organisation: Organisation | None) -> Application | None:
    if not organisation:
        return None
    mine = Application.objects.filter(organisation=organisation)
    return mine.open().first() or mine.order_by("-created_at", "-pk").first()


def _start(request: HttpRequest, organisation: Organisation, current: Application | None) -> ApplicationForm:
    """The draft; else the last application's answers where it came to nothing; else what the account knows."""
    if current:
        return ApplicationForm.of(current, asked=current.state == State.NEEDS_INFO)
    last = Application.objects.filter(organisation=organisation).order_by("-created_at", "-pk").first()
    if last and last.state in (State.REJECTED, State.WITHDRAWN):
        return ApplicationForm.of(last)
    if last:
        return ApplicationForm.empty(full_name=last.full_name, email=last.email)
    return ApplicationForm.empty(full_name=request.user.full_name, email=request.user.email)


def _send(application: Application, form: ApplicationForm, request: HttpRequest, at: datetime) -> None:
    if application.state == State.NEEDS_INFO:
        message = form.contact.cleaned_data["answer"]
        applications.resubmit(application=application, answers=form.answers(), message=message, by=request.user, at=at)
        messages.success(request, _("Your answer is sent. A person reads it."))
    else:
        applications.submit(application=application, answers=form.answers(), by=request.user, at=at)
        messages.success(request, _("Your application is sent. A person reads it."))


def _form_page(
    request: HttpRequest, form: ApplicationForm, application: Application | None, *, status: int = 200
) -> HttpResponse:
    asked = application is not None and application.state == State.NEEDS_INFO
    facts = form.checked().facts()
    context = {
        "nav": "roles",
        "form": form,
        "application": application,
        "form_token": application.form_token if application else uuid4(),
        "question": application.events.filter(to_state=State.NEEDS_INFO).last() if asked and application else None,
        "fits": fits(facts),
        "hint": _enterprise_hint(len(facts.entries), fits(facts)[1], entries_that_meet(facts, Tier.ENTERPRISE)),
        "policy": Policy.load(),
        "zones": zone_names(),
        "presets": [("nights", _("Nights")), ("weekends", _("Weekends")), ("clear", _("Clear"))],
    }
    # The check beside the form asks for itself alone; every other button swaps a piece of the whole page.
    template = (
        "providers/apply.html#fit"
        if "check" in request.POST and request.headers.get("HX-Request")
        else "providers/apply.html"
    )
    response = render(request, template, context, status=status)
    patch_vary_headers(response, ["HX-Request"])
    return response


def _enterprise_hint(entries: int, enterprise: TierFit, able: list[int]) -> str:
    """Where some entries alone would do for enterprise and all together do not."""
    if not able or len(able) == entries or not enterprise.missed:
        return ""
    return ngettext(
        "Entry %(numbers)s alone meets every enterprise requirement. Send it now and the rest later, or send all as community.",
        "Entries %(numbers)s alone meet every enterprise requirement. Send them now and the rest later, or send all as community.",
        len(able),
    ) % {"numbers": _(", ").join(map(str, able))}


def _entry_in_words(entry: Any) -> dict[str, Any]:
    """An entry (stored or just answered) for the summary."""
    return {
        "entry": entry,
        "model": entry.gpu_model.name if entry.gpu_model else entry.other_model,
        "other": entry.gpu_model is None,
        "place": _(", ").join(part for part in (entry.city, country_name(entry.country)) if part),
        "hours": None if entry.always_available else minutes_of_week(entry.windows) // 60,
        "days": [] if entry.always_available else _days(entry.windows),
    }


def _days(windows: list[Any]) -> list[dict[str, str]]:
    found: dict[int, list[str]] = {}
    for day, start, end in sorted(windows):
        found.setdefault(day, []).append(f"{start}–{end}")
    return [{"name": str(WEEKDAYS[day]), "hours": _(", ").join(spans)} for day, spans in found.items()]


def _who(event: Any, request: HttpRequest) -> str:
    """The applicant's side by name; the platform's side as the platform."""
    if event.actor is None or (event.actor.is_staff and event.actor != request.user):
        return "GPUnex"
    return event.actor.get_full_name()


def _timeline(found: Application) -> list[dict[str, Any]]:
    sent = {"state": "done", "title": _("Sent"), "when": show.moment(found.submitted_at) if found.submitted_at else ""}
    if found.state == State.WITHDRAWN:
        last = found.events.last()
        return [
            *([sent] if found.submitted_at else []),
            {"state": "done", "title": _("Withdrawn"), "when": show.moment(last.at) if last else ""},
        ]
    if found.state == State.NEEDS_INFO:
        return [
            sent,
            {"state": "now", "title": _("Your answer"), "note": _("the review waits for it")},
            {"state": "later", "title": _("Review"), "note": _review_note()},
            {"state": "later", "title": _("Decision")},
        ]
    if found.state == State.SUBMITTED:
        return [
            sent,
            {"state": "now", "title": _("Review"), "note": _review_note()},
            {
                "state": "later",
                "title": _("Decision"),
                "when": _("by %(when)s") % {"when": show.moment(found.due_at)} if found.due_at else "",
            },
            {"state": "later", "title": _("Install the agent"), "note": _("one line, about 5 minutes")},
        ]
    decided = show.moment(found.decided_at) if found.decided_at else ""
    if found.state == State.REJECTED:
        return [sent, {"state": "failed", "title": _("Not accepted"), "when": decided}]
    connected = Machine.objects.filter(entry__application=found).exists()
    return [
        sent,
        {"state": "done", "title": _("Approved"), "when": decided},
        {
            "state": "done" if connected else "now",
            "title": _("Install the agent"),
            "note": _("one line, about 5 minutes"),
        },
        {
            "state": "now" if connected else "later",
            "title": _("Benchmarks, then your price"),
            "note": _("benchmarks start by themselves"),
        },
    ]


def _role_steps(provider: Any, latest: Application | None) -> list[dict[str, Any]]:
    """The way to the first offer, for someone who is not there yet."""
    if provider is not None and Machine.objects.filter(provider=provider).exists():
        return []
    reached = {
        None: 0,
        State.DRAFT: 0,
        State.REJECTED: 0,
        State.WITHDRAWN: 0,
        State.NEEDS_INFO: 1,
        State.SUBMITTED: 1,
        State.APPROVED: 2,
    }
    now = 2 if provider else reached[State(latest.state) if latest else None]
    titles = [
        (_("Application"), _("about 4 minutes; what you type is kept")),
        (_("Review"), _review_note()),
        (_("Install the agent"), _("one line, about 5 minutes")),
        (_("Benchmarks, then your price"), _("benchmarks start by themselves")),
    ]
    return [
        {"state": "done" if place < now else "now" if place == now else "later", "title": title, "note": note}
        for place, (title, note) in enumerate(titles)
    ]


def _review_note() -> str:
    policy = Policy.load()
    return _("%(least)s to %(most)s business days, by a person") % {
        "least": policy.review_days_least,
        "most": policy.review_days_most,
    }
