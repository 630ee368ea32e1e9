"""The books for people: everything read-only, and searchable by reference. A refund or a reversal is asked for on the row's own page."""

from collections.abc import Sequence

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from unfold.decorators import display

from billing import ledger
from billing.admin.adjustments import AskingAdmin, refund_of, reversal_of
from billing.models import Account, BalanceWarning, Meter, Transfer
from gpunex.kit import show
from gpunex.kit.registers import Decision, ReadOnlyAdmin


@admin.register(Account)
class AccountAdmin(ReadOnlyAdmin):
    list_display = ["code", "kind", "organisation", "shown_balance", "materialised"]
    exclude = ["balance_micro"]
    readonly_fields = ["shown_balance"]
    list_filter = ["kind", "materialised"]
    search_fields = ["code", "organisation__name", "organisation__members__email"]
    list_select_related = ["organisation"]

    @display(description=_lazy("balance, USDC"), ordering="balance_micro")
    def shown_balance(self, account: Account) -> str:
        # A query for the few that are not materialised alone: theirs is the sum of their transfers.
        micro = account.balance_micro if account.materialised else ledger.balance(account)
        return show.usdc(micro, fine=True)


@admin.register(Transfer)
class TransferAdmin(AskingAdmin):
    list_display = ["effective_at", "kind", "amount", "debit", "credit", "reference", "actor", "reason"]
    exclude = ["amount_micro"]
    readonly_fields = ["amount"]
    list_filter = ["kind", "effective_at"]
    search_fields = ["=reference", "=key", "debit__code", "credit__code", "reason"]
    list_select_related = ["debit", "credit", "actor"]
    ordering = ["-pk"]
    show_full_result_count = False

    @display(description=_lazy("amount, USDC"), ordering="amount_micro")
    def amount(self, transfer: Transfer) -> str:
        return show.usdc(transfer.amount_micro, fine=True)

    def note(self, request: HttpRequest, row: Transfer) -> str:
        if hasattr(row, "reversed_by"):
            return _("Reversed by %(key)s on %(at)s.") % {
                "key": row.reversed_by.key,
                "at": show.moment(row.reversed_by.created_at),
            }
        return ""

    def decisions(self, request: HttpRequest, row: Transfer) -> Sequence[Decision]:
        return reversal_of(self, request, row)


@admin.register(Meter)
class MeterAdmin(AskingAdmin):
    list_display = [
        "public_id",
        "payer",
        "payee",
        "rate",
        "billed_seconds",
        "billed",
        "given_back",
        "started_at",
        "funded_until",
        "ended_at",
        "closed",
    ]
    exclude = ["rate_micro_per_hour", "billed_gross_micro", "billed_fee_micro", "refunded_micro"]
    readonly_fields = ["rate", "billed", "fee", "given_back"]
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

    @display(description=_lazy("fee in it, USDC"), ordering="billed_fee_micro")
    def fee(self, meter: Meter) -> str:
        return show.usdc(meter.billed_fee_micro, fine=True)

    @display(description=_lazy("given back, USDC"), ordering="refunded_micro")
    def given_back(self, meter: Meter) -> str:
        return show.usdc(meter.refunded_micro, fine=True)

    def decisions(self, request: HttpRequest, row: Meter) -> Sequence[Decision]:
        return refund_of(self, request, row)


@admin.register(BalanceWarning)
class BalanceWarningAdmin(ReadOnlyAdmin):
    list_display = ["warned_at", "organisation", "hours", "lifted_at"]
    list_filter = ["hours", "warned_at"]
    search_fields = ["organisation__name", "organisation__members__email"]
    list_select_related = ["organisation"]
    ordering = ["-pk"]
