"""The payout queue with what to do next, each payout's attempts, and an off-cycle payout for one provider."""

from typing import Any
from uuid import UUID, uuid4

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Case, Value, When
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from billing import metering
from gpunex.accounts.models import Organisation
from gpunex.kit import show
from gpunex.kit.conflicts import retrying
from gpunex.kit.money import parse_usdc
from gpunex.kit.refusals import Refusal
from gpunex.kit.registers import ReadOnlyInline
from gpunex.policy.models import Policy
from payouts import approvals, methods, review, runs
from payouts.admin.pause import TellingPauseAdmin
from payouts.bank.transfers import may_still_pay
from payouts.models import Attempt, BankFile, BankTransfer, Payout, PayoutRun, Rail
from payouts.usdc import explorer_link

State = Payout.State


class ReasonForm(forms.Form):
    reason = forms.CharField(
        label=_lazy("Reason"),
        max_length=300,
        widget=UnfoldAdminTextareaWidget({"rows": 2}),
        help_text=_lazy("Kept with the change."),
    )


class ApproveForm(forms.Form):
    """Nothing to fill in: the yes is the button."""


class OffCycleForm(ReasonForm):
    amount = forms.CharField(
        label=_lazy("Amount, USDC"),
        required=False,
        widget=UnfoldAdminTextInputWidget({"inputmode": "decimal"}),
        help_text=_lazy("Empty for everything that is payable."),
    )
    key = forms.UUIDField(required=False, widget=forms.HiddenInput)  # a form that is sent twice pays once

    def clean_amount(self) -> int | None:
        text = self.cleaned_data["amount"].strip()
        if not text:
            return None
        try:
            return parse_usdc(text)
        except Refusal as refusal:
            raise forms.ValidationError(str(refusal)) from refusal


class AttemptInline(ReadOnlyInline):
    model = Attempt
    fields = [
        "number",
        "signature",
        "signed_at",
        "sends",
        "sent_at",
        "last_valid_block_height",
        "dead",
        "landed_slot",
        "fee_lamports",
        "evidence",
    ]


class BankTransferInline(ReadOnlyInline):
    model = BankTransfer
    fields = [
        "end_to_end_id",
        "amount",
        "rate",
        "state",
        "bank_reason",
        "file",
        "trace_number",
        "settled_at",
    ]
    readonly_fields = fields

    @display(description=_lazy("amount"))
    def amount(self, transfer: BankTransfer) -> str:
        return transfer.amount


@admin.register(Payout)
class PayoutAdmin(TellingPauseAdmin):
    """The queue: what needs a person on top, then what is under way, then what is over."""

    list_display = [
        "public_id",
        "organisation",
        "shown_state",
        "why",
        "amount",
        "destination",
        "kind",
        "reserved_at",
        "finished_at",
    ]
    list_filter = ["state", "rail", "run__kind", "reserved_at"]
    search_fields = [
        "=public_id",
        "organisation__name",
        "=destination",
        "=attempts__signature",
        "=bank_transfer__end_to_end_id",
        "=statement_sha256",
    ]
    list_select_related = ["organisation", "run"]
    inlines = [AttemptInline, BankTransferInline]
    exclude = ["amount_micro"]
    readonly_fields = ["amount"]
    change_form_outer_before_template = "admin/decision.html"

    def get_ordering(self, request: HttpRequest) -> Any:
        order = [State.REVIEW, State.RESERVED, State.APPROVED, State.SIGNED, State.EXPORTED]
        return [
            Case(
                *(When(state=state, then=Value(place)) for place, state in enumerate(order)), default=Value(len(order))
            ),
            "-pk",
        ]

    @display(
        description=_lazy("state"),
        label={
            State.REVIEW: "danger",
            State.RESERVED: "warning",
            State.APPROVED: "info",
            State.SIGNED: "info",
            State.EXPORTED: "info",
            State.PAID: "success",
            State.FAILED: "danger",
            State.RETURNED: "danger",
        },
    )
    def shown_state(self, payout: Payout) -> tuple[str, str]:
        return payout.state, payout.state_text

    @display(description=_lazy("why"))
    def why(self, payout: Payout) -> str:
        return payout.reason_text

    @display(description=_lazy("amount, USDC"), ordering="amount_micro")
    def amount(self, payout: Payout) -> str:
        return show.usdc(payout.amount_micro, fine=True)

    @display(description=_lazy("run"))
    def kind(self, payout: Payout) -> str:
        return str(payout.run)

    # What can be done with one payout

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        payout = self.get_object(request, object_id)
        sent, status = None, 200
        form: forms.Form = ApproveForm()
        if request.method == "POST" and payout is not None:
            if not request.user.has_perm("payouts.change_payout"):
                raise PermissionDenied
            sent = request.POST.get("decision", "")
            form = (ApproveForm if sent == "approve" else ReasonForm)(request.POST)
            if form.is_valid():
                try:
                    retrying(self._carry_out)(sent, payout, form, request)
                except Refusal as refusal:
                    form.add_error(None, str(refusal))
                else:
                    messages.success(request, _("Recorded."))
                    return redirect("admin:payouts_payout_change", payout.pk)
            status = 422
            request.method = "GET"  # shown again as a page: of the row itself nothing is edited here
        context = dict(extra_context or {})
        if payout is not None and request.user.has_perm("payouts.change_payout"):
            context |= {"note": self._next(payout), "decisions": self._decisions(payout)}
            for decision in context["decisions"]:
                if decision["name"] == sent:
                    decision["form"] = form
        response = super().change_view(request, object_id, form_url, context)
        response.status_code = status if response.status_code == 200 else response.status_code
        return response

    def _carry_out(self, decision: str, payout: Payout, form: forms.Form, request: HttpRequest) -> None:
        at, by = timezone.now(), request.user
        if decision == "approve":
            approvals.approve(payout=payout, by=by, at=at)
            self.log_change(request, payout, _("Approved"))
            return
        reason = form.cleaned_data["reason"]
        if decision == "resume":
            review.resume(payout=payout, by=by, reason=reason, at=at)
            self.log_change(request, payout, _("Let go on: %(reason)s") % {"reason": reason})
        elif decision == "take_back":
            review.take_back(payout=payout, by=by, reason=reason, at=at)
            self.log_change(request, payout, _("Taken back: %(reason)s") % {"reason": reason})

    def _next(self, payout: Payout) -> str:
        """What to do next, in a sentence or two."""
        words = {
            State.RESERVED: self._while_reserved,
            State.REVIEW: self._while_held,
            State.APPROVED: self._while_approved,
            State.SIGNED: self._while_signed,
            State.EXPORTED: self._while_exported,
        }
        say = words.get(State(payout.state))
        sentences = [say(payout)] if say else []
        if payout.state in Payout.OPEN_STATES and payout.rail == Rail.USDC and Policy.load().payouts_paused:
            sentences.append(
                _("Payouts are paused: nothing is signed or sent until the switch in the policy is off again.")
            )
        return " ".join(sentences)

    def _while_reserved(self, payout: Payout) -> str:
        return _("Two administrators approve it before it leaves. Approvals so far: %(given)s.") % {
            "given": ", ".join(user.email for user in payout.approved_by.all()) or _("none")
        }

    def _while_held(self, payout: Payout) -> str:
        if payout.state_reason == Payout.Reason.ACCOUNT_CLOSED:
            return _(
                "Held: we paid once for opening this wallet’s account, and its owner closed it and has the rent. "
                "Ask the provider before you let it go on, which pays the rent again; or return the money."
            )
        return _("Held: %(reason)s. Look its signatures up on chain before you let it go on.") % {
            "reason": payout.reason_text
        }

    def _while_approved(self, payout: Payout) -> str:
        if approvals.waits(payout.run):
            return _("Its run waits for two administrators: see the page of the run.")
        file = BankFile.objects.filter(transfers__payout=payout).first()
        if file is not None:
            return _("It is in the file %(file)s: download that, hand it to the bank, and record it there.") % {
                "file": file
            }
        if payout.rail != Rail.USDC:
            return _(
                "It goes into the file of its run. Make the file on %(day)s or later, and hand it to the bank."
            ) % {"day": show.day_text(payout.run.execute_on)}
        return _("Signed and sent by the next sweep on %(day)s or later, if the treasury holds enough for its run.") % {
            "day": show.day_text(payout.run.execute_on)
        }

    def _while_signed(self, payout: Payout) -> str:
        attempt = payout.last_attempt
        return _("Sent; waiting for the chain. Nothing to do. %(link)s") % {
            "link": explorer_link(attempt.signature) if attempt else ""
        }

    def _while_exported(self, payout: Payout) -> str:
        return _("With the bank. Import its answer when it comes; nothing else moves this payout on.")

    def _decisions(self, payout: Payout) -> list[dict[str, Any]]:
        decisions: list[dict[str, Any]] = []
        if payout.state == State.RESERVED:
            decisions.append(
                {"name": "approve", "title": _("Approve"), "form": ApproveForm(), "submit": _("Approve this payout")}
            )
        if payout.state == State.REVIEW:
            decisions.append(
                {"name": "resume", "title": _("Let it go on"), "form": ReasonForm(), "submit": _("Let it go on")}
            )
        if (
            payout.state in (State.RESERVED, State.APPROVED, State.REVIEW)
            and not payout.attempts.filter(dead=False).exists()
            and not may_still_pay(payout)
        ):
            returned = payout.run.kind == PayoutRun.Kind.RETURN
            submit = _("Return the money to the balance") if returned else _("Return the money to the earnings")
            decisions.append({"name": "take_back", "title": _("Take it back"), "form": ReasonForm(), "submit": submit})
        return decisions

    # An off-cycle payout

    def get_urls(self) -> list[URLPattern]:
        own = path(
            "off-cycle/<uuid:organisation_id>/",
            self.admin_site.admin_view(self.off_cycle),
            name="payouts_payout_off_cycle",
        )
        return [own, *super().get_urls()]

    def off_cycle(self, request: HttpRequest, organisation_id: UUID) -> HttpResponse:
        """Pay one provider now: a reason, and an amount if not everything."""
        if not request.user.has_perm("payouts.add_payout"):
            raise PermissionDenied
        organisation = get_object_or_404(Organisation, public_id=organisation_id)
        at = timezone.now()
        form = OffCycleForm(request.POST or None, initial={"key": uuid4()})
        if request.method == "POST" and form.is_valid():
            try:
                payout = retrying(runs.pay_off_cycle)(
                    organisation=organisation,
                    by=request.user,
                    reason=form.cleaned_data["reason"],
                    amount_micro=form.cleaned_data["amount"],
                    key=str(form.cleaned_data["key"] or ""),
                    at=at,
                )
            except Refusal as refusal:
                form.add_error(None, str(refusal))
            else:
                self.log_addition(request, payout, _("Off-cycle: %(reason)s") % {"reason": form.cleaned_data["reason"]})
                messages.success(
                    request,
                    _("%(amount)s USDC are set aside and on their way.") % {"amount": show.usdc(payout.amount_micro)},
                )
                return redirect("admin:payouts_payout_change", payout.pk)
        earning, method = metering.earning(organisation, at=at), methods.active_method(organisation, at)
        title = _("Off-cycle payout to %(organisation)s") % {"organisation": organisation}
        context = self.admin_site.each_context(request) | {
            "title": title,
            "opts": self.model._meta,
            "note": _("Payable: %(payable)s USDC, and %(accruing)s accruing. Paid to: %(address)s.")
            % {
                "payable": show.usdc(earning.posted_micro, fine=True),
                "accruing": show.usdc(earning.accruing_micro, fine=True),
                "address": method.shown if method else _("no destination is in force"),
            },
            "decisions": [{"title": title, "form": form, "submit": _("Pay now")}],
        }
        return TemplateResponse(request, "admin/payouts/off_cycle.html", context, status=422 if form.errors else 200)
