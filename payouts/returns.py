"""Unused balance goes back to its owner, through the payout path: the same attempts, caps, statement and receipts.

1. Only an owner or somebody with the billing role asks, and only to the USDC wallet in force whose owner proved by a signature to hold
   its key. A wallet that waits for its cool-down is not in force, and one that was connected beside a bank account waits for it here.
2. What running rentals need for the policy's runway stays: a return never cuts short what was started. Everything below is unused.
3. From one USDC on, or everything that is left.
4. Once per ``key``, which the page makes: pressing twice, or sending again after a lost answer, returns the first one. The same key with
   another amount is refused. A return that failed stays failed under its key: the money is balance again, and a new one takes a new key.
5. Caps: ``payouts.approvals``. The network's fee is the platform's.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid5

from django.db import transaction
from django.utils.translation import gettext_lazy as _

from billing import ledger, metering, statements
from billing.ledger import Kind, Move, NotEnoughMoney, Posting
from billing.models import Account
from gpunex.accounts.models import Organisation, User
from gpunex.accounts.notices import notify
from gpunex.kit import show
from gpunex.kit.refusals import Refusal
from gpunex.policy.models import Policy
from payouts import approvals, failpoints, methods
from payouts.methods import NotForThisRole
from payouts.models import Payout, PayoutMethod, PayoutRun, Rail
from payouts.notices import RETURN_ASKED

LEAST_MICRO = 1_000_000


class NoWalletToReturnTo(Refusal):
    code = "no_wallet_to_return_to"
    message = _(
        "Connect a wallet first, and sign with it: unused balance goes back only to a wallet that is proven to be yours."
    )


class WalletNotProven(Refusal):
    code = "wallet_not_proven"
    message = _(
        "The wallet in force was connected without a signature. Sign with it once; then balance can go back to it."
    )


class WalletTooNew(Refusal):
    code = "wallet_too_new"
    message = _(
        "This wallet was connected beside the bank account that payouts go to. Balance can go back to it from %(when)s on; the owners were told."
    )


class NothingUnused(Refusal):
    code = "nothing_unused"
    message = _("Nothing can be returned now: the balance is empty, or the running rentals need it. Stop them first.")


class LessThanLeast(Refusal):
    code = "less_than_least"
    message = _("Return %(least)s USDC at least, or everything: %(all)s USDC.")


class MoreThanUnused(NotEnoughMoney):
    code = "more_than_unused"
    message = _(
        "At most %(have)s USDC can be returned now: your balance, less what running rentals need for their next hour."
    )


class AnotherRequest(Refusal):
    code = "another_request"
    message = _("This request was sent already, for %(amount)s USDC. Open the page again to ask for another amount.")


@dataclass(frozen=True, slots=True)
class Unused:
    """What an organisation can have back: its balance, less what its running rentals need for their runway."""

    available_micro: int
    needed_micro: int

    @property
    def micro(self) -> int:
        return max(0, self.available_micro - self.needed_micro)


def unused(organisation: Organisation, *, at: datetime) -> Unused:
    """As known ``at``; asking for it settles first, so a little more may have been used by then."""
    position = metering.position(organisation, at=at)
    needed = -(-position.burn_micro_per_hour * Policy.load().runway_seconds // 3600)
    return Unused(available_micro=max(0, position.available_micro), needed_micro=needed)


def destination(organisation: Organisation, at: datetime) -> PayoutMethod:
    """The wallet that balance goes back to. Raises NoWalletToReturnTo, WalletNotProven, WalletTooNew."""
    method = methods.active_method(organisation, at, Rail.USDC)
    if method is None:
        raise NoWalletToReturnTo
    if method.verified_at is None:
        raise WalletNotProven
    trusted_from = methods.trusted_from(method)
    if at < trusted_from:
        raise WalletTooNew(when=show.moment(trusted_from))
    return method


@transaction.atomic
def ask_back(*, organisation: Organisation, amount_micro: int | None, by: User, at: datetime, key: str) -> Payout:
    """Send ``amount_micro`` of the unused balance back, or everything (None), once per ``key``.

    Raises NotForThisRole, NoWalletToReturnTo, WalletNotProven, WalletTooNew, NothingUnused, LessThanLeast, MoreThanUnused, AnotherRequest.
    """
    if not methods.may_change(organisation, by):
        raise NotForThisRole
    approvals.lock_caps()
    metering.settle_payer(organisation=organisation, at=at)  # and holds the payer's lock until this is committed
    run_id = run_of(organisation, key)
    asked = Payout.objects.filter(run__public_id=run_id).first()
    if asked is not None:
        if amount_micro not in (None, asked.amount_micro):
            raise AnotherRequest(amount=show.usdc(asked.amount_micro, fine=True))
        return asked
    method = destination(organisation, at)
    have = unused(organisation, at=at)
    amount = have.micro if amount_micro is None else amount_micro
    if have.micro <= 0:
        raise NothingUnused
    if amount > have.micro:
        raise MoreThanUnused(needed_micro=amount, have_micro=have.micro)
    if amount < min(LEAST_MICRO, have.micro):
        raise LessThanLeast(least=show.usdc(LEAST_MICRO), all=show.usdc(have.micro, fine=True))
    run = PayoutRun.objects.create(
        public_id=run_id,
        kind=PayoutRun.Kind.RETURN,
        rail=Rail.USDC,
        period_end=at,
        execute_on=at.astimezone(UTC).date(),
        created_at=at,
        created_by=by,
        made_at=at,
    )
    return _set_aside(run=run, method=method, organisation=organisation, amount_micro=amount, have=have, by=by, at=at)


def run_of(organisation: Organisation, key: str) -> UUID:
    """The run that a request of this key makes: the same key finds it again for ever."""
    return uuid5(organisation.public_id, f"return:{key}")


def _set_aside(
    *,
    run: PayoutRun,
    method: PayoutMethod,
    organisation: Organisation,
    amount_micro: int,
    have: Unused,
    by: User,
    at: datetime,
) -> Payout:
    """Precondition: inside a transaction that holds the payer's lock."""
    balance = ledger.account(Kind.RENTER_BALANCE, organisation=organisation)
    Account.objects.select_for_update(no_key=True).get(pk=balance.pk)
    alone = approvals.may_go_alone(run=run, amount_micro=amount_micro, at=at)
    payout = Payout(
        run=run,
        organisation=organisation,
        amount_micro=amount_micro,
        rail=Rail.USDC,
        destination=method.address,
        method=method,
        state=Payout.State.APPROVED if alone else Payout.State.RESERVED,
        reserved_at=at,
        approved_at=at if alone else None,
    )
    payout.statement_sha256 = statements.issue_payout(
        organisation=organisation,
        reference=str(payout.public_id),
        amount_micro=amount_micro,
        period_start=_last_return(organisation, at=at),
        period_end=at,
        later_micro=0,
        kept_micro=have.needed_micro,
        at=at,
        kind_of_run=run.kind,
        source=Kind.RENTER_BALANCE,
    ).sha256
    failpoints.passing("the statement was issued")
    payout.save(force_insert=True)
    if alone:
        run.cleared_at = at
        run.save(update_fields=["cleared_at"])
    else:
        approvals.tell_waiting(payout, at=at)
    posting = Posting(
        key=f"payout:{payout.public_id}:reserve",
        debit=balance,
        credit=ledger.account(Kind.IN_TRANSIT, organisation=organisation, reference=payout.public_id),
        amount_micro=amount_micro,
        kind=Move.PAYOUT,
        reference=str(payout.public_id),
        actor=by,
    )
    metering.move_and_fund(organisation=organisation, postings=[posting], at=at)
    notify(
        organisation=organisation,
        event=RETURN_ASKED,
        key=f"payout:{payout.public_id}:asked",
        at=at,
        data={
            "amount_micro": amount_micro,
            "destination": payout.destination,
            "by": by.email,
            "payout": str(payout.public_id),
        },
    )
    failpoints.passing("before reserving is committed")
    transaction.on_commit(lambda: failpoints.passing("reserved and committed"))
    return payout


def _last_return(organisation: Organisation, *, at: datetime) -> datetime:
    last = (
        Payout.objects.filter(organisation=organisation, run__kind=PayoutRun.Kind.RETURN)
        .order_by("-run__period_end")
        .values_list("run__period_end", flat=True)
        .first()
    )
    return min(last or organisation.created_at, at - timedelta(seconds=1))
