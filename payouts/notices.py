"""What payouts tell an organisation, and what they tell the people who run the platform."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.utils import translation
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import User
from gpunex.accounts.notices import Event, render, shown
from gpunex.outbox import mail
from gpunex.outbox.models import Message
from payouts.models import Payout

WALLET_CONNECTED = Event(
    name="wallet_connected",
    subject=_("A wallet was connected for your payouts"),
    paragraphs=(
        _("Payouts now go to %(address)s."),
        _("Connected by %(by)s. If that was none of you, write to us at once."),
    ),
    action=_("Open payouts"),
    path="/provider/payouts",
    state="ok",
)
WALLET_CHANGES = Event(
    name="wallet_changes",
    subject=_("Your payout wallet is about to change"),
    paragraphs=(
        _("From %(active_at)s on, payouts go to %(address)s. Until then they go to %(before)s."),
        _(
            "Asked for by %(by)s. If that was none of you, cancel the change on the Payouts page and write to us at once."
        ),
    ),
    action=_("Open payouts"),
    path="/provider/payouts",
    state="warn",
)
BANK_CONNECTED = Event(
    name="bank_connected",
    subject=_("A bank account was entered for your payouts"),
    paragraphs=(
        _("The bank account is %(address)s."),
        _("Entered by %(by)s. If that was none of you, write to us at once."),
    ),
    action=_("Open payouts"),
    path="/provider/payouts",
    state="ok",
)
BANK_CHANGES = Event(
    name="bank_changes",
    subject=_("Your payout bank account is about to change"),
    paragraphs=(
        _("From %(active_at)s on, payouts go to %(address)s. Until then they go to %(before)s."),
        _(
            "Asked for by %(by)s. If that was none of you, cancel the change on the Payouts page and write to us at once."
        ),
    ),
    action=_("Open payouts"),
    path="/provider/payouts",
    state="warn",
)
DESTINATION_WAITS = Event(
    name="destination_waits",
    subject=_("A destination for your payouts was named by a new member"),
    paragraphs=(
        _("From %(active_at)s on, payouts go to %(address)s. Until then they are kept for you."),
        _(
            "Named by %(by)s, who joined your organisation only lately. If that was none of you, cancel it on the Payouts page and write to us at once."
        ),
    ),
    action=_("Open payouts"),
    path="/provider/payouts",
    state="warn",
)
CHANGE_CANCELLED = Event(
    name="destination_change_cancelled",
    subject=_("A change of where your payouts go was cancelled"),
    paragraphs=(
        _("Payouts go on to %(before)s, and not to %(address)s."),
        _("Cancelled by %(by)s. If that was none of you, write to us at once."),
    ),
    action=_("Open payouts"),
    path="/provider/payouts",
    state="info",
)
DESTINATION_DROPPED = Event(
    name="destination_dropped",
    subject=_("A destination for your payouts was taken back"),
    paragraphs=(
        _("Nothing goes to %(address)s."),
        _("Cancelled by %(by)s. If that was none of you, write to us at once."),
    ),
    action=_("Open payouts"),
    path="/provider/payouts",
    state="info",
)
RAIL_CHOSEN = Event(
    name="payout_rail_chosen",
    subject=_("Your payouts are about to go another way"),
    paragraphs=(
        _("From the next period on, payouts go to %(address)s."),
        _(
            "Chosen by %(by)s. If that was none of you, take the choice back on the Payouts page and write to us at once."
        ),
    ),
    action=_("Open payouts"),
    path="/provider/payouts",
    state="warn",
)
# To who provides nothing: no payouts page is theirs, and what goes to the wallet is unused balance.
BALANCE_WALLET_CONNECTED = Event(
    name="balance_wallet_connected",
    subject=_("A wallet was connected for your unused balance"),
    paragraphs=(
        _("What you take out of your balance goes to %(address)s."),
        _("Connected by %(by)s. If that was none of you, write to us at once."),
    ),
    action=_("Open the returns"),
    path="/balance/return",
    state="ok",
)
BALANCE_WALLET_CHANGES = Event(
    name="balance_wallet_changes",
    subject=_("The wallet for your unused balance is about to change"),
    paragraphs=(
        _(
            "From %(active_at)s on, what you take out of your balance goes to %(address)s. Until then it goes to %(before)s."
        ),
        _(
            "Asked for by %(by)s. If that was none of you, cancel the change where you take money out, and write to us at once."
        ),
    ),
    action=_("Open the returns"),
    path="/balance/return",
    state="warn",
)
BALANCE_WALLET_WAITS = Event(
    name="balance_wallet_waits",
    subject=_("A wallet for your unused balance was named by a new member"),
    paragraphs=(
        _("From %(active_at)s on, balance can go back to %(address)s. Until then it stays."),
        _(
            "Named by %(by)s, who joined your organisation only lately. If that was none of you, cancel it where you take money out, and write to us at once."
        ),
    ),
    action=_("Open the returns"),
    path="/balance/return",
    state="warn",
)
BALANCE_WALLET_DROPPED = Event(
    name="balance_wallet_dropped",
    subject=_("A change of the wallet for your unused balance was cancelled"),
    paragraphs=(
        _("Nothing goes to %(address)s."),
        _("Cancelled by %(by)s. If that was none of you, write to us at once."),
    ),
    action=_("Open the returns"),
    path="/balance/return",
    state="info",
)
OF_BALANCE = {
    WALLET_CONNECTED.name: BALANCE_WALLET_CONNECTED,
    WALLET_CHANGES.name: BALANCE_WALLET_CHANGES,
    DESTINATION_WAITS.name: BALANCE_WALLET_WAITS,
    CHANGE_CANCELLED.name: BALANCE_WALLET_DROPPED,
    DESTINATION_DROPPED.name: BALANCE_WALLET_DROPPED,
}
PAYOUT_PAID = Event(
    name="payout_paid",
    subject=_("%(amount_micro)s were paid to your wallet"),
    paragraphs=(
        _("Your payout of %(amount_micro)s to %(destination)s is final on chain."),
        _("Transaction: %(signature)s"),
    ),
    action=_("Open the receipt"),
    path="/provider/payouts/{payout}",
    state="ok",
)
PAYOUT_FAILED = Event(
    name="payout_failed",
    subject=_("A payout of %(amount_micro)s did not go through"),
    paragraphs=(
        _("The payout of %(amount_micro)s to %(destination)s was not made: %(reason)s."),
        _(
            "The money is back in your earnings. Check on the Payouts page where your money goes; the next payout includes it."
        ),
    ),
    action=_("Open the payout"),
    path="/provider/payouts/{payout}",
    state="bad",
    words={"reason": dict(Payout.Reason.choices)},
)
RETURN_ASKED = Event(
    name="return_asked",
    subject=_("%(amount_micro)s of your balance are on their way back to your wallet"),
    paragraphs=(
        _("%(by)s asked for %(amount_micro)s of the unused balance, to be sent to %(destination)s."),
        _("If that was none of you, write to us at once."),
    ),
    action=_("Follow it"),
    path="/balance/return",
    state="info",
)
RETURN_PAID = Event(
    name="return_paid",
    subject=_("%(amount_micro)s of your balance are back in your wallet"),
    paragraphs=(
        _("The return of %(amount_micro)s to %(destination)s is final on chain."),
        _("Transaction: %(signature)s"),
    ),
    action=_("Open the returns"),
    path="/balance/return",
    state="ok",
)
RETURN_FAILED = Event(
    name="return_failed",
    subject=_("A return of %(amount_micro)s did not go through"),
    paragraphs=(
        _("The return of %(amount_micro)s to %(destination)s was not made: %(reason)s."),
        _("The money is back in your balance."),
    ),
    action=_("Open the returns"),
    path="/balance/return",
    state="bad",
    words={"reason": dict(Payout.Reason.choices)},
)
BANK_PAID = Event(
    name="bank_payout_paid",
    subject=_("%(amount_micro)s were paid to your bank account"),
    paragraphs=(
        _("The bank has booked your payout of %(amount_micro)s: %(amount)s to %(destination)s."),
        _("On your statement it carries the reference %(reference)s."),
    ),
    action=_("Open the receipt"),
    path="/provider/payouts/{payout}",
    state="ok",
)
BANK_RETURNED = Event(
    name="bank_payout_returned",
    subject=_("Your bank sent %(amount_micro)s back"),
    paragraphs=(
        _("The payout of %(amount)s to %(destination)s came back. The bank’s reason: %(reason)s."),
        _(
            "%(amount_micro)s are back in your earnings. The next payout waits until you have confirmed or changed the bank account."
        ),
    ),
    action=_("Look at the bank account"),
    path="/provider/payouts/bank",
    state="bad",
)
ATTENTION = Event(
    name="payouts_need_attention",
    subject=_("Payouts need attention: %(what)s"),
    paragraphs=(_("%(detail)s"),),
    action=_("Open the payout queue"),
    path="/admin/payouts/payout/",
    state="bad",
)


def alert(
    *, key: str, what: str | Promise, detail: str | Promise, at: datetime, data: Mapping[str, Any] | None = None
) -> None:
    """Mail every administrator in their language, once per ``key``. A payout that is stuck is never silent.

    ``detail`` may hold ``%(name)s`` fields of ``data``, whose values are shown as a notice's are; translated words may be among them.
    """
    admins = list(User.objects.filter(is_active=True, is_staff=True, is_superuser=True).order_by("pk"))
    told = set(Message.objects.filter(key__in=[f"{key}:{user.pk}" for user in admins]).values_list("key", flat=True))
    for user in admins:
        if f"{key}:{user.pk}" in told:
            continue
        with translation.override(user.language):
            text_of_it = str(detail) if data is None else str(detail) % shown(dict(data))
            subject, text, html = render(ATTENTION, data={"what": str(what), "detail": text_of_it}, secret={})
        mail.queue(
            key=f"{key}:{user.pk}", event=ATTENTION.name, to=user.email, subject=subject, text=text, html=html, at=at
        )
