"""Members that our team adds, changes or removes: the owners are told, as they are of every change of where their money goes."""

from datetime import datetime

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import Membership
from gpunex.accounts.notices import Event, notify


class Did(TextChoices):
    ADDED = "added", _("added")
    CHANGED = "changed", _("has another role now")
    REMOVED = "removed", _("removed")


MEMBERS_CHANGED = Event(
    name="members_changed",
    subject=_("The members of your organisation were changed"),
    paragraphs=(
        _("%(who)s (%(role)s): %(did)s."),
        _("Our team did that. If none of you asked for it, write to us at once."),
    ),
    state="warn",
    words={"role": dict(Membership.Role.choices), "did": dict(Did.choices)},
)


def tell(*, membership: Membership, did: Did, at: datetime) -> None:
    """Tell the owners as they are now: before a removal, after anything else. Precondition: inside a transaction."""
    notify(
        organisation=membership.organisation,
        event=MEMBERS_CHANGED,
        key=f"member:{membership.organisation_id}:{membership.user_id}:{did}:{at.isoformat()}",
        at=at,
        data={"who": membership.user.email, "role": membership.role, "did": did.value},
    )
