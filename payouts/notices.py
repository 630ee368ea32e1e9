"""What payouts tell an organisation, and what they tell the people who run the platform."""

from datetime import datetime

from django.utils import translation
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import User
from gpunex.accounts.notices import Event, render
from gpunex.outbox import mail

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
    subject=_("Your payout wallet changes in 48 hours"),
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
        _("The money is back in your earnings. Check the wallet on the Payouts page; the next payout includes it."),
    ),
    action=_("Open the payout"),
    path="/provider/payouts/{payout}",
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


def alert(*, key: str, what: str | Promise, detail: str, at: datetime) -> None:
    """Mail every administrator, once per ``key``. A payout that is stuck is never silent."""
    for user in User.objects.filter(is_active=True, is_staff=True, is_superuser=True).order_by("pk"):
        with translation.override(user.language):
            subject, text, html = render(ATTENTION, data={"what": str(what), "detail": detail}, secret={})
        mail.queue(
            key=f"{key}:{user.pk}", event=ATTENTION.name, to=user.email, subject=subject, text=text, html=html, at=at
        )
