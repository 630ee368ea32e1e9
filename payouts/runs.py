"""Payout runs: which payouts are due, made as rows from what the books say at the cut-off.

1. Periods are half-open and end Monday 00:00 (weekly) or the 1st 00:00 (monthly), UTC. That a run is due is a fact of the data
   (its period has ended and there is no row), never of the present hour: after a pause, each missed run is made, oldest first.
2. In a run: every organisation of that cadence with a payout method, whose earnings at the cut-off reach the minimum. Below it nothing
   is made and the balance carries over.
3. USDC is paid on Monday even if that is a holiday; monthly on the first business day of the Federal Reserve's calendar.
4. A payout moves its amount from payable to in transit in the transaction that makes it. Up to the policy's cap it is approved
   at once; above it, two administrators approve.

>>> period_ends(Cadence.WEEKLY, after=datetime(2026, 10, 14, tzinfo=UTC), until=datetime(2026, 10, 27, tzinfo=UTC))
[datetime.datetime(2026, 10, 19, 0, 0, tzinfo=datetime.timezone.utc), datetime.datetime(2026, 10, 26, 0, 0, tzinfo=datetime.timezone.utc)]
>>> execution_date(Cadence.MONTHLY, datetime(2026, 8, 1, tzinfo=UTC))
datetime.date(2026, 8, 3)
"""

from datetime import UTC, date, datetime, timedelta
from itertools import groupby

import structlog
from django.db import transaction
from django.db.models import Sum
from django.utils.translation import gettext_lazy as _

from billing import ledger, metering
from billing.ledger import Kind, Move, NotEnoughMoney, ReasonMissing
from billing.models import Account, Meter
from gpunex.accounts.models import Organisation, User
from gpunex.kit.refusals import Refusal
from gpunex.kit.time import first_business_day
from gpunex.policy.models import Policy
from payouts import failpoints
from payouts.methods import active_method, cadence_of
from payouts.models import Cadence, Payout, PayoutMethod, PayoutPreference, PayoutRun, Rail

log = structlog.get_logger(__name__)

APPROVALS_ABOVE_CAP = 2


class NoPayoutMethod(Refusal):
    code = "no_payout_method"
    message = _("No wallet is connected, so there is nowhere to pay to.")


class NothingToPay(Refusal):
    code = "nothing_to_pay"
    message = _("There is nothing to pay out now.")


class StaffOnly(Refusal):
    code = "staff_only"
    message = _("Only an administrator may do this.")


class NotWaiting(Refusal):
    code = "not_waiting"
    message = _("This payout does not wait for an approval any more.")


class ApprovedAlready(Refusal):
    code = "approved_already"
    message = _("You have approved this payout already; a second administrator has to.")


# --- periods ---------------------------------------------------------------------------------------------------------


def next_period_end(cadence: str, after: datetime) -> datetime:
    """The first cut-off of the cadence that is later than ``after``."""
    midnight = datetime.combine(after.astimezone(UTC).date(), datetime.min.time(), UTC)
    if cadence == Cadence.WEEKLY:
        return midnight + timedelta(days=7 - midnight.weekday())
    return (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)


def period_ends(cadence: str, *, after: datetime, until: datetime) -> list[datetime]:
    """The cut-offs later than ``after`` that have come by ``until``, oldest first."""
    ends = []
    end = next_period_end(cadence, after)
    while end <= until:
        ends.append(end)
        end = next_period_end(cadence, end)
    return ends


def period_start(cadence: str, end: datetime) -> datetime:
    """When the period that ends at ``end`` began."""
    return end - timedelta(days=7) if cadence == Cadence.WEEKLY else (end - timedelta(days=1)).replace(day=1)


def execution_date(cadence: str, period_end: datetime) -> date:
    """The day on which USDC of that period is paid."""
    if cadence == Cadence.WEEKLY:
        return period_end.date()
    return first_business_day(period_end.year, period_end.month, calendar="FED")


def minimum_micro(cadence: str, policy: Policy) -> int:
    return policy.weekly_minimum_micro if cadence == Cadence.WEEKLY else policy.monthly_minimum_micro


# --- cycles ----------------------------------------------------------------------------------------------------------


def make_due(*, at: datetime) -> int:
    """Make every run whose period has ended, and the payouts in it. Returns how many payouts were made. Repeating it is harmless."""
    for cadence in Cadence.values:
        for period_end in _missing(cadence, at=at):
            PayoutRun.objects.get_or_create(
                kind=PayoutRun.Kind.CYCLE,
                rail=Rail.USDC,
                cadence=cadence,
                period_end=period_end,
                defaults={"execute_on": execution_date(cadence, period_end), "created_at": at},
            )
    unmade = list(PayoutRun.objects.filter(kind=PayoutRun.Kind.CYCLE, made_at=None).order_by("period_end", "pk"))
    if not unmade:
        return 0
    metering.settle_payees(at=at)
    made = 0
    for _end, runs in groupby(unmade, key=lambda run: run.period_end):
        # Who is in which run is read before any is made: a cadence that changes at this cut-off counts from the next one.
        made += sum(
            _make(run, organisations, at=at) for run, organisations in [(run, _of_cadence(run)) for run in runs]
        )
    return made


def _missing(cadence: str, *, at: datetime) -> list[datetime]:
    last = PayoutRun.objects.filter(kind=PayoutRun.Kind.CYCLE, cadence=cadence).order_by("-period_end").first()
    if last is not None:
        return period_ends(cadence, after=last.period_end, until=at)
    # Nobody had anything to be paid before the first account for it was made.
    first = Account.objects.filter(kind=Kind.PROVIDER_PAYABLE).order_by("created_at").first()
    return period_ends(cadence, after=first.created_at, until=at) if first else []


def _make(run: PayoutRun, organisations: list[Organisation], *, at: datetime) -> int:
    made = 0
    complete = True
    for organisation in organisations:
        try:
            made += _pay_in_cycle(run=run, organisation=organisation, at=at)
        except Exception:
            complete = False
            log.exception("payout_not_made", run=str(run.public_id), organisation=str(organisation.public_id))
    if complete:
        PayoutRun.objects.filter(pk=run.pk).update(made_at=at)
    return made


def _of_cadence(run: PayoutRun) -> list[Organisation]:
    organisations = Organisation.objects.filter(accounts__kind=Kind.PROVIDER_PAYABLE).order_by("pk")
    if run.cadence == Cadence.WEEKLY:
        return list(organisations.exclude(payout_preference__cadence=Cadence.MONTHLY))
    return list(organisations.filter(payout_preference__cadence=run.cadence))


@transaction.atomic
def _pay_in_cycle(*, run: PayoutRun, organisation: Organisation, at: datetime) -> bool:
    if Payout.objects.filter(run=run, organisation=organisation).exists():
        return False
    method = active_method(organisation, at)
    amount = payable_at(organisation, run.period_end)
    due = method is not None and amount >= minimum_micro(run.cadence, Policy.load())
    if due and method is not None:
        _reserve(run=run, organisation=organisation, method=method, amount_micro=amount, by=None, at=at)
    # A cadence chosen during the period counts from the one that begins now.
    preference = PayoutPreference.objects.filter(organisation=organisation).exclude(next_cadence="").first()
    if preference is not None:
        preference.cadence, preference.next_cadence = preference.next_cadence, ""
        preference.save(update_fields=["cadence", "next_cadence"])
    return due


def payable_at(organisation: Organisation, cut_off: datetime | None) -> int:
    """What was earned (before ``cut_off``, if given), is not paid out yet and need not be kept back.

    Locks the account until the transaction ends.
    """
    account = ledger.account(Kind.PROVIDER_PAYABLE, organisation=organisation)
    account = Account.objects.select_for_update(no_key=True).get(pk=account.pk)
    later = 0
    if cut_off is not None:
        later = account.incoming.filter(effective_at__gte=cut_off).aggregate(total=Sum("amount_micro"))["total"] or 0
    return max(0, account.balance_micro - later - kept_back(organisation))


def kept_back(organisation: Organisation) -> int:
    """What stays until the rentals that run now have ended: the most that a break of them would credit to their renters.

    Without it a provider could be paid for a rental, break it, and leave its credit to the platform. The longest credit
    of any tier is counted, since a meter knows no tiers; once a rental ends well all of it is payable.
    """
    policy = Policy.load()
    minutes = max(policy.sla_community_minutes, policy.sla_enterprise_minutes)
    return sum(
        min(billed - fee, rate * minutes // 60)
        for billed, fee, rate in Meter.objects.filter(payee=organisation, closed=False).values_list(
            "billed_gross_micro", "billed_fee_micro", "rate_micro_per_hour"
        )
    )


# --- by hand ---------------------------------------------------------------------------------------------------------


def pay_off_cycle(
    *, organisation: Organisation, by: User, reason: str, at: datetime, amount_micro: int | None = None
) -> Payout:
    """Pay what was earned so far, or ``amount_micro`` of it, outside the cycle and also below the minimum.

    Raises StaffOnly, ReasonMissing, NoPayoutMethod, NothingToPay, NotEnoughMoney.
    """
    if not by.is_staff:
        raise StaffOnly
    if not reason.strip():
        raise ReasonMissing
    metering.settle_payees(payees=[organisation], at=at)
    return _pay_off_cycle(
        organisation=organisation, by=by, reason=reason.strip()[:300], at=at, amount_micro=amount_micro
    )


@transaction.atomic
def _pay_off_cycle(
    *, organisation: Organisation, by: User, reason: str, at: datetime, amount_micro: int | None
) -> Payout:
    method = active_method(organisation, at)
    if method is None:
        raise NoPayoutMethod
    have = payable_at(organisation, None)
    amount = have if amount_micro is None else amount_micro
    if amount <= 0:
        raise NothingToPay
    if amount > have:
        raise NotEnoughMoney(needed_micro=amount, have_micro=have)
    run = PayoutRun.objects.create(
        kind=PayoutRun.Kind.OFF_CYCLE,
        rail=Rail.USDC,
        period_end=at,
        execute_on=at.astimezone(UTC).date(),
        created_at=at,
        created_by=by,
        reason=reason,
        made_at=at,
    )
    return _reserve(run=run, organisation=organisation, method=method, amount_micro=amount, by=by, at=at)


@transaction.atomic
def approve(*, payout: Payout, by: User, at: datetime) -> Payout:
    """One administrator's yes; above the cap a second one's is needed too. Raises StaffOnly, NotWaiting, ApprovedAlready."""
    if not by.is_staff:
        raise StaffOnly
    payout = Payout.objects.select_for_update(no_key=True).get(pk=payout.pk)
    if payout.state != Payout.State.RESERVED:
        raise NotWaiting
    if payout.approved_by.filter(pk=by.pk).exists():
        raise ApprovedAlready
    payout.approved_by.add(by)
    above = payout.amount_micro > Policy.load().payout_cap_micro
    if payout.approved_by.count() >= (APPROVALS_ABOVE_CAP if above else 1):
        payout.state, payout.approved_at = Payout.State.APPROVED, at
        payout.save(update_fields=["state", "approved_at"])
    return payout


def _reserve(
    *,
    run: PayoutRun,
    organisation: Organisation,
    method: PayoutMethod,
    amount_micro: int,
    by: User | None,
    at: datetime,
) -> Payout:
    """Precondition: inside a transaction that holds the lock of the organisation's payable account."""
    approved = amount_micro <= Policy.load().payout_cap_micro
    payout = Payout.objects.create(
        run=run,
        organisation=organisation,
        amount_micro=amount_micro,
        rail=method.rail,
        destination=method.address,
        state=Payout.State.APPROVED if approved else Payout.State.RESERVED,
        reserved_at=at,
        approved_at=at if approved else None,
    )
    if by is not None:
        payout.approved_by.add(by)
    ledger.post(
        key=f"payout:{payout.public_id}:reserve",
        debit=ledger.account(Kind.PROVIDER_PAYABLE, organisation=organisation),
        credit=ledger.account(Kind.IN_TRANSIT, organisation=organisation, reference=payout.public_id),
        amount_micro=amount_micro,
        kind=Move.PAYOUT,
        reference=str(payout.public_id),
        actor=by,
        reason=run.reason,
        at=at,
    )
    failpoints.passing("before reserving is committed")
    return payout


def next_payout(organisation: Organisation, at: datetime) -> tuple[str, datetime, date]:
    """The cadence in force, its next cut-off, and the day on which that is paid."""
    cadence = cadence_of(organisation).cadence
    end = next_period_end(cadence, at)
    return cadence, end, execution_date(cadence, end)
