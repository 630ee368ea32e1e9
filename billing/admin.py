"""The books for people: everything read-only and searchable; the one thing to do is to give an unmatched deposit to its owner."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from billing import deposits, ledger
from billing.models import Account, Deposit, DepositAddress, Meter, Transfer
from gpunex.accounts.models import Organisation
from gpunex.kit import show
from gpunex.kit.conflicts import retrying
from gpunex.kit.refusals import Refusal
from gpunex.kit.registers import ReadOnlyAdmin


@admin.register(Account)
class AccountAdmin(ReadOnlyAdmin):
    list_display = ["code", "kind", "organisation", "shown_balance", "materialised"]
    list_filter = ["kind", "materialised"]
    search_fields = ["code", "organisation__name", "organisation__members__email"]
    list_select_related = ["organisation"]

    @display(description=_lazy("balance, USDC"), ordering="balance_micro")
    def shown_balance(self, account: Account) -> str:
        return show.usdc(ledger.balance(account), fine=True)


@admin.register(Transfer)
class TransferAdmin(ReadOnlyAdmin):
    list_display = ["effective_at", "kind", "amount", "debit", "credit", "reference", "actor", "reason"]
    list_filter = ["kind", "effective_at"]
    search_fields = ["=reference", "=key", "debit__code", "credit__code", "reason"]
    list_select_related = ["debit", "credit", "actor"]
    ordering = ["-pk"]
    show_full_result_count = False

    @display(description=_lazy("amount, USDC"), ordering="amount_micro")
    def amount(self, transfer: Transfer) -> str:
        return show.usdc(transfer.amount_micro, fine=True)


@admin.register(Meter)
class MeterAdmin(ReadOnlyAdmin):
    list_display = [
        "public_id",
        "payer",
        "payee",
        "rate",
        "billed_seconds",
        "billed",
        "started_at",
        "funded_until",
        "ended_at",
        "closed",
    ]
    list_filter = ["closed", "started_at"]
    search_fields = ["=public_id", "=reference", "payer__name", "payee__name"]
    list_select_related = ["payer", "payee"]
    ordering = ["-pk"]

    @display(description=_lazy("USDC per hour"), ordering="rate_micro_per_hour")
    def rate(self, meter: Meter) -> str:
        return show.price(meter.rate_micro_per_hour)

    @display(description=_lazy("billed, USDC"), ordering="billed_gross_micro")
    def billed(self, meter: Meter) -> str:
        return show.usdc(meter.billed_gross_micro, fine=True)


@admin.register(DepositAddress)
class DepositAddressAdmin(ReadOnlyAdmin):
    list_display = ["owner", "organisation", "token_account", "scanned_at", "created_at"]
    search_fields = ["=owner", "=token_account", "organisation__name"]
    list_select_related = ["organisation"]


class GiveForm(forms.Form):
    """Whose money it is, by the deposit address or the sign-in address of an owner, and how we know."""

    owner = forms.CharField(
        label=_lazy("Owner"),
        widget=UnfoldAdminTextInputWidget(),
        help_text=_lazy("The organisation’s deposit address, or the email address of a member."),
    )
    reason = forms.CharField(label=_lazy("How we know"), max_length=300, widget=UnfoldAdminTextareaWidget({"rows": 2}))

    def clean_owner(self) -> Organisation:
        text = self.cleaned_data["owner"].strip()
        found = Organisation.objects.filter(deposit_address__owner=text) | Organisation.objects.filter(
            members__email__iexact=text
        )
        organisations = list(found.distinct()[:2])
        if len(organisations) != 1:
            raise forms.ValidationError(
                _("This names no organisation, or more than one. Use the organisation's deposit address.")
            )
        return organisations[0]


@admin.register(Deposit)
class DepositAdmin(ReadOnlyAdmin):
    """Deposits, the unmatched ones first."""

    list_display = ["seen_at", "shown_state", "organisation", "amount", "sender", "signature", "swept_at"]
    list_filter = ["state", "seen_at"]
    search_fields = ["=signature", "=sender", "=token_account", "organisation__name"]
    list_select_related = ["organisation"]
    change_form_outer_before_template = "admin/decision.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Deposit]:
        return super().get_queryset(request).order_by("-state", "-pk")  # "unmatched" before "credited"

    @display(description=_lazy("state"), label={Deposit.State.UNMATCHED: "warning", Deposit.State.CREDITED: "success"})
    def shown_state(self, deposit: Deposit) -> tuple[str, str]:
        return deposit.state, deposit.get_state_display()

    @display(description=_lazy("amount, USDC"), ordering="amount_micro")
    def amount(self, deposit: Deposit) -> str:
        return show.usdc(deposit.amount_micro, fine=True)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        deposit = self.get_object(request, object_id)
        form, status = GiveForm(), 200
        if request.method == "POST" and deposit is not None:
            if not request.user.has_perm("billing.change_deposit"):
                raise PermissionDenied
            form = GiveForm(request.POST)
            if form.is_valid():
                try:
                    retrying(deposits.give_unmatched)(
                        deposit=deposit,
                        organisation=form.cleaned_data["owner"],
                        by=request.user,
                        reason=form.cleaned_data["reason"],
                        at=timezone.now(),
                    )
                except Refusal as refusal:
                    form.add_error(None, str(refusal))
                else:
                    self.log_change(request, deposit, _("Given to %(owner)s") % {"owner": form.cleaned_data["owner"]})
                    messages.success(
                        request,
                        _("The deposit is on the balance of %(owner)s.") % {"owner": form.cleaned_data["owner"]},
                    )
                    return redirect("admin:billing_deposit_changelist")
            status = 422
            request.method = "GET"  # shown again as a page: of the row itself nothing is edited here
        context = dict(extra_context or {})
        if (
            deposit is not None
            and deposit.state == Deposit.State.UNMATCHED
            and request.user.has_perm("billing.change_deposit")
        ):
            context |= {
                "decisions": [{"title": _("Give it to its owner"), "form": form, "submit": _("Put it on the balance")}]
            }
        response = super().change_view(request, object_id, form_url, context)
        response.status_code = status if response.status_code == 200 else response.status_code
        return response
