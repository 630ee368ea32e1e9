"""Whether a moment of a rental costs money, and why: the words that page, API and statement line share.

The codes are kept in statements and answered by the API, so they never change. Only ``running`` is billed; a charge line of a
statement cites it. ``marketplace.models.Rental.billing_at`` says which one a rental is in.

    code       billed  because
    ---------  ------  -----------------------------------------------------------------------------------------------
    starting   no      reserving, pulling and starting are free: the meter starts at the first sign of the running container
    running    yes     each whole second that its host proves, at the price agreed
    silent     no      the host is not heard from: nothing past its last proof is charged. If it comes back with the same
                       container still running, the time between counts as run
    unfunded   no      the balance is used up: nothing past that second is charged
    ending     no      a stop was asked for, or a limit reached: nothing past it is charged, nor past the container's end
    ended      no      it is over: what ran is charged, and nothing more will be
    broken     no      the provider's side broke it: nothing past the last proof is charged
    not_run    no      it ended before it ran: nothing was charged
"""

from django.db import models
from django.utils.translation import gettext_lazy as _


class Billable(models.TextChoices):
    """The states of the table above, each with its reason for people. ``label`` is that sentence."""

    STARTING = "starting", _("Starting is free: the meter starts when the container is first seen running.")
    RUNNING = "running", _("Each second that it is known to run is billed, at the price agreed when it was rented.")
    SILENT = (
        "silent",
        _(
            "The host is not heard from: nothing after its last sign of life is billed, unless it comes back still running."
        ),
    )
    UNFUNDED = "unfunded", _("The balance is used up: nothing after its last second is billed.")
    ENDING = "ending", _("It is being stopped: nothing after the stop is billed.")
    ENDED = "ended", _("It has ended: what ran was billed, and nothing after its end.")
    BROKEN = "broken", _("The provider’s side broke it: nothing after its last sign of life is billed.")
    NOT_RUN = "not_run", _("It ended before it ran: nothing was billed.")

    @property
    def billed(self) -> bool:
        return self == Billable.RUNNING

    @property
    def word(self) -> str:
        return str(_("billed") if self.billed else _("not billed"))
