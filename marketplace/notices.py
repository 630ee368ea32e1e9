"""What the marketplace tells people by mail and in their dashboard."""

from django.utils.translation import gettext_lazy as _

from gpunex.accounts.notices import Event

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

MAINTENANCE = Event(
    name="marketplace.maintenance",
    subject=_("Planned maintenance on %(machine)s, on which your rental runs"),
    paragraphs=(
        _(
            "The provider of %(machine)s has announced maintenance from %(starts_at)s to %(ends_at)s. Your rental of %(gpus)s × %(model)s "
            "runs on it."
        ),
        _(
            "It is not ended for that, but the host may go down. Save your work before, or stop it and run it again on another offer. "
            "What the host breaks is not charged past the break."
        ),
    ),
    action=_("See the rental"),
    path="/rentals/{rental}",
    state="warn",
)
