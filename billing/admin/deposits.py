"""Money that came in: addresses, deposits, requests, and what is none of ours to book.

Two things are to be done here: give an unmatched deposit to its owner, and deal with a payment in another token.
"""

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from billing import deposit_requests, deposits, strays
from billing.models import Deposit, DepositAddress, DepositRequest, StrayPayment
from gpunex.accounts.models import Organisation
from gpunex.chain import pay
from gpunex.kit import show
from gpunex.kit.conflicts import retrying
from gpunex.kit.refusals import Refusal
from gpunex.kit.registers import ReadOnlyAdmin
from payouts.models import PayoutMethod
from payouts.usdc import explorer_link

CANDIDATES = 10
# Around an unmatched deposit, how far a request of the same amount counts as a hint.
REQUESTED_WITHIN = timedelta(days=30)


def _transaction(signature: str) -> str | SafeString:
    link = explorer_link(signature)
    return format_html('<a href="{}" rel="noreferrer">{}</a>', link, signature) if link else signature


@admin.register(DepositAddress)
class DepositAddressAdmin(ReadOnlyAdmin):
    list_display = ["owner", "organisation", "token_account", "scanned_at", "strays_looked_at", "created_at"]
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


def _candidates(deposit: Deposit) -> list[tuple[str, Organisation, str]]:
    """Who the sender or the amount points to: why, whom, and the deposit address to enter above. A hint is no proof."""
    hints: list[tuple[str, Organisation]] = []
    if deposit.sender:
        before = Deposit.objects.filter(sender=deposit.sender, organisation__isnull=False)
        hints += [
            (_("sent from this wallet before"), row.organisation)
            for row in before.select_related("organisation").order_by("organisation_id").distinct("organisation_id")
            if row.organisation
        ]
        wallets = PayoutMethod.objects.filter(address=deposit.sender).select_related("organisation")
        hints += [
            (
                _("is paid to this wallet, whose key they proved to hold")
                if wallet.verified_at
                else _("is paid to this wallet"),
                wallet.organisation,
            )
            for wallet in wallets.order_by("organisation_id", "-pk").distinct("organisation_id")
        ]
    asked = DepositRequest.objects.filter(
        amount_micro=deposit.amount_micro,
        created_at__range=(deposit.seen_at - REQUESTED_WITHIN, deposit.seen_at),
        deposits=None,
    )
    hints += [
        (_("asked for exactly this amount on %(at)s") % {"at": show.moment(row.created_at)}, row.organisation)
        for row in asked.select_related("organisation").order_by("-created_at")[:CANDIDATES]
    ]
    addresses = dict(
        DepositAddress.objects.filter(organisation__in=[owner for _why, owner in hints]).values_list(
            "organisation_id", "owner"
        )
    )
    return [(why, owner, addresses.get(owner.pk, "–")) for why, owner in hints[:CANDIDATES]]


@admin.register(Deposit)
class DepositAdmin(ReadOnlyAdmin):
    """Deposits, the unmatched ones first, each with what helps to find its owner."""

    list_display = ["seen_at", "shown_state", "organisation", "amount", "sender", "signature", "swept_at"]
    list_filter = ["state", "seen_at"]
    search_fields = ["=signature", "=sender", "=token_account", "organisation__name"]
    list_select_related = ["organisation"]
    fields = [
        "state",
        "amount",
        "sender",
        "transaction",
        "memo",
        "slot",
        "block_at",
        "seen_at",
        "candidates",
        "organisation",
        "request",
        "token_account",
        "transfer",
        "swept_signature",
        "swept_at",
    ]
    readonly_fields = ["amount", "transaction", "memo", "block_at", "candidates"]
    change_form_outer_before_template = "admin/decision.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Deposit]:
        return super().get_queryset(request).order_by("-state", "-pk")  # "unmatched" before "credited"

    @display(description=_lazy("state"), label={Deposit.State.UNMATCHED: "warning", Deposit.State.CREDITED: "success"})
    def shown_state(self, deposit: Deposit) -> tuple[str, str]:
        return deposit.state, deposit.get_state_display()

    @display(description=_lazy("amount, USDC"), ordering="amount_micro")
    def amount(self, deposit: Deposit) -> str:
        return show.usdc(deposit.amount_micro, fine=True)

    @display(description=_lazy("transaction"))
    def transaction(self, deposit: Deposit) -> str | SafeString:
        return _transaction(deposit.signature)

    @display(description=_lazy("memo"))
    def memo(self, deposit: Deposit) -> str:
        return deposit.transfer.data.get("memo") or "–"

    @display(description=_lazy("time of the block"))
    def block_at(self, deposit: Deposit) -> str:
        at = deposit.transfer.data.get("block_at")
        return show.moment(datetime.fromisoformat(at)) if at else "–"

    @display(description=_lazy("who it may belong to"))
    def candidates(self, deposit: Deposit) -> str | SafeString:
        if deposit.state != Deposit.State.UNMATCHED:
            return "–"
        lines = _candidates(deposit)
        return format_html_join("", "<p>{}: {} ({})</p>", lines) if lines else _("Nobody that we know of.")

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


@admin.register(DepositRequest)
class DepositRequestAdmin(ReadOnlyAdmin):
    list_display = ["created_at", "state", "organisation", "asked", "came", "expires_at", "paid_at", "created_by"]
    exclude = ["amount_micro"]
    readonly_fields = ["asked", "came"]
    list_filter = ["state", "created_at"]
    search_fields = ["=public_id", "=reference", "organisation__name"]
    list_select_related = ["organisation", "created_by"]
    ordering = ["-pk"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[DepositRequest]:
        return deposit_requests.with_received(super().get_queryset(request))

    @display(description=_lazy("asked for, USDC"), ordering="amount_micro")
    def asked(self, row: DepositRequest) -> str:
        return show.usdc(row.amount_micro, fine=True)

    @display(description=_lazy("came, USDC"))
    def came(self, row: Any) -> str:
        return show.usdc(row.received_micro, fine=True)


class DealForm(forms.Form):
    """What was done with a payment that could not be booked."""

    note = forms.CharField(label=_lazy("What was done"), max_length=300, widget=UnfoldAdminTextareaWidget({"rows": 2}))


@admin.register(StrayPayment)
class StrayPaymentAdmin(ReadOnlyAdmin):
    """Payments in other tokens, those that wait for a decision first."""

    list_display = ["seen_at", "shown_state", "organisation", "amount", "mint", "sender", "request"]
    list_filter = ["state", "seen_at"]
    search_fields = ["=signature", "=sender", "=mint", "=token_account", "organisation__name"]
    list_select_related = ["organisation", "request"]
    change_form_outer_before_template = "admin/decision.html"
    fields = [
        "state",
        "amount",
        "mint",
        "sender",
        "transaction",
        "slot",
        "seen_at",
        "organisation",
        "request",
        "token_account",
        "handled_by",
        "handled_at",
        "note",
    ]
    readonly_fields = ["amount", "transaction"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[StrayPayment]:
        return super().get_queryset(request).order_by("-state", "-pk")  # "open" before "handled"

    @display(
        description=_lazy("state"), label={StrayPayment.State.OPEN: "warning", StrayPayment.State.HANDLED: "success"}
    )
    def shown_state(self, stray: StrayPayment) -> tuple[str, str]:
        return stray.state, stray.get_state_display()

    @display(description=_lazy("amount, in units of the token"))
    def amount(self, stray: StrayPayment) -> str:
        return pay.units(int(stray.amount_raw), stray.decimals)

    @display(description=_lazy("transaction"))
    def transaction(self, stray: StrayPayment) -> str | SafeString:
        return _transaction(stray.signature)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        stray = self.get_object(request, object_id)
        form, status = DealForm(), 200
        may = request.user.has_perm("billing.change_straypayment")
        if request.method == "POST" and stray is not None:
            if not may:
                raise PermissionDenied
            form = DealForm(request.POST)
            if form.is_valid():
                try:
                    strays.deal_with(stray=stray, by=request.user, note=form.cleaned_data["note"], at=timezone.now())
                except Refusal as refusal:
                    form.add_error(None, str(refusal))
                else:
                    self.log_change(request, stray, _("Dealt with: %(note)s") % {"note": form.cleaned_data["note"]})
                    messages.success(request, _("The payment is off the list of those that wait for a decision."))
                    return redirect("admin:billing_straypayment_changelist")
            status = 422
            request.method = "GET"  # shown again as a page: of the row itself nothing is edited here
        context = dict(extra_context or {})
        if stray is not None and stray.state == StrayPayment.State.OPEN and may:
            context |= {
                "note": _(
                    "Nothing was booked for this payment: it is not USDC. Ask its sender what was meant; the deposit address is ours, so the "
                    "token can be sent back."
                ),
                "decisions": [{"title": _("Deal with it"), "form": form, "submit": _("Call it dealt with")}],
            }
        response = super().change_view(request, object_id, form_url, context)
        response.status_code = status if response.status_code == 200 else response.status_code
        return response
