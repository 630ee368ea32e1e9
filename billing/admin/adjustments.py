"""Corrections by hand: one administrator asks, a second one decides. What waits is on top."""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Case, F, Value, When
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from unfold.admin import ModelAdmin
from unfold.decorators import display
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from billing import adjustments, ledger
from billing.ledger import Kind
from billing.models import Account, Adjustment, Meter, ProviderDebt, Transfer
from gpunex.accounts.models import Organisation, User
from gpunex.kit import show
from gpunex.kit.conflicts import retrying
from gpunex.kit.money import UsdcFormField
from gpunex.kit.refusals import Refusal
from gpunex.kit.registers import DecidingAdmin, Decision

State = Adjustment.State

OWNED = (Kind.RENTER_BALANCE, Kind.PROVIDER_PAYABLE)
ACCOUNTS = [
    (Kind.RENTER_BALANCE.value, _lazy("The balance of a renter")),
    (Kind.PROVIDER_PAYABLE.value, _lazy("The earnings of a provider")),
    (Kind.CREDITS.value, _lazy("The platform’s credits")),
    (Kind.FEE.value, _lazy("The platform’s fees")),
    (Kind.LOSS.value, _lazy("The platform’s losses")),
    (Kind.ADJUSTMENTS.value, _lazy("Adjustments")),
]


class ReasonForm(forms.Form):
    reason = forms.CharField(
        label=_lazy("Reason"),
        max_length=300,
        widget=UnfoldAdminTextareaWidget({"rows": 2}),
        help_text=_lazy("Kept with the transfer and shown to whoever’s money it moves."),
    )


class NoteForm(forms.Form):
    note = forms.CharField(
        label=_lazy("Why not"),
        max_length=300,
        widget=UnfoldAdminTextareaWidget({"rows": 2}),
        help_text=_lazy("Kept with the correction, for whoever asked."),
    )


class PlainForm(forms.Form):
    """Nothing to fill in: the yes is the button."""


class AmountForm(ReasonForm):
    amount = UsdcFormField(label=_lazy("Amount, USDC"), widget=UnfoldAdminTextInputWidget())
    field_order = ["amount", "reason"]

    def clean_amount(self) -> int:
        amount = cast("int", self.cleaned_data["amount"])
        if amount <= 0:
            raise forms.ValidationError(_("Enter an amount above zero."))
        return amount


class RefundForm(AmountForm):
    source = forms.ChoiceField(
        label=_lazy("Paid by"),
        choices=[
            ("earnings", _lazy("The provider, out of what is payable")),
            ("platform", _lazy("The platform, out of its credits")),
        ],
        widget=UnfoldAdminSelectWidget(),
    )
    field_order = ["amount", "source", "reason"]


class AskForm(AmountForm):
    """From one account to another; of a renter or provider by the sign-in address of a member, deposit address or public id."""

    debit = forms.ChoiceField(label=_lazy("From"), choices=ACCOUNTS, widget=UnfoldAdminSelectWidget())
    debit_owner = forms.CharField(
        label=_lazy("Whose, if a renter’s or provider’s"),
        required=False,
        widget=UnfoldAdminTextInputWidget({"dir": "ltr", "autocomplete": "off"}),
        help_text=_lazy("The email address of a member, the deposit address, or the organisation’s id."),
    )
    credit = forms.ChoiceField(label=_lazy("To"), choices=ACCOUNTS, widget=UnfoldAdminSelectWidget())
    credit_owner = forms.CharField(
        label=_lazy("Whose, if a renter’s or provider’s"),
        required=False,
        widget=UnfoldAdminTextInputWidget({"dir": "ltr", "autocomplete": "off"}),
        help_text=_lazy("The email address of a member, the deposit address, or the organisation’s id."),
    )
    field_order = ["debit", "debit_owner", "credit", "credit_owner", "amount", "reason"]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        for side in ("debit", "credit"):
            kind = cleaned.get(side)
            if kind not in OWNED:
                continue
            owner = _organisation(cleaned.get(f"{side}_owner", ""))
            if owner is None:
                self.add_error(f"{side}_owner", _("This names no organisation, or more than one."))
            cleaned[f"{side}_owner"] = owner
        return cleaned

    def account(self, side: str) -> Account:
        kind = Kind(self.cleaned_data[side])
        return ledger.account(kind, organisation=self.cleaned_data[f"{side}_owner"] if kind in OWNED else None)


def _organisation(text: str) -> Organisation | None:
    """The one that ``text`` names; None if none or several do."""
    text = text.strip()
    found = Organisation.objects.filter(deposit_address__owner=text) | Organisation.objects.filter(
        members__email__iexact=text
    )
    try:
        found |= Organisation.objects.filter(public_id=forms.UUIDField().clean(text))
    except forms.ValidationError:
        pass
    organisations = list(found.distinct()[:2]) if text else []
    return organisations[0] if len(organisations) == 1 else None


@admin.register(Adjustment)
class AdjustmentAdmin(DecidingAdmin):
    """What waits for a second administrator first."""

    list_display = [
        "asked_at",
        "shown_state",
        "kind",
        "amount",
        "debit",
        "credit",
        "reason",
        "asked_by",
        "decided_by",
    ]
    list_filter = ["state", "kind", "asked_at"]
    search_fields = ["=public_id", "reason", "debit__code", "credit__code", "=transfer__reference", "=debt__reference"]
    list_select_related = ["debit", "credit", "asked_by", "decided_by"]
    fields = [
        "public_id",
        "state",
        "kind",
        "amount",
        "debit",
        "credit",
        "reason",
        "meter",
        "reverses",
        "debt",
        "asked_by",
        "asked_at",
        "decided_by",
        "decided_at",
        "decision_note",
        "transfer",
    ]
    readonly_fields = ["public_id", "amount"]

    def get_ordering(self, request: HttpRequest) -> Any:
        return [Case(When(state=State.ASKED, then=Value(0)), default=Value(1)), F("pk").desc()]

    @display(
        description=_lazy("state"),
        label={State.ASKED: "warning", State.MADE: "success", State.REFUSED: "danger", State.WITHDRAWN: "info"},
    )
    def shown_state(self, adjustment: Adjustment) -> tuple[str, str]:
        return adjustment.state, adjustment.get_state_display()

    @display(description=_lazy("amount, USDC"), ordering="amount_micro")
    def amount(self, adjustment: Adjustment) -> str:
        return show.usdc(adjustment.amount_micro, fine=True)

    # Deciding

    def note(self, request: HttpRequest, row: Adjustment) -> str:
        if row.state != State.ASKED:
            return ""
        if row.asked_by_id == request.user.pk:
            return _("You asked for this. A second administrator has to make or refuse it; until then nothing moves.")
        return _("%(name)s asked for this. Nothing moves before you make it.") % {"name": row.asked_by.get_full_name()}

    def decisions(self, request: HttpRequest, row: Adjustment) -> Sequence[Decision]:
        if row.state != State.ASKED or not request.user.has_perm("billing.change_adjustment"):
            return []
        by, at = cast("User", request.user), timezone.now()

        def make(form: forms.Form) -> str:
            adjustments.make(adjustment=row, by=by, at=at)
            return _("Made: %(amount)s USDC moved.") % {"amount": show.usdc(row.amount_micro, fine=True)}

        def refuse(form: forms.Form) -> str:
            note = form.cleaned_data["note"]
            adjustments.refuse(adjustment=row, by=by, note=note, at=at)
            return _("Refused: %(note)s") % {"note": note}

        def withdraw(form: forms.Form) -> str:
            adjustments.withdraw(adjustment=row, by=by, at=at)
            return _("Withdrawn. Nothing was moved.")

        if row.asked_by_id == by.pk:
            return [Decision("withdraw", _("Withdraw it"), _("Withdraw"), PlainForm(), withdraw)]
        return [
            Decision("make", _("Make it"), _("Move the money now"), PlainForm(), make),
            Decision("refuse", _("Refuse it"), _("Refuse"), NoteForm(), refuse),
        ]

    # Asking

    def has_add_permission(self, request: HttpRequest) -> bool:
        return ModelAdmin.has_add_permission(self, request)

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Ask for money to be moved from one account to another."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = AskForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            try:
                asked = retrying(adjustments.ask)(
                    kind=Adjustment.Kind.ADJUSTMENT,
                    debit=form.account("debit"),
                    credit=form.account("credit"),
                    amount_micro=form.cleaned_data["amount"],
                    reason=form.cleaned_data["reason"],
                    by=cast("User", request.user),
                    at=timezone.now(),
                )
            except Refusal as refusal:
                form.add_error(None, str(refusal))
            else:
                self.log_addition(request, asked, _("Asked for: %(reason)s") % {"reason": asked.reason})
                messages.success(request, _("A second administrator has to make it now; nothing was moved yet."))
                return redirect("admin:billing_adjustment_change", asked.pk)
        title = _("Ask for a correction")
        context = self.admin_site.each_context(request) | {
            "title": title,
            "opts": self.model._meta,
            "note": _(
                "Refunds, reversals and write-offs are asked for on the page of the meter, the transfer or the debt. "
                "Whatever you ask for here moves only once a second administrator makes it."
            ),
            "decisions": [{"title": title, "form": form, "submit": _("Ask a second administrator")}],
        }
        return TemplateResponse(request, "admin/billing/ask.html", context, status=422 if form.errors else 200)


# --- asked for from the page of a meter, a transfer or a debt ---------------------------------------------------------


class AskingAdmin(DecidingAdmin):
    """Rows on whose page a correction can be asked for."""

    def asking(self, request: HttpRequest, ask: Any, **what: Any) -> str:
        """Ask, and keep that in the history of the correction too; returns what to say."""
        asked = ask(by=cast("User", request.user), at=timezone.now(), **what)
        self.log_addition(request, asked, _("Asked for: %(reason)s") % {"reason": asked.reason})
        return _("Asked for: %(kind)s of %(amount)s USDC (%(reason)s). A second administrator has to make it.") % {
            "kind": asked.get_kind_display(),
            "amount": show.usdc(asked.amount_micro, fine=True),
            "reason": asked.reason,
        }


def refund_of(page: AskingAdmin, request: HttpRequest, meter: Meter) -> list[Decision]:
    left = meter.billed_gross_micro - meter.refunded_micro
    if left <= 0 or not request.user.has_perm("billing.add_adjustment"):
        return []

    def ask(form: forms.Form) -> str:
        return page.asking(
            request,
            adjustments.ask_refund,
            meter=meter,
            amount_micro=form.cleaned_data["amount"],
            from_earnings=form.cleaned_data["source"] == "earnings",
            reason=form.cleaned_data["reason"],
        )

    title = _("Give some of it back (at most %(left)s USDC)") % {"left": show.usdc(left, fine=True)}
    return [Decision("refund", title, _("Ask for the refund"), RefundForm(), ask)]


def reversal_of(page: AskingAdmin, request: HttpRequest, transfer: Transfer) -> list[Decision]:
    if (
        transfer.kind not in adjustments.REVERSIBLE
        or hasattr(transfer, "reversed_by")
        or not request.user.has_perm("billing.add_adjustment")
    ):
        return []

    def ask(form: forms.Form) -> str:
        return page.asking(
            request, partial(adjustments.ask_reversal, transfer=transfer), reason=form.cleaned_data["reason"]
        )

    return [Decision("reverse", _("Reverse it"), _("Ask for the reversal"), ReasonForm(), ask)]


@admin.register(ProviderDebt)
class ProviderDebtAdmin(AskingAdmin):
    """What providers owe, the open ones first."""

    list_display = ["created_at", "shown_state", "organisation", "amount", "recovered", "still_open", "reference"]
    list_filter = ["state", "created_at"]
    search_fields = ["=public_id", "=reference", "organisation__name", "organisation__members__email"]
    list_select_related = ["organisation"]

    def get_ordering(self, request: HttpRequest) -> Any:
        return [F("closed_at").desc(nulls_first=True), F("pk").desc()]

    @display(
        description=_lazy("state"),
        label={
            ProviderDebt.State.OPEN: "warning",
            ProviderDebt.State.RECOVERED: "success",
            ProviderDebt.State.WRITTEN_OFF: "info",
        },
    )
    def shown_state(self, debt: ProviderDebt) -> tuple[str, str]:
        return debt.state, debt.get_state_display()

    @display(description=_lazy("amount, USDC"), ordering="amount_micro")
    def amount(self, debt: ProviderDebt) -> str:
        return show.usdc(debt.amount_micro, fine=True)

    @display(description=_lazy("recovered, USDC"), ordering="recovered_micro")
    def recovered(self, debt: ProviderDebt) -> str:
        return show.usdc(debt.recovered_micro, fine=True)

    @display(description=_lazy("open, USDC"))
    def still_open(self, debt: ProviderDebt) -> str:
        return show.usdc(debt.open_micro, fine=True)

    def decisions(self, request: HttpRequest, row: ProviderDebt) -> Sequence[Decision]:
        if not row.open_micro or not request.user.has_perm("billing.add_adjustment"):
            return []

        def ask(form: forms.Form) -> str:
            return self.asking(request, adjustments.ask_write_off, debt=row, reason=form.cleaned_data["reason"])

        title = _("Write off what is open (%(left)s USDC)") % {"left": show.usdc(row.open_micro, fine=True)}
        return [Decision("write_off", title, _("Ask for the write-off"), ReasonForm(), ask)]
