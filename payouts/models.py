"""How organisations are paid (PayoutMethod), when (PayoutRun), what (Payout) and by which signed bytes (Attempt)."""

import uuid
from datetime import UTC, datetime
from typing import Any, Self

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import Organisation
from gpunex.kit import show
from gpunex.kit.money import UsdcField


class Rail(models.TextChoices):
    USDC = "usdc", _("USDC on Solana")
    SEPA = "sepa", _("SEPA bank transfer")
    ACH = "ach", _("US bank transfer (ACH)")


class Cadence(models.TextChoices):
    WEEKLY = "weekly", _("weekly")
    MONTHLY = "monthly", _("monthly")


class PayoutMethodQuerySet(models.QuerySet["PayoutMethod"]):
    def standing(self, at: datetime) -> Self:
        """Not removed as of ``at``: the one in force and, behind it, one that waits to come into force."""
        return self.filter(Q(removed_at=None) | Q(removed_at__gt=at)).order_by("-active_from", "-pk")

    def in_force(self, at: datetime) -> Self:
        """The newest comes first; that one is paid to."""
        return self.standing(at).filter(active_from__lte=at)


class PayoutMethod(models.Model):
    """Where an organisation's money goes. A change makes a new row; the old one stands until the new one is active."""

    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="payout_methods", verbose_name=_("organisation")
    )
    rail = models.CharField(_("rail"), max_length=8, choices=Rail.choices)
    address = models.CharField(_("wallet address"), max_length=44, blank=True)
    # Bank rails: {"name", "iban", "bic"} or {"name", "routing", "account", "account_type"}, encrypted; shown is ``masked`` alone.
    details = models.BinaryField(_("bank details, encrypted"), null=True)
    masked = models.CharField(_("shown as"), max_length=60, blank=True)
    country = models.CharField(_("country of the bank"), max_length=2, blank=True)
    # How the wallet's owner proved to hold its key: {"message", "signature", "way"}.
    proof: Any = models.JSONField(_("proof"), default=dict, blank=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", verbose_name=_("created by")
    )
    created_at = models.DateTimeField(_("created at"), default=timezone.now)
    verified_at = models.DateTimeField(_("verified at"), null=True, blank=True)
    active_from = models.DateTimeField(_("active from"))
    removed_at = models.DateTimeField(_("removed at"), null=True, blank=True)

    objects = PayoutMethodQuerySet.as_manager()

    class Meta:
        verbose_name = _("payout method")
        verbose_name_plural = _("payout methods")
        constraints = [
            models.CheckConstraint(name="usdc_has_address", condition=~Q(rail="usdc") | ~Q(address="")),
            models.CheckConstraint(
                name="bank_has_details", condition=Q(rail="usdc") | (Q(details__isnull=False) & ~Q(masked=""))
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_rail_display()} {self.shown}"

    @property
    def shown(self) -> str:
        """The destination as people see it, without what would let others use it."""
        return self.masked or f"{self.address[:6]}…{self.address[-6:]}"


class WalletChallenge(models.Model):
    """A text for the owner of a wallet to sign, which proves that he holds its key. Good once, for a short time, for one organisation."""

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="+", verbose_name=_("organisation")
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", verbose_name=_("user")
    )
    address = models.CharField(_("wallet address"), max_length=44)
    message = models.TextField(_("text to sign"))
    created_at = models.DateTimeField(_("created at"), default=timezone.now)
    expires_at = models.DateTimeField(_("expires at"))
    used_at = models.DateTimeField(_("used at"), null=True, blank=True)

    class Meta:
        verbose_name = _("wallet challenge")
        verbose_name_plural = _("wallet challenges")

    def __str__(self) -> str:
        return self.address


class PayoutPreference(models.Model):
    """The cadence and the rail that a provider picked; a change counts from the next period."""

    organisation = models.OneToOneField(
        Organisation, on_delete=models.PROTECT, related_name="payout_preference", verbose_name=_("organisation")
    )
    cadence = models.CharField(_("cadence"), max_length=8, choices=Cadence.choices, default=Cadence.WEEKLY)
    next_cadence = models.CharField(_("from the next period"), max_length=8, choices=Cadence.choices, blank=True)
    rail = models.CharField(_("rail"), max_length=8, choices=Rail.choices, default=Rail.USDC)
    next_cadence_at = models.DateTimeField(_("cadence of the next period picked at"), null=True, blank=True)
    next_rail = models.CharField(_("rail from the next period"), max_length=8, choices=Rail.choices, blank=True)
    next_rail_at = models.DateTimeField(_("rail of the next period picked at"), null=True, blank=True)
    # Cadence and rail are as above for the periods that end later than this; those up to it were somebody else's run.
    since = models.DateTimeField(_("in force after the cut-off of"), null=True, blank=True)

    class Meta:
        verbose_name = _("payout preference")
        verbose_name_plural = _("payout preferences")

    def __str__(self) -> str:
        return self.cadence


class PayoutRun(models.Model):
    """One cycle of payouts, or an off-cycle one that an admin made."""

    class Kind(models.TextChoices):
        CYCLE = "cycle", _("cycle")
        OFF_CYCLE = "off_cycle", _("off-cycle")
        RETURN = "return", _("return of unused balance")

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    kind = models.CharField(_("kind"), max_length=10, choices=Kind.choices)
    rail = models.CharField(_("rail"), max_length=8, choices=Rail.choices)
    cadence = models.CharField(_("cadence"), max_length=8, choices=Cadence.choices, blank=True)
    period_end = models.DateTimeField(_("cut-off"))
    execute_on = models.DateField(_("execution date"))
    created_at = models.DateTimeField(_("created at"), default=timezone.now)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        verbose_name=_("created by"),
    )
    reason = models.CharField(_("reason"), max_length=300, blank=True)
    # Set once every payout of the cycle is made: a run that was cut off is finished by the next sweep.
    made_at = models.DateTimeField(_("payouts made at"), null=True, blank=True)
    # Nothing of a run is paid before it is cleared: by itself up to the policy's cap, above it by two administrators.
    cleared_at = models.DateTimeField(_("cleared at"), null=True, blank=True)
    approved_by: Any = models.ManyToManyField(
        settings.AUTH_USER_MODEL, blank=True, related_name="+", verbose_name=_("approved by")
    )

    class Meta:
        verbose_name = _("payout run")
        verbose_name_plural = _("payout runs")
        constraints = [
            models.UniqueConstraint(
                fields=["rail", "cadence", "period_end"], condition=Q(kind="cycle"), name="one_run_a_cycle"
            ),
            models.CheckConstraint(name="off_cycle_has_reason", condition=~Q(kind="off_cycle") | ~Q(reason="")),
        ]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {show.day_text(self.period_end.astimezone(UTC).date())}"


class Payout(models.Model):
    """Money on its way to one organisation. Its account ``payout.in_transit:{public_id}`` holds the amount until the end.

    on chain: reserved → approved → signed → paid
    by bank:  reserved → approved → exported → paid (→ returned: the bank sent it back later; the money is payable again)
    side exits: failed (definite; the money went back to where it came from), review (a person must look)
    """

    class State(models.TextChoices):
        RESERVED = "reserved", _("waiting for approval")
        APPROVED = "approved", _("approved")
        SIGNED = "signed", _("signed, being sent")
        EXPORTED = "exported", _("handed to the bank")
        PAID = "paid", _("paid")
        FAILED = "failed", _("failed, money back in your earnings")
        RETURNED = "returned", _("sent back by the bank, money back in your earnings")
        REVIEW = "review", _("held for a check by our team")

    OPEN_STATES = (State.RESERVED, State.APPROVED, State.SIGNED, State.EXPORTED, State.REVIEW)

    class Reason(models.TextChoices):
        """Why a payout is where it is, as kept in ``state_reason``; an admin's own words stand there as they were written."""

        FROZEN = "frozen", _("the wallet's USDC account is frozen by its issuer")
        EXPIRED = "expired", _("the network did not take the transaction in time; it is signed anew")
        TREASURY = "treasury", _("the treasury is being filled up; it is signed anew")
        TOO_MANY_ATTEMPTS = "too_many_attempts", _("several transactions expired one after the other")
        REFUSED_ON_CHAIN = "refused_on_chain", _("the network refused the transaction")
        NOT_AS_SIGNED = "not_as_signed", _("the chain shows something else than what was signed")
        ACCOUNT_CLOSED = (
            "account_closed",
            _(
                "the wallet’s USDC account was closed after we had paid for opening it; we look at it before we pay for it again"
            ),
        )
        BANK_REJECTED = "bank_rejected", _("the bank did not accept the transfer")
        BANK_RETURNED = "bank_returned", _("the bank sent the transfer back")
        ACCOUNT_NOT_PAYABLE = "account_not_payable", _("the bank account cannot be paid as it was entered")
        ACCOUNT_IN_DOUBT = (
            "account_in_doubt",
            _("the bank sent an earlier transfer to this account back, and nobody has confirmed the account since"),
        )

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    run = models.ForeignKey(PayoutRun, on_delete=models.PROTECT, related_name="payouts", verbose_name=_("run"))
    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="payouts", verbose_name=_("organisation")
    )
    amount_micro = UsdcField(_("amount, micro-USDC"))
    rail = models.CharField(_("rail"), max_length=8, choices=Rail.choices)
    destination = models.CharField(
        _("destination"), max_length=60
    )  # as it was when the payout was made; a bank's is masked
    method = models.ForeignKey(
        PayoutMethod, null=True, blank=True, on_delete=models.PROTECT, related_name="payouts", verbose_name=_("method")
    )
    # Of the statement that says what is paid here, line by line. The memo on chain carries it, so it is set before signing.
    statement_sha256 = models.CharField(_("SHA-256 of the statement"), max_length=64, blank=True)
    state = models.CharField(_("state"), max_length=10, choices=State.choices, default=State.RESERVED)
    state_reason = models.CharField(_("reason"), max_length=300, blank=True)
    reserved_at = models.DateTimeField(_("reserved at"), default=timezone.now)
    approved_at = models.DateTimeField(_("approved at"), null=True, blank=True)
    approved_by: Any = models.ManyToManyField(
        settings.AUTH_USER_MODEL, blank=True, related_name="+", verbose_name=_("approved by")
    )
    # A person looked at what it was held for and let it go on: it is not held for the same thing again.
    resumed_at = models.DateTimeField(_("let go on at"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)

    class Meta:
        verbose_name = _("payout")
        verbose_name_plural = _("payouts")
        ordering = ["-reserved_at", "-pk"]
        constraints = [
            models.UniqueConstraint(fields=["run", "organisation"], name="one_payout_a_run"),
            models.CheckConstraint(name="payout_amount_positive", condition=Q(amount_micro__gt=0)),
        ]
        indexes = [
            models.Index(fields=["state"], condition=~Q(state__in=["paid", "failed", "returned"]), name="payout_open"),
            models.Index(fields=["organisation", "-reserved_at"], name="payout_recent"),
        ]

    def __str__(self) -> str:
        return _("payout %(id)s") % {"id": str(self.public_id)[:8]}

    @property
    def memo(self) -> str:
        """What its transaction carries on chain. No other has it, so no two payouts can be one transaction."""
        return ":".join(["gpunex", str(self.public_id), *([self.statement_sha256] if self.statement_sha256 else [])])

    @property
    def reason_label(self) -> Any:
        """``state_reason`` for whoever reads it later: words that turn into the language of that moment."""
        return dict(self.Reason.choices).get(self.state_reason, self.state_reason)

    @property
    def reason_text(self) -> str:
        """``state_reason`` in the reader's language."""
        return str(self.reason_label)

    @property
    def state_text(self) -> str:
        """The state in words; money that came back is where it came from."""
        back = {
            self.State.FAILED: _("failed, money back in your balance"),
            self.State.RETURNED: _("sent back, money back in your balance"),
        }
        if self.state in back and self.run.kind == PayoutRun.Kind.RETURN:
            return str(back[self.State(self.state)])
        return self.get_state_display()

    @property
    def last_attempt(self) -> "Attempt | None":
        return max(self.attempts.all(), key=lambda attempt: attempt.number, default=None)


class Attempt(models.Model):
    """One signed transaction. Committed before it is sent; at most one alive a payout."""

    payout = models.ForeignKey(Payout, on_delete=models.PROTECT, related_name="attempts", verbose_name=_("payout"))
    number = models.PositiveSmallIntegerField(_("number"))
    raw = models.BinaryField(_("signed bytes"))
    signature = models.CharField(_("signature"), max_length=90, unique=True)
    blockhash = models.CharField(_("blockhash"), max_length=44)
    last_valid_block_height = models.BigIntegerField(_("last valid block height"))
    signed_at = models.DateTimeField(_("signed at"))
    sends = models.PositiveIntegerField(_("times sent"), default=0)
    sent_at = models.DateTimeField(_("last sent at"), null=True, blank=True)
    dead = models.BooleanField(_("proven dead"), default=False)
    landed_slot = models.BigIntegerField(_("landed in slot"), null=True, blank=True)
    fee_lamports = models.BigIntegerField(_("network fee, lamports"), null=True, blank=True)
    evidence: Any = models.JSONField(_("evidence"), default=dict)

    class Meta:
        verbose_name = _("payout attempt")
        verbose_name_plural = _("payout attempts")
        ordering = ["payout", "number"]
        constraints = [
            models.UniqueConstraint(fields=["payout", "number"], name="attempt_number_once"),
            models.UniqueConstraint(fields=["payout"], condition=Q(dead=False), name="one_live_attempt"),
        ]

    def __str__(self) -> str:
        return self.signature


class FxRate(models.Model):
    """What one unit of a bank's currency cost in USDC, as an administrator entered it; append-only, the newest counts."""

    class Currency(models.TextChoices):
        EUR = "EUR", _("euro")
        USD = "USD", _("US dollar")

    currency = models.CharField(_("currency"), max_length=3, choices=Currency.choices)
    micro_per_unit = UsdcField(_("one unit costs, micro-USDC"))
    source = models.CharField(_("source"), max_length=120)
    quoted_at = models.DateTimeField(_("quoted at"))  # by the source; a run refuses one older than the policy's hours
    entered_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", verbose_name=_("entered by")
    )
    entered_at = models.DateTimeField(_("entered at"), default=timezone.now)

    class Meta:
        verbose_name = _("exchange rate")
        verbose_name_plural = _("exchange rates")
        constraints = [models.CheckConstraint(name="rate_positive", condition=Q(micro_per_unit__gt=0))]
        indexes = [models.Index(fields=["currency", "-quoted_at"], name="rate_newest")]

    def __str__(self) -> str:
        return f"1 {self.currency} = {show.price(self.micro_per_unit)} USDC"


class BankFile(models.Model):
    """One file for the bank: all payouts of one run that a bank rail carries. Its bytes never change; downloading again gives the same.

    The bytes hold account numbers and are kept encrypted.
    """

    class State(models.TextChoices):
        CREATED = "created", _("made, not handed over yet")
        EXPORTED = "exported", _("handed to the bank")
        ANSWERED = "answered", _("answered by the bank")

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    run = models.ForeignKey(PayoutRun, on_delete=models.PROTECT, related_name="bank_files", verbose_name=_("run"))
    rail = models.CharField(_("rail"), max_length=8, choices=Rail.choices)
    message_id = models.CharField(_("message id"), max_length=35, unique=True)
    content = models.BinaryField(_("file, encrypted"))
    sha256 = models.CharField(_("SHA-256"), max_length=64)
    state = models.CharField(_("state"), max_length=10, choices=State.choices, default=State.CREATED)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", verbose_name=_("created by")
    )
    created_at = models.DateTimeField(_("created at"), default=timezone.now)
    exported_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        verbose_name=_("handed over by"),
    )
    exported_at = models.DateTimeField(_("handed over at"), null=True, blank=True)

    class Meta:
        verbose_name = _("bank file")
        verbose_name_plural = _("bank files")

    def __str__(self) -> str:
        return self.message_id


class BankTransfer(models.Model):
    """A payout as a bank carries it: made with the payout, with its currency, cents and rate fixed; later a line of a file."""

    class State(models.TextChoices):
        WAITING = "waiting", _("waiting for its file")
        IN_FILE = "in_file", _("in a file")
        EXPORTED = "exported", _("handed to the bank")
        ACKNOWLEDGED = "acknowledged", _("accepted by the bank")
        SETTLED = "settled", _("settled")
        REJECTED = "rejected", _("rejected")
        RETURNED = "returned", _("returned")

    payout = models.OneToOneField(
        Payout, on_delete=models.PROTECT, related_name="bank_transfer", verbose_name=_("payout")
    )
    file = models.ForeignKey(
        BankFile, null=True, blank=True, on_delete=models.PROTECT, related_name="transfers", verbose_name=_("file")
    )
    end_to_end_id = models.CharField(_("end-to-end id"), max_length=35, unique=True)
    trace_number = models.CharField(_("ACH trace number"), max_length=15, blank=True)
    currency = models.CharField(_("currency"), max_length=3, choices=FxRate.Currency.choices)
    amount_cents = models.BigIntegerField(_("amount, cents"))
    rate = models.ForeignKey(FxRate, on_delete=models.PROTECT, related_name="transfers", verbose_name=_("rate"))
    state = models.CharField(_("state"), max_length=12, choices=State.choices, default=State.WAITING)
    bank_reason = models.CharField(_("the bank's reason"), max_length=140, blank=True)
    # The bank's own reference of each booking, by statement and direction: another one is a second booking, not a repetition.
    bookings: Any = models.JSONField(_("bookings"), default=dict, blank=True)
    settled_at = models.DateTimeField(_("settled at"), null=True, blank=True)

    class Meta:
        verbose_name = _("bank transfer")
        verbose_name_plural = _("bank transfers")
        constraints = [models.CheckConstraint(name="bank_cents_positive", condition=Q(amount_cents__gt=0))]

    def __str__(self) -> str:
        return self.end_to_end_id

    @property
    def amount(self) -> str:
        """As people write it: "1,234.56 EUR"."""
        return f"{self.amount_cents // 100:,}.{self.amount_cents % 100:02d} {self.currency}"


class BankImport(models.Model):
    """An answer of the bank as it was read: once per content, with what each of its lines did."""

    sha256 = models.CharField(_("SHA-256"), max_length=64, unique=True)
    filename = models.CharField(_("file name"), max_length=200)
    format = models.CharField(_("format"), max_length=12)  # pain.002, camt.053, ach-return
    content = models.BinaryField(_("file, encrypted"))
    imported_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", verbose_name=_("imported by")
    )
    imported_at = models.DateTimeField(_("imported at"), default=timezone.now)
    # [{"line", "end_to_end_id", "amount_cents", "status", "did", "why"}, …]: every line is accounted for, matched or not.
    lines: Any = models.JSONField(_("lines"), default=list)

    class Meta:
        verbose_name = _("bank answer")
        verbose_name_plural = _("bank answers")

    def __str__(self) -> str:
        return self.filename
