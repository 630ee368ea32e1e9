"""The books (Account, Transfer), what runs up a bill (Meter), money coming in (DepositAddress, Deposit), corrections and statements.

A transfer moves a positive amount from one account to another: an unbalanced row can't be written. A balance is what
came in minus what went out, so money owed to people is positive and the treasury, where it came from, is negative; the
sum over all accounts is always zero. Rows are never edited (a trigger refuses); a mistake is corrected by a transfer back.
"""

import uuid
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import Organisation
from gpunex.kit.money import UsdcField


class Account(models.Model):
    """One account of the chart: ``renter.balance:{org}``, ``provider.payable:{org}``, ``platform.fee`` …"""

    code = models.CharField(_("code"), max_length=80, unique=True)
    kind = models.CharField(_("kind"), max_length=32)
    organisation = models.ForeignKey(
        Organisation,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="accounts",
        verbose_name=_("organisation"),
    )
    floor_micro = UsdcField(_("floor, micro-USDC"), null=True, blank=True)
    balance_micro = UsdcField(_("balance, micro-USDC"), default=0)
    # Hot platform accounts are not materialised: their balance is the sum of their transfers, so nobody queues for one row.
    materialised = models.BooleanField(_("materialised"), default=True)
    created_at = models.DateTimeField(_("created at"), default=timezone.now)

    class Meta:
        verbose_name = _("account")
        verbose_name_plural = _("accounts")
        constraints = [
            models.CheckConstraint(
                name="account_not_below_floor", condition=Q(floor_micro=None) | Q(balance_micro__gte=F("floor_micro"))
            ),
            models.CheckConstraint(
                name="floor_needs_materialised", condition=Q(floor_micro=None) | Q(materialised=True)
            ),
        ]
        indexes = [models.Index(fields=["kind"], name="account_kind")]

    def __str__(self) -> str:
        return self.code


class Transfer(models.Model):
    """``amount_micro`` moved from ``debit`` to ``credit``. The key is a business fact and unique for ever."""

    key = models.CharField(_("key"), max_length=120, unique=True)
    debit = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="outgoing", verbose_name=_("from"))
    credit = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="incoming", verbose_name=_("to"))
    amount_micro = UsdcField(_("amount, micro-USDC"))
    kind = models.CharField(_("kind"), max_length=24)
    reference = models.CharField(_("reference"), max_length=80, blank=True)  # public id of the meter, deposit, payout …
    effective_at = models.DateTimeField(_("effective at"))
    created_at = models.DateTimeField(_("created at"), default=timezone.now)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        verbose_name=_("by"),
    )
    reason = models.CharField(_("reason"), max_length=300, blank=True)
    reverses = models.OneToOneField(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="reversed_by", verbose_name=_("reverses")
    )
    data: Any = models.JSONField(_("data"), default=dict)

    class Meta:
        verbose_name = _("transfer")
        verbose_name_plural = _("transfers")
        constraints = [
            models.CheckConstraint(name="transfer_amount_positive", condition=Q(amount_micro__gt=0)),
            models.CheckConstraint(name="transfer_between_two", condition=~Q(debit=F("credit"))),
        ]
        indexes = [
            models.Index(fields=["debit", "-id"], name="transfer_out"),
            models.Index(fields=["credit", "-id"], name="transfer_in"),
            models.Index(fields=["reference"], name="transfer_reference"),
        ]

    def __str__(self) -> str:
        return self.key


class Meter(models.Model):
    """Seconds that ``payer`` owes ``payee`` for, at a rate and a fee fixed for its life. It knows no GPUs: ``labels`` say.

    Billed up to ``min(proved_until, funded_until, ended_at)``, never to now, in whole seconds from ``started_at``.
    """

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    payer = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="meters_paid", verbose_name=_("payer")
    )
    payee = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="meters_earned", verbose_name=_("payee")
    )
    reference = models.CharField(_("reference"), max_length=80)  # public id of the rental
    labels: Any = models.JSONField(
        _("labels"), default=dict
    )  # {"rental", "model", "machine", "gpus": [{"id", "index"}…], "image"}
    rate_micro_per_hour = UsdcField(_("rate of all units together, micro-USDC per hour"))
    quantity = models.PositiveSmallIntegerField(_("units"))
    fee_bps = models.PositiveSmallIntegerField(_("fee, basis points"))
    started_at = models.DateTimeField(_("started at"))
    ended_at = models.DateTimeField(_("ended at"), null=True, blank=True)
    proved_until = models.DateTimeField(_("proved until"))
    funded_until = models.DateTimeField(_("funded until"))
    billed_seconds = models.PositiveBigIntegerField(_("billed, seconds"), default=0)
    billed_gross_micro = UsdcField(_("billed, micro-USDC"), default=0)
    billed_fee_micro = UsdcField(_("fee in it, micro-USDC"), default=0)
    # Given back of it so far, by credits and refunds together: never more than was charged, says a constraint.
    refunded_micro = UsdcField(_("given back, micro-USDC"), default=0)
    settled_at = models.DateTimeField(_("settled at"), null=True, blank=True)
    closed = models.BooleanField(_("closed"), default=False)  # ended and billed to its end: nothing more will come

    class Meta:
        verbose_name = _("meter")
        verbose_name_plural = _("meters")
        constraints = [
            models.UniqueConstraint(fields=["reference"], name="meter_once_a_reference"),
            models.CheckConstraint(name="meter_rate_positive", condition=Q(rate_micro_per_hour__gt=0, quantity__gte=1)),
            models.CheckConstraint(
                name="meter_fee_within_gross", condition=Q(billed_fee_micro__lte=F("billed_gross_micro"))
            ),
            models.CheckConstraint(
                name="meter_refund_within_gross",
                condition=Q(refunded_micro__gte=0, refunded_micro__lte=F("billed_gross_micro")),
            ),
        ]
        indexes = [
            models.Index(fields=["payer"], condition=Q(closed=False), name="meter_open_payer"),
            models.Index(fields=["payee"], condition=Q(closed=False), name="meter_open_payee"),
            models.Index(fields=["payee", "-started_at"], name="meter_payee_recent"),
        ]

    def __str__(self) -> str:
        return _("meter %(id)s") % {"id": self.public_id}


class DepositAddress(models.Model):
    """An organisation's own address on chain, derived from the treasury's seed. Only its USDC account is watched.

    The one row without an organisation is the treasury itself: what strangers send there is listed as unmatched.
    """

    organisation = models.OneToOneField(
        Organisation,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="deposit_address",
        verbose_name=_("organisation"),
    )
    owner = models.CharField(_("address"), max_length=44, unique=True)
    token_account = models.CharField(_("token account"), max_length=44, unique=True)
    cursor = models.CharField(_("last signature seen"), max_length=90, blank=True)
    scanned_at = models.DateTimeField(_("scanned at"), null=True, blank=True)
    # Nodes have been seen to leave rows out: now and then the last hour is read again, whatever the cursor says.
    rescanned_at = models.DateTimeField(_("last hour scanned again at"), null=True, blank=True)
    wanted_at = models.DateTimeField(
        _("owner last looked at"), null=True, blank=True
    )  # who waits for money is asked for first
    # Wallet apps may refuse to pay a link whose token account is not there yet: the treasury opens it for the first request.
    opened_at = models.DateTimeField(_("token account opened by the treasury at"), null=True, blank=True)
    strays_looked_at = models.DateTimeField(_("looked for other tokens at"), null=True, blank=True)
    created_at = models.DateTimeField(_("created at"), default=timezone.now)

    class Meta:
        verbose_name = _("deposit address")
        verbose_name_plural = _("deposit addresses")
        indexes = [
            models.Index(fields=["scanned_at"], name="deposit_address_scanned"),
            models.Index(fields=["-wanted_at"], name="deposit_address_wanted"),
            models.Index(fields=["strays_looked_at"], name="deposit_address_strays"),
        ]

    def __str__(self) -> str:
        return self.owner


class Deposit(models.Model):
    """USDC that arrived in a watched account: once per signature and account."""

    class State(models.TextChoices):
        CREDITED = "credited", _("credited")
        UNMATCHED = "unmatched", _("unmatched")

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    signature = models.CharField(_("signature"), max_length=90)
    token_account = models.CharField(_("token account"), max_length=44)
    organisation = models.ForeignKey(
        Organisation,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="deposits",
        verbose_name=_("organisation"),
    )
    amount_micro = UsdcField(_("amount, micro-USDC"))
    sender = models.CharField(_("sender"), max_length=44, blank=True)
    slot = models.BigIntegerField(_("slot"))
    state = models.CharField(_("state"), max_length=10, choices=State.choices)
    seen_at = models.DateTimeField(_("seen at"), default=timezone.now)
    transfer = models.OneToOneField(
        Transfer, on_delete=models.PROTECT, related_name="deposit", verbose_name=_("transfer")
    )
    # The request it paid, where one was; the money is the address owner's with and without.
    request = models.ForeignKey(
        "DepositRequest",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="deposits",
        verbose_name=_("deposit request"),
    )
    # Into the treasury: the signature is kept before it is sent; swept once it is final.
    swept_signature = models.CharField(_("swept by"), max_length=90, blank=True)
    sweep_sent_at = models.DateTimeField(_("sweep sent at"), null=True, blank=True)
    swept_at = models.DateTimeField(_("swept at"), null=True, blank=True)

    class Meta:
        verbose_name = _("deposit")
        verbose_name_plural = _("deposits")
        constraints = [
            models.UniqueConstraint(fields=["signature", "token_account"], name="deposit_credited_once"),
            models.CheckConstraint(name="deposit_amount_positive", condition=Q(amount_micro__gt=0)),
        ]
        indexes = [
            models.Index(fields=["organisation", "-seen_at"], name="deposit_recent"),
            models.Index(fields=["token_account"], condition=Q(swept_at=None), name="deposit_unswept"),
        ]

    def __str__(self) -> str:
        return self.signature


class DepositRequest(models.Model):
    """A Solana Pay request: pay an amount to the organisation's own address, with a reference key that finds the payment again.

    The reference decides nothing about whose money it is: the address does. It tells which request was paid, and finds payments that the
    address's USDC account never shows (another token). ``late``: paid after ``expires_at``, and credited all the same.
    """

    class State(models.TextChoices):
        OPEN = "open", _("waiting for the payment")
        PAID = "paid", _("paid")
        EXPIRED = "expired", _("expired")
        CANCELLED = "cancelled", _("cancelled")

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="deposit_requests", verbose_name=_("organisation")
    )
    amount_micro = UsdcField(_("amount asked for, micro-USDC"))
    reference = models.CharField(_("reference key"), max_length=44, unique=True)
    state = models.CharField(_("state"), max_length=10, choices=State.choices, default=State.OPEN)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", verbose_name=_("created by")
    )
    created_at = models.DateTimeField(_("created at"), default=timezone.now)
    expires_at = models.DateTimeField(_("expires at"))
    # Looked for long after it expired, ever less often: wallets keep links.
    looked_at = models.DateTimeField(_("looked for at"), null=True, blank=True)
    paid_at = models.DateTimeField(_("paid at"), null=True, blank=True)

    class Meta:
        verbose_name = _("deposit request")
        verbose_name_plural = _("deposit requests")
        constraints = [
            models.CheckConstraint(name="deposit_request_positive", condition=Q(amount_micro__gt=0)),
        ]
        indexes = [
            models.Index(fields=["organisation", "-created_at"], name="deposit_request_recent"),
            models.Index(fields=["looked_at"], condition=Q(paid_at=None), name="deposit_request_unpaid"),
        ]

    def __str__(self) -> str:
        return _("deposit request %(id)s") % {"id": str(self.public_id)[:8]}

    @property
    def late(self) -> bool:
        return self.paid_at is not None and self.paid_at > self.expires_at


class StrayPayment(models.Model):
    """Something that came to an address of ours and is not USDC: another token. Nothing is booked for it; a person decides."""

    class State(models.TextChoices):
        OPEN = "open", _("waiting for a decision")
        HANDLED = "handled", _("dealt with")

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    signature = models.CharField(_("signature"), max_length=90)
    token_account = models.CharField(_("token account"), max_length=44)
    mint = models.CharField(_("token"), max_length=44)
    amount_raw = models.DecimalField(_("amount, smallest units"), max_digits=20, decimal_places=0)
    decimals = models.PositiveSmallIntegerField(_("decimals of the token"))
    sender = models.CharField(_("sender"), max_length=44, blank=True)
    slot = models.BigIntegerField(_("slot"))
    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="stray_payments", verbose_name=_("organisation")
    )
    request = models.ForeignKey(
        DepositRequest,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="stray_payments",
        verbose_name=_("deposit request"),
    )
    state = models.CharField(_("state"), max_length=8, choices=State.choices, default=State.OPEN)
    seen_at = models.DateTimeField(_("seen at"), default=timezone.now)
    handled_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        verbose_name=_("dealt with by"),
    )
    handled_at = models.DateTimeField(_("dealt with at"), null=True, blank=True)
    note = models.CharField(_("what was done"), max_length=300, blank=True)

    class Meta:
        verbose_name = _("stray payment")
        verbose_name_plural = _("stray payments")
        constraints = [
            models.UniqueConstraint(fields=["signature", "token_account"], name="stray_payment_once"),
            models.CheckConstraint(name="stray_amount_positive", condition=Q(amount_raw__gt=0)),
        ]

    def __str__(self) -> str:
        return self.signature


class BalanceWarning(models.Model):
    """A payer was told that the balance ends within so many hours. Lifted once it lasts longer again, so that the next time is told too."""

    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="balance_warnings", verbose_name=_("organisation")
    )
    hours = models.PositiveSmallIntegerField(_("hours before the end"))
    warned_at = models.DateTimeField(_("warned at"))
    lifted_at = models.DateTimeField(_("lifted at"), null=True, blank=True)

    class Meta:
        verbose_name = _("balance warning")
        verbose_name_plural = _("balance warnings")
        constraints = [
            models.UniqueConstraint(
                fields=["organisation", "hours"], condition=Q(lifted_at=None), name="balance_warned_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.organisation} {self.hours} h"


class Adjustment(models.Model):
    """A correction by hand: asked for by one administrator with a reason, made by a second one.

    ``amount_micro`` goes from ``debit`` to ``credit``. A refund names the meter it gives back of; a reversal the transfer it undoes.
    """

    class Kind(models.TextChoices):
        ADJUSTMENT = "adjustment", _("adjustment")
        REFUND = "refund", _("refund of a charge")
        REVERSAL = "reversal", _("reversal of a transfer")
        WRITE_OFF = "write_off", _("debt written off")

    class State(models.TextChoices):
        ASKED = "asked", _("waiting for a second administrator")
        MADE = "made", _("made")
        REFUSED = "refused", _("refused")
        WITHDRAWN = "withdrawn", _("withdrawn")

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    kind = models.CharField(_("kind"), max_length=12, choices=Kind.choices)
    state = models.CharField(_("state"), max_length=10, choices=State.choices, default=State.ASKED)
    debit = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="+", verbose_name=_("from"))
    credit = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="+", verbose_name=_("to"))
    amount_micro = UsdcField(_("amount, micro-USDC"))
    reason = models.CharField(_("reason"), max_length=300)
    meter = models.ForeignKey(
        Meter, null=True, blank=True, on_delete=models.PROTECT, related_name="refunds", verbose_name=_("meter")
    )
    reverses = models.ForeignKey(
        Transfer,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="asked_reversals",
        verbose_name=_("reverses"),
    )
    debt = models.ForeignKey(
        "ProviderDebt",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="write_offs",
        verbose_name=_("debt"),
    )
    asked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", verbose_name=_("asked by")
    )
    asked_at = models.DateTimeField(_("asked at"), default=timezone.now)
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        verbose_name=_("decided by"),
    )
    decided_at = models.DateTimeField(_("decided at"), null=True, blank=True)
    decision_note = models.CharField(_("note of the decision"), max_length=300, blank=True)
    transfer = models.OneToOneField(
        Transfer,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="adjustment",
        verbose_name=_("transfer"),
    )

    class Meta:
        verbose_name = _("adjustment")
        verbose_name_plural = _("adjustments")
        constraints = [
            models.CheckConstraint(name="adjustment_amount_positive", condition=Q(amount_micro__gt=0)),
            models.CheckConstraint(name="adjustment_between_two", condition=~Q(debit=F("credit"))),
            models.CheckConstraint(name="adjustment_has_reason", condition=~Q(reason="")),
            # Made means: by somebody else than who asked, and by a transfer.
            models.CheckConstraint(
                name="adjustment_made_by_second",
                condition=~Q(state="made")
                | (Q(decided_by__isnull=False, transfer__isnull=False) & ~Q(decided_by=F("asked_by"))),
            ),
        ]
        indexes = [models.Index(fields=["state"], condition=Q(state="asked"), name="adjustment_asked")]

    def __str__(self) -> str:
        return _("adjustment %(id)s") % {"id": str(self.public_id)[:8]}


class ProviderDebt(models.Model):
    """What a provider owes for a credit that its payable did not cover; taken from later earnings before the next payout."""

    class State(models.TextChoices):
        OPEN = "open", _("open")
        RECOVERED = "recovered", _("recovered")
        WRITTEN_OFF = "written_off", _("written off")

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="debts", verbose_name=_("organisation")
    )
    reference = models.CharField(_("reference"), max_length=80, unique=True)  # public id of the rental or payout
    amount_micro = UsdcField(_("amount, micro-USDC"))
    recovered_micro = UsdcField(_("recovered, micro-USDC"), default=0)
    state = models.CharField(_("state"), max_length=12, choices=State.choices, default=State.OPEN)
    created_at = models.DateTimeField(_("created at"), default=timezone.now)
    closed_at = models.DateTimeField(_("closed at"), null=True, blank=True)

    class Meta:
        verbose_name = _("provider debt")
        verbose_name_plural = _("provider debts")
        constraints = [
            models.CheckConstraint(name="debt_amount_positive", condition=Q(amount_micro__gt=0)),
            models.CheckConstraint(
                name="debt_recovered_within",
                condition=Q(recovered_micro__gte=0, recovered_micro__lte=F("amount_micro")),
            ),
        ]
        indexes = [models.Index(fields=["organisation"], condition=Q(state="open"), name="debt_open")]

    def __str__(self) -> str:
        return _("debt %(id)s") % {"id": str(self.public_id)[:8]}

    @property
    def open_micro(self) -> int:
        """What is still to be recovered."""
        return self.amount_micro - self.recovered_micro if self.state == self.State.OPEN else 0


class StatementSeries(models.Model):
    """The last number of a series. Its row is locked while a statement takes the next, so that none is skipped."""

    name = models.CharField(_("name"), max_length=12, unique=True)
    last_number = models.PositiveIntegerField(_("last number"), default=0)

    class Meta:
        verbose_name = _("statement series")
        verbose_name_plural = _("statement series")

    def __str__(self) -> str:
        return self.name


class Statement(models.Model):
    """A statement as it was issued: frozen, numbered without gaps in its series, and hashed.

    ``body`` is the document as data (amounts as whole micro-USDC, times as ISO 8601 in UTC, no words of any language); page, CSV and PDF
    are drawn from it alone. ``sha256`` is of its canonical JSON (sorted keys, no spaces, UTF-8). A trigger refuses any change.
    """

    class Kind(models.TextChoices):
        RENTER_MONTH = "renter_month", _("monthly statement")
        PAYOUT = "payout", _("payout statement")

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    kind = models.CharField(_("kind"), max_length=12, choices=Kind.choices)
    series = models.CharField(_("series"), max_length=12)
    number = models.PositiveIntegerField(_("number"))
    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="statements", verbose_name=_("organisation")
    )
    reference = models.CharField(_("reference"), max_length=80)  # "2026-11" of a month; public id of a payout
    period_start = models.DateTimeField(_("from"))
    period_end = models.DateTimeField(_("until"))  # half-open
    body: Any = models.JSONField(_("document"))
    sha256 = models.CharField(_("SHA-256"), max_length=64)
    issued_at = models.DateTimeField(_("issued at"), default=timezone.now)

    class Meta:
        verbose_name = _("statement")
        verbose_name_plural = _("statements")
        constraints = [
            models.UniqueConstraint(fields=["series", "number"], name="statement_number_once"),
            models.UniqueConstraint(fields=["organisation", "kind", "reference"], name="statement_once"),
        ]
        indexes = [models.Index(fields=["organisation", "-issued_at"], name="statement_recent")]

    def __str__(self) -> str:
        return self.full_number

    @property
    def full_number(self) -> str:
        """As people cite it: ``P-000042``."""
        return f"{self.series}-{self.number:06d}"
