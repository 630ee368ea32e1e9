"""Which organisation a person acts for, and making their own at sign-up."""

from datetime import datetime

from django.db import transaction
from django.http import Http404, HttpRequest

from gpunex.accounts.models import Membership, Organisation, User


@transaction.atomic
def open_personal(*, user: User, at: datetime) -> Organisation:
    """The user's personal organisation, made once; asking again returns it."""
    User.objects.select_for_update().get(pk=user.pk)
    existing = Organisation.objects.filter(created_by=user, personal=True).first()
    if existing is not None:
        return existing
    organisation = Organisation.objects.create(
        name=user.full_name or user.email.split("@")[0], created_by=user, created_at=at
    )
    Membership.objects.create(user=user, organisation=organisation, role=Membership.Role.OWNER, created_at=at)
    return organisation


# Who does things in an organisation's name; the other roles pay its bills, or look on.
MAY_ACT = (Membership.Role.OWNER, Membership.Role.MEMBER)


def may_act(user: User, organisation: Organisation | None) -> bool:
    """Whether ``user`` may rent, stop and offer things in the name of ``organisation``."""
    if not organisation:
        return False
    return Membership.objects.filter(user=user, organisation=organisation.pk, role__in=MAY_ACT).exists()


def organisation_of(request: HttpRequest) -> Organisation:
    """Whose page it is. Who belongs to no organisation any more finds no page of one."""
    organisation: Organisation | None = getattr(request, "organisation", None)  # put there by the middleware
    if not organisation:
        raise Http404
    return organisation


def acting_for(user: User, chosen_id: str | None) -> Organisation | None:
    """The organisation chosen in the session if the user belongs to it, else their first one."""
    memberships = Membership.objects.filter(user=user).select_related("organisation").order_by("pk")
    organisations = [membership.organisation for membership in memberships]
    return next(
        (found for found in organisations if str(found.public_id) == chosen_id),
        organisations[0] if organisations else None,
    )
