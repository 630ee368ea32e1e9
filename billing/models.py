"""The books (Account, Transfer), what runs up a bill (Meter), and money coming in (DepositAddress, Deposit).

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
    created_at = models.DateTimeField(_("created at"), default=timezone.now)

    class Meta:
        verbose_name = _("deposit address")
        verbose_name_plural = _("deposit addresses")
        indexes = [
            models.Index(fields=["scanned_at"], name="deposit_address_scanned"),
            models.Index(fields=["-wanted_at"], name="deposit_address_wanted"),
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
