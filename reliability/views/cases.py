"""Support: one's cases, a new one, and one with its messages."""

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gpunex.accounts.models import Organisation
from gpunex.kit.refusals import Refusal
from reliability import cases
from reliability.forms import CaseForm, MessageForm, initial_of
from reliability.models import Case

CASES_A_PAGE = MESSAGES_A_PAGE = 20
STATES = {Case.State.OPEN: "busy", Case.State.ANSWERED: "ok", Case.State.CLOSED: "idle"}


@require_safe
def case_list(request: HttpRequest) -> HttpResponse:
    found = (
        Case.objects.filter(organisation=_organisation(request))
        .annotate(count=Count("messages"))
        .order_by("-changed_at", "-pk")
    )
    page = Paginator(found, CASES_A_PAGE).get_page(request.GET.get("page"))
    rows = [{"case": case, "shade": STATES[Case.State(case.state)]} for case in page]
    return render(request, "reliability/cases.html", {"nav": "support", "page": page, "rows": rows})


@require_http_methods(["GET", "HEAD", "POST"])
def new_case(request: HttpRequest) -> HttpResponse:
    organisation = _organisation(request)
    form = CaseForm(request.POST) if request.method == "POST" else CaseForm(initial=initial_of(request.GET))
    if form.is_bound and form.is_valid():
        typed = form.cleaned_data
        try:
            case = cases.open_case(
                organisation=organisation,
                by=request.user,
                kind=typed["kind"],
                subject=typed["subject"],
                reference=typed["reference"],
                text=typed["text"],
                at=timezone.now(),
            )
        except Refusal as refusal:
            form.add_error(None, str(refusal))
        else:
            messages.success(request, _("We have your message. The answer comes by mail and stands here."))
            return redirect(case)
    context = {"nav": "support", "form": form, "most": cases.MOST_CHARACTERS}
    return render(request, "reliability/case_new.html", context, status=422 if form.is_bound else 200)


@require_safe
def case(request: HttpRequest, public_id: UUID) -> HttpResponse:
    return _case(request, _own(request, public_id), MessageForm())


@require_POST
def write(request: HttpRequest, public_id: UUID) -> HttpResponse:
    found, form = _own(request, public_id), MessageForm(request.POST)
    if form.is_valid():
        try:
            cases.write(case=found, by=request.user, text=form.cleaned_data["text"], at=timezone.now())
        except Refusal as refusal:
            form.add_error(None, str(refusal))
        else:
            messages.success(request, _("Sent. The answer comes by mail and stands here."))
            return redirect(found)
    return _case(request, found, form, status=422)


@require_POST
def close(request: HttpRequest, public_id: UUID) -> HttpResponse:
    found = cases.close(case=_own(request, public_id), at=timezone.now())
    messages.success(request, _("The case is closed. It can still be read here."))
    return redirect(found)


def _case(request: HttpRequest, found: Case, form: MessageForm, status: int = 200) -> HttpResponse:
    """The newest messages first, so that the answer is at hand."""
    page = Paginator(found.messages.select_related("author").order_by("-at", "-pk"), MESSAGES_A_PAGE).get_page(
        request.GET.get("page")
    )
    context: dict[str, Any] = {
        "nav": "support",
        "case": found,
        "shade": STATES[Case.State(found.state)],
        "page": page,
        "form": form,
    }
    return render(request, "reliability/case.html", context, status=status)


def _own(request: HttpRequest, public_id: UUID) -> Case:
    """A case of the organisation that the person acts for; of others nobody learns that it exists."""
    return get_object_or_404(Case, public_id=public_id, organisation=_organisation(request))


def _organisation(request: HttpRequest) -> Organisation:
    if not request.organisation:
        raise PermissionDenied
    return request.organisation
