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

REQUEST_PAID = Event(
    name="deposit_request_paid",
    subject=_("%(amount_micro)s arrived for your deposit request"),
    paragraphs=(
        _("A payment of %(amount_micro)s for your request over %(asked_micro)s is final on chain and on your balance."),
        _("Transaction: %(signature)s"),
    ),
    action=_("Open the request"),
    path="/balance/requests/{request}",
    state="ok",
)

STRAY_ARRIVED = Event(
    name="stray_arrived",
    subject=_("Something else than USDC arrived for your deposit request"),
    paragraphs=(
        _(
            "A payment for your request over %(asked_micro)s came in another token than USDC. Only USDC on Solana can be put on a balance, "
            "so nothing was credited. We have been told and look into it."
        ),
        _("Transaction: %(signature)s"),
    ),
    action=_("Open the request"),
    path="/balance/requests/{request}",
    state="warn",
)

DEBT_OWED = Event(
    name="debt_owed",
    subject=_("%(amount_micro)s of a credit are still to be taken from your earnings"),
    paragraphs=(
        _(
            "A renter was credited for a break on your side, and your earnings covered only a part of it. "
            "The other %(amount_micro)s are taken from what you earn next, before your next payout."
        ),
        _("Together %(open_micro)s are open now. The Payouts tab shows what was taken."),
    ),
    action=_("Open your payouts"),
    path="/provider/payouts",
    state="warn",
)

REFUND_MADE = Event(
    name="refund_made",
    subject=_("%(amount_micro)s were refunded to your balance"),
    paragraphs=(
        _("We gave back %(amount_micro)s of what %(what)s was charged. It is on your balance now."),
        _("Reason: %(reason)s"),
    ),
    action=_("Open your balance"),
    path="/balance",
    state="ok",
)

BALANCE_RAISED = Event(
    name="balance_raised",
    subject=_("%(amount_micro)s were added to your balance"),
    paragraphs=(
        _("Our team corrected your balance by hand: %(amount_micro)s were added."),
        _("Reason: %(reason)s"),
    ),
    action=_("Open your balance"),
    path="/balance",
    state="ok",
)

BALANCE_LOWERED = Event(
    name="balance_lowered",
    subject=_("%(amount_micro)s were taken off your balance"),
    paragraphs=(
        _("Our team corrected your balance by hand: %(amount_micro)s were taken off."),
        _("Reason: %(reason)s"),
        _("If you think that this is wrong, answer this mail."),
    ),
    action=_("Open your balance"),
    path="/balance",
    state="warn",
)

EARNINGS_RAISED = Event(
    name="earnings_raised",
    subject=_("%(amount_micro)s were added to your earnings"),
    paragraphs=(
        _("Our team corrected your earnings by hand: %(amount_micro)s were added."),
        _("Reason: %(reason)s"),
    ),
    action=_("Open your earnings"),
    path="/provider/earnings",
    state="ok",
)

EARNINGS_LOWERED = Event(
    name="earnings_lowered",
    subject=_("%(amount_micro)s were taken off your earnings"),
    paragraphs=(
        _("Our team corrected your earnings by hand: %(amount_micro)s were taken off."),
        _("Reason: %(reason)s"),
        _("If you think that this is wrong, answer this mail."),
    ),
    action=_("Open your earnings"),
    path="/provider/earnings",
    state="warn",
)

BALANCE_LOW = Event(
    name="balance_low",
    subject=_("Your balance lasts until %(funded_at)s"),
    paragraphs=(
        _("Running now: %(what)s."),
        _(
            "Together they cost %(burn_micro)s per hour, so your balance is used up at %(funded_at)s. "
            "They are stopped then, and nothing more is charged."
        ),
        _(
            "A deposit that arrives before that keeps them running: your address and the QR code are on the Balance page."
        ),
    ),
    action=_("Add to your balance"),
    path="/balance",
    state="warn",
)

BALANCE_ENDING = Event(
    name="balance_ending",
    subject=_("Your rentals are stopped at %(funded_at)s: the balance ends"),
    paragraphs=(
        _("Running now: %(what)s."),
        _(
            "Together they cost %(burn_micro)s per hour, so your balance is used up at %(funded_at)s. "
            "They are stopped then, and nothing more is charged."
        ),
        _(
            "A deposit that arrives before that keeps them running: your address and the QR code are on the Balance page."
        ),
    ),
    action=_("Add to your balance"),
    path="/balance",
    state="bad",
)
