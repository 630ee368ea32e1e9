"""What the marketplace tells people by mail and in their dashboard."""

from datetime import datetime

from django.db import transaction
from django.utils.translation import gettext_lazy as _

from billing.models import Deposit
from gpunex.accounts.models import Notice, Organisation
from gpunex.accounts.notices import Event, notify

FIRST_RENTAL = Event(
    name="marketplace.first_rental",
    subject=_("Your first rental is running on %(machine)s"),
    paragraphs=(
        _("Somebody rents %(gpus)s × %(model)s of yours on %(machine)s, for %(price_micro)s per GPU per hour."),
        _("You are credited as it runs, minus the platform fee. The Earnings tab shows it second by second."),
    ),
    action=_("Open your dashboard"),
    path="/provider",
    state="ok",
)

PROVIDER_BROKE = Event(
    name="marketplace.provider_broke",
    subject=_("The host broke your rental on %(machine)s; you are not charged past the break"),
    paragraphs=(
        _(
            "Your rental of %(gpus)s × %(model)s ended at %(ended_at)s, the last moment that it was seen running. Its page says what happened."
        ),
        _("Charged until then: %(charged_micro)s. Credited to your balance for the fault: %(credit_micro)s."),
        _("Other offers of %(model)s can be rented now."),
    ),
    action=_("See the rental"),
    path="/rentals/{rental}",
    state="bad",
)

BALANCE_LOW = Event(
    name="marketplace.balance_low",
    subject=_("Your balance lasts until %(funded_at)s"),
    paragraphs=(
        _(
            "At what your rentals cost now, your balance is used up at %(funded_at)s. They are stopped then, and nothing more is charged."
        ),
        _("A deposit that arrives before that keeps them running."),
    ),
    action=_("Add to your balance"),
    path="/balance",
    state="warn",
)

OUT_OF_MONEY = Event(
    name="marketplace.out_of_money",
    subject=_("A rental on %(machine)s was stopped: the balance is used up"),
    paragraphs=(
        _("Your rental of %(gpus)s × %(model)s ended at %(ended_at)s. Charged for it: %(charged_micro)s."),
        _("After a deposit you can run it again from its page."),
    ),
    action=_("See the rental"),
    path="/rentals/{rental}",
    state="warn",
)


def warn_of_low_balance(*, organisation: Organisation, funded_until: datetime, at: datetime) -> None:
    """Once for each stretch without a deposit: what was said once is not said every few seconds."""
    last = Deposit.objects.filter(organisation=organisation).order_by("-pk").values_list("public_id", flat=True).first()
    key = f"{BALANCE_LOW.name}:{organisation.public_id}:{last or 'none'}:{at:%Y-%m-%d}"
    if Notice.objects.filter(key=key).exists():
        return
    with transaction.atomic():
        notify(
            organisation=organisation, event=BALANCE_LOW, key=key, data={"funded_at": funded_until.isoformat()}, at=at
        )
