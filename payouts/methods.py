"""Where an organisation's money goes: on each rail one destination in force, and at most one that waits to replace it.

1. The first destination of all counts at once, unless whoever named it joined the organisation less than a cool-down ago. A change
   counts after the policy's cool-down (48 hours), until when the old one stands; the owners are told by mail, and may cancel.
2. The rail and the cadence that an organisation picks count from its next period (``take_up_choices``). A rail is taken up only if
   its destination is in force and was named a cool-down ago or longer: another rail is no way around rule 1.
3. A wallet is kept only with a proof that its owner holds its key (``payouts.challenges``), a bank account only encrypted.
4. A payout keeps the destination that was in force when it was made; a change never redirects it.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import Membership, Organisation, User
from gpunex.accounts.notices import Event, notify
from gpunex.kit import secrets
from gpunex.kit.refusals import Refusal
from gpunex.policy.models import Policy
from payouts import notices
from payouts.models import PayoutMethod, PayoutPreference, Rail
from providers.models import Provider

MAY_CHANGE = (Membership.Role.OWNER, Membership.Role.BILLING)


class NotForThisRole(Refusal):
    code = "not_for_this_role"
    message = _("Only an owner of the organisation, or somebody with its billing role, may change where payouts go.")


class ConnectedAlready(Refusal):
    code = "connected_already"
    message = _("This is where payouts go already.")


class NothingToCancel(Refusal):
    code = "nothing_to_cancel"
    message = _("No change is waiting.")


class NoDestinationThere(Refusal):
    code = "no_destination_there"
    message = _("First say where money goes by this way: connect a wallet, or enter the bank account.")


# --- what stands -----------------------------------------------------------------------------------------------------


def active_method(organisation: Organisation, at: datetime, rail: str | None = None) -> PayoutMethod | None:
    """Where money paid ``at`` by ``rail`` goes, by default the rail that the organisation is paid by; None if nothing is there."""
    rail = rail or rail_of(organisation)
    return PayoutMethod.objects.in_force(at).filter(organisation=organisation, rail=rail).first()


def waiting_method(organisation: Organisation, at: datetime, rail: str | None = None) -> PayoutMethod | None:
    """The change of that rail's destination that comes into force later, if one was asked for."""
    rail = rail or rail_of(organisation)
    return PayoutMethod.objects.standing(at).filter(organisation=organisation, rail=rail, active_from__gt=at).first()


@dataclass(frozen=True)
class Destination:
    """What stands on one rail: ``method`` in force or None, the change that waits or None, and whether payouts go here now or next."""

    rail: Rail
    method: PayoutMethod | None
    waiting: PayoutMethod | None
    in_use: bool
    next: bool


def destinations(organisation: Organisation, at: datetime) -> list[Destination]:
    """Each rail that has a destination, or one that waits; the one in use first."""
    preference = cadence_of(organisation)
    standing: dict[str, dict[bool, PayoutMethod]] = {}
    for method in PayoutMethod.objects.standing(at).filter(organisation=organisation):
        standing.setdefault(method.rail, {}).setdefault(method.active_from <= at, method)
    found = [
        Destination(
            rail=Rail(rail),
            method=of_rail.get(True),
            waiting=of_rail.get(False),
            in_use=rail == preference.rail,
            next=rail == (preference.next_rail or preference.rail),
        )
        for rail, of_rail in standing.items()
    ]
    return sorted(found, key=lambda one: (not one.in_use, Rail.values.index(one.rail)))


def details_of(method: PayoutMethod) -> dict[str, str]:
    """A bank account as it was entered. Only what makes a transfer, or proves it, reads this; pages show ``method.shown``."""
    return secrets.decrypt(method.details) if method.details else {}


def may_change(organisation: Organisation, user: User) -> bool:
    return Membership.objects.filter(organisation=organisation, user=user, role__in=MAY_CHANGE).exists()


def who_may_change(organisation: Organisation) -> list[User]:
    """The people who may change where the organisation's money goes."""
    return list(
        User.objects.filter(
            memberships__organisation=organisation, memberships__role__in=MAY_CHANGE, is_active=True
        ).order_by("full_name", "pk")
    )


def cadence_of(organisation: Organisation) -> PayoutPreference:
    """The organisation's choices; weekly, in USDC, where it never chose. The row may be unsaved."""
    return PayoutPreference.objects.filter(organisation=organisation).first() or PayoutPreference(
        organisation=organisation
    )


def rail_of(organisation: Organisation) -> Rail:
    """The rail that the organisation is paid by now."""
    return Rail(cadence_of(organisation).rail)


def cool_down() -> timedelta:
    return timedelta(hours=Policy.load().wallet_cool_down_hours)


def trusted_from(method: PayoutMethod) -> datetime:
    """From when on money goes to ``method`` whatever rail was picked: at once to the first destination of all, else a cool-down later."""
    first = not PayoutMethod.objects.filter(organisation=method.organisation_id, pk__lt=method.pk).exists()
    return method.active_from if first else max(method.active_from, method.created_at + cool_down())


# --- changes ---------------------------------------------------------------------------------------------------------


@transaction.atomic
def keep_method(
    *,
    organisation: Organisation,
    rail: str,
    by: User,
    at: datetime,
    address: str = "",
    details: dict[str, str] | None = None,
    masked: str = "",
    country: str = "",
    proof: dict[str, Any] | None = None,
) -> PayoutMethod:
    """Make this the rail's destination: at once if it is the first, else after the cool-down, in place of a change that waited.
    Also the first one waits if it is named by somebody who has only just come.

    A wallet has an ``address`` that was looked at on chain, and the ``proof`` that its owner signed; a bank account has its
    ``details`` in clear (encrypted here), what is shown of them, and the bank's country. The organisation's first destination of
    all also makes its rail the one to be paid by. A wallet in force that was never proven (of an earlier version) is proven thereby, and
    nothing else changes. Raises NotForThisRole, ConnectedAlready.
    """
    if rail == Rail.USDC and not (address and proof):
        raise ValueError("a wallet is kept with the proof that its owner signed")
    if rail != Rail.USDC and not (details and masked):
        raise ValueError("a bank account is kept with its details and with what is shown of them")
    Organisation.objects.select_for_update(no_key=True).get(pk=organisation.pk)
    if not may_change(organisation, by):
        raise NotForThisRole
    standing = active_method(organisation, at, rail)
    if standing is not None and _same(standing, address=address, details=details):
        if not proof or standing.verified_at is not None:
            raise ConnectedAlready
        standing.proof, standing.verified_at = proof, at
        standing.save(update_fields=["proof", "verified_at"])
        return standing
    if not PayoutMethod.objects.standing(at).filter(organisation=organisation).exists():
        PayoutPreference.objects.update_or_create(organisation=organisation, defaults={"rail": rail, "next_rail": ""})
    _waiting(organisation, rail, at).update(removed_at=at)
    method = PayoutMethod.objects.create(
        organisation=organisation,
        rail=rail,
        address=address,
        details=secrets.encrypt(details) if details else None,
        masked=masked,
        country=country,
        proof=proof or {},
        created_by=by,
        created_at=at,
        verified_at=at if proof else None,
        active_from=at if standing is None and not _is_new(by, organisation, at=at) else at + cool_down(),
    )
    data = {"address": address or masked, "by": by.email}
    if standing is None and method.active_from > at:
        event = notices.DESTINATION_WAITS
        data |= {"active_at": method.active_from.isoformat()}
    elif standing is None:
        event = notices.WALLET_CONNECTED if rail == Rail.USDC else notices.BANK_CONNECTED
    else:
        event = notices.WALLET_CHANGES if rail == Rail.USDC else notices.BANK_CHANGES
        data |= {"before": standing.address or standing.masked, "active_at": method.active_from.isoformat()}
    _tell(method, event, "asked", at=at, data=data)
    return method


@transaction.atomic
def cancel_change(*, organisation: Organisation, by: User, at: datetime, rail: str | None = None) -> None:
    """Let the destination in force stand. Raises NotForThisRole, NothingToCancel."""
    Organisation.objects.select_for_update(no_key=True).get(pk=organisation.pk)
    if not may_change(organisation, by):
        raise NotForThisRole
    rail = rail or rail_of(organisation)
    waiting = _waiting(organisation, rail, at).first()
    if waiting is None:
        raise NothingToCancel
    _waiting(organisation, rail, at).update(removed_at=at)
    standing = active_method(organisation, at, rail)
    data = {"address": waiting.address or waiting.masked, "by": by.email}
    if standing is not None:
        data["before"] = standing.address or standing.masked
    event = notices.CHANGE_CANCELLED if standing is not None else notices.DESTINATION_DROPPED
    _tell(waiting, event, "cancelled", at=at, data=data)


@transaction.atomic
def choose_rail(*, organisation: Organisation, rail: str, by: User, at: datetime) -> PayoutPreference:
    """Be paid by another rail from the next period on; at once if the present one leads nowhere. Raises NotForThisRole, NoDestinationThere."""
    Organisation.objects.select_for_update(no_key=True).get(pk=organisation.pk)
    if not may_change(organisation, by):
        raise NotForThisRole
    destination = PayoutMethod.objects.standing(at).filter(organisation=organisation, rail=rail).last()
    if destination is None:
        raise NoDestinationThere
    preference, _made = PayoutPreference.objects.select_for_update(no_key=True).get_or_create(organisation=organisation)
    if preference.rail == rail:
        preference.next_rail = ""
    elif active_method(organisation, at, preference.rail) is None:
        preference.rail, preference.next_rail = rail, ""
    else:
        preference.next_rail, preference.next_rail_at = rail, at
        notify(
            organisation=organisation,
            event=notices.RAIL_CHOSEN,
            key=f"rail:{organisation.pk}:{rail}:{at.isoformat()}",
            at=at,
            data={"address": destination.address or destination.masked, "by": by.email},
        )
    preference.save(update_fields=["rail", "next_rail", "next_rail_at"])
    return preference


@transaction.atomic
def choose_cadence(*, organisation: Organisation, cadence: str, by: User, at: datetime) -> PayoutPreference:
    """Be paid weekly or monthly, from the next period on. Raises NotForThisRole."""
    if not may_change(organisation, by):
        raise NotForThisRole
    preference, _made = PayoutPreference.objects.select_for_update(no_key=True).get_or_create(organisation=organisation)
    preference.next_cadence, preference.next_cadence_at = ("", None) if preference.cadence == cadence else (cadence, at)
    preference.save(update_fields=["next_cadence", "next_cadence_at"])
    return preference


def take_up_choices(*, organisation: Organisation, cut_off: datetime, at: datetime) -> None:
    """At the end of an organisation's period: what it picked before the cut-off counts for the periods after it.

    A run may be made late: what was picked in the meantime counts from a later cut-off. A rail waits for a later period while its
    destination is younger than the cool-down. Precondition: inside a transaction.
    """
    preference = PayoutPreference.objects.select_for_update(no_key=True).filter(organisation=organisation).first()
    if preference is None or not (preference.next_cadence or preference.next_rail):
        return
    if preference.next_cadence and _before(preference.next_cadence_at, cut_off):
        preference.cadence, preference.next_cadence, preference.since = preference.next_cadence, "", cut_off
    if preference.next_rail and _before(preference.next_rail_at, cut_off):
        method = active_method(organisation, at, preference.next_rail)
        if method is not None and method.created_at + cool_down() <= at:
            preference.rail, preference.next_rail, preference.since = preference.next_rail, "", cut_off
    preference.save(update_fields=["cadence", "next_cadence", "rail", "next_rail", "since"])


def _before(chosen_at: datetime | None, cut_off: datetime) -> bool:
    return chosen_at is None or chosen_at < cut_off


def _waiting(organisation: Organisation, rail: str, at: datetime) -> Any:
    return PayoutMethod.objects.standing(at).filter(organisation=organisation, rail=rail, active_from__gt=at)


def _is_new(user: User, organisation: Organisation, *, at: datetime) -> bool:
    """Whether ``user`` joined less than a cool-down ago. Memberships are made by our staff: none of us gets at anybody's money that way."""
    if organisation.created_by_id == user.pk:
        return False
    return Membership.objects.filter(organisation=organisation, user=user, created_at__gt=at - cool_down()).exists()


def _same(method: PayoutMethod, *, address: str, details: dict[str, str] | None) -> bool:
    return method.address == address if address else details_of(method) == details


def _tell(method: PayoutMethod, event: Event, what: str, *, at: datetime, data: dict[str, str]) -> None:
    if not Provider.objects.filter(organisation=method.organisation_id).exists():
        event = notices.OF_BALANCE.get(event.name, event)
    notify(organisation=method.organisation, event=event, key=f"method:{method.pk}:{what}", at=at, data=data)
