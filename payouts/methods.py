"""Where an organisation's payouts go: one wallet in force, and at most one that waits to replace it.

1. The first wallet counts at once. A change counts after 48 hours, until when the old one stands; the owners are told by mail.
2. An address is accepted only if the chain says that it is a wallet (``gpunex.chain.addresses``).
3. A payout keeps the address that was in force when it was made; a change never redirects it.
"""

from datetime import datetime, timedelta

from django.db import transaction
from django.utils.translation import gettext_lazy as _

from billing import treasury
from gpunex.accounts.models import Membership, Organisation, User
from gpunex.accounts.notices import notify
from gpunex.chain.addresses import check_wallet
from gpunex.chain.rpc import RpcError, RpcUnavailable
from gpunex.kit.refusals import Refusal
from payouts.models import Cadence, PayoutMethod, PayoutPreference, Rail
from payouts.notices import WALLET_CHANGES, WALLET_CONNECTED

COOL_DOWN = timedelta(hours=48)
MAY_CHANGE = (Membership.Role.OWNER, Membership.Role.BILLING)


class NotForThisRole(Refusal):
    code = "not_for_this_role"
    message = _("Only an owner of the organisation, or somebody with its billing role, may change where payouts go.")


class ConnectedAlready(Refusal):
    code = "connected_already"
    message = _("This wallet is the one that payouts go to already.")


class ChainSilent(Refusal):
    code = "chain_silent"
    message = _(
        "The Solana network did not answer, so the address could not be checked. Nothing was changed; try again in a minute."
    )


class NothingToCancel(Refusal):
    code = "nothing_to_cancel"
    message = _("No change of wallet is waiting.")


def active_method(organisation: Organisation, at: datetime) -> PayoutMethod | None:
    """Where a payout made ``at`` goes; None if nothing is connected."""
    return PayoutMethod.objects.in_force(at).filter(organisation=organisation).first()


def waiting_method(organisation: Organisation, at: datetime) -> PayoutMethod | None:
    """The change that comes into force later, if one was asked for."""
    return PayoutMethod.objects.standing(at).filter(organisation=organisation, active_from__gt=at).first()


def may_change(organisation: Organisation, user: User) -> bool:
    return Membership.objects.filter(organisation=organisation, user=user, role__in=MAY_CHANGE).exists()


def connect_wallet(*, organisation: Organisation, address: str, by: User, at: datetime) -> PayoutMethod:
    """Make ``address`` the wallet that payouts go to: at once if it is the first, else after 48 hours.

    Raises NotForThisRole, ConnectedAlready, ChainSilent, and what ``check_wallet`` refuses an address for.
    """
    if not may_change(organisation, by):
        raise NotForThisRole
    try:
        # The mint is refused as what it is, not as an address of ours.
        ours = treasury.is_ours(address) and address != treasury.mint()
        wallet = check_wallet(rpc=treasury.rpc(), text=address, own=[address] if ours else [])
    except (RpcUnavailable, RpcError) as error:
        raise ChainSilent from error
    return _keep(organisation=organisation, wallet=wallet, by=by, at=at)


@transaction.atomic
def _keep(*, organisation: Organisation, wallet: str, by: User, at: datetime) -> PayoutMethod:
    Organisation.objects.select_for_update(no_key=True).get(pk=organisation.pk)
    standing = active_method(organisation, at)
    if standing is not None and standing.address == wallet:
        raise ConnectedAlready
    PayoutMethod.objects.standing(at).filter(organisation=organisation, active_from__gt=at).update(removed_at=at)
    method = PayoutMethod.objects.create(
        organisation=organisation,
        rail=Rail.USDC,
        address=wallet,
        created_by=by,
        created_at=at,
        active_from=at if standing is None else at + COOL_DOWN,
    )
    data = {"address": wallet, "by": by.email}
    if standing is None:
        notify(organisation=organisation, event=WALLET_CONNECTED, key=f"wallet:{method.pk}", at=at, data=data)
    else:
        data |= {"before": standing.address, "active_at": method.active_from.isoformat()}
        notify(organisation=organisation, event=WALLET_CHANGES, key=f"wallet:{method.pk}", at=at, data=data)
    return method


@transaction.atomic
def cancel_change(*, organisation: Organisation, by: User, at: datetime) -> None:
    """Let the wallet in force stand. Raises NotForThisRole, NothingToCancel."""
    if not may_change(organisation, by):
        raise NotForThisRole
    if (
        not PayoutMethod.objects.standing(at)
        .filter(organisation=organisation, active_from__gt=at)
        .update(removed_at=at)
    ):
        raise NothingToCancel


def cadence_of(organisation: Organisation) -> PayoutPreference:
    """The organisation's choice; weekly where it never chose. The row may be unsaved."""
    return PayoutPreference.objects.filter(organisation=organisation).first() or PayoutPreference(
        organisation=organisation
    )


@transaction.atomic
def choose_cadence(*, organisation: Organisation, cadence: Cadence, by: User, at: datetime) -> PayoutPreference:
    """Be paid weekly or monthly, from the next period on. Raises NotForThisRole."""
    if not may_change(organisation, by):
        raise NotForThisRole
    preference, _made = PayoutPreference.objects.select_for_update(no_key=True).get_or_create(organisation=organisation)
    preference.next_cadence = "" if preference.cadence == cadence else cadence
    preference.save(update_fields=["next_cadence"])
    return preference
