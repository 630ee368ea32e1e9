"""What billing tells an organisation."""

from django.utils.translation import gettext_lazy as _

from gpunex.accounts.notices import Event

DEPOSIT_CREDITED = Event(
    name="deposit_credited",
    subject=_("%(amount_micro)s arrived on your balance"),
    paragraphs=(
        _("Your deposit of %(amount_micro)s is final on chain and on your balance."),
        _("Transaction: %(signature)s"),
    ),
    action=_("Open your balance"),
    path="/balance",
    state="ok",
)
