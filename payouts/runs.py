"""Payout runs: which payouts are due, made as rows from what the books say at the cut-off.

1. A run is a rail, a cadence and a cut-off. That it is due is a fact of the data (its period has ended and there is no row), never of
   the present hour: after a pause each missed run is made, oldest first. Cadence and rail are those in force for that cut-off; a change
   counts from the next period, so that nobody is in two runs of one Monday.
2. In a run: every organisation whose payable at the cut-off reaches the minimum and that has somewhere to be paid to. Below it nothing is
   made and the balance carries over.
3. One transaction makes one payout: under the lock of what is payable, debts are recovered, the amount is computed, the statement is
   issued, the money is set aside. If any of it fails, none of it happened, and the others of the run go on.
4. A bank pays whole cents at a rate of the day: without a fresh rate its run waits, the administrators are told, and other rails go on.
5. Caps and approvals: ``payouts.approvals``. When and on which day: ``payouts.periods``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from typing import NamedTuple
from uuid import UUID, uuid4, uuid5

import structlog
from django.db import transaction
from django.utils.translation import gettext_lazy as _

from billing import ledger, metering, statements
from billing.ledger import Kind, Move, NotEnoughMoney, ReasonMissing
from billing.models import Account
from gpunex.accounts.models import Organisation, User
from gpunex.kit.conflicts import retrying
from gpunex.kit.refusals import Refusal
from gpunex.policy.models import Policy
from payouts import approvals, failpoints
from payouts.approvals import StaffOnly
from payouts.bank import RAILS as BANKS
from payouts.bank import currency_of, rates, transfers
from payouts.bank.rates import Converted
from payouts.methods import active_method, cadence_of, take_up_choices
from payouts.models import Cadence, FxRate, Payout, PayoutMethod, PayoutPreference, PayoutRun, Rail
from payouts.notices import alert
from payouts.payable import Payable, after_debts, payable_at
from payouts.periods import execution_date, minimum_micro, next_period_end, period_ends, period_start

log = structlog.get_logger(__name__)


class NoPayoutMethod(Refusal):
    code = "no_payout_method"
    message = _("No destination is in force, so there is nowhere to pay to.")


class NothingToPay(Refusal):
    code = "nothing_to_pay"
    message = _("There is nothing to pay out now.")


class AccountInDoubt(Refusal):
    code = "account_in_doubt"
    message = _(
        "The last transfer to this bank account came back. Its owner has to confirm the account, or give another one."
    )


# --- cycles ----------------------------------------------------------------------------------------------------------


def make_due(*, at: datetime) -> int:
    """Make every run whose period has ended, and the payouts in it. Returns how many payouts were made. Repeating it is harmless."""
    _open_runs(at=at)
    unmade = list(PayoutRun.objects.filter(kind=PayoutRun.Kind.CYCLE, made_at=None).order_by("period_end", "pk"))
    if not unmade:
        return 0
    metering.settle_payees(at=at)
    made = 0
    for _end, group in groupby(unmade, key=lambda run: run.period_end):
        # Who is in which run is read before any is made: what is taken up at this cut-off counts from the next one.
        earners = _earners()
        made += sum(_make(run, members, at=at) for run, members in [(run, _of(run, earners)) for run in group])
    return made


@dataclass(frozen=True, slots=True)
class _Earner:
    """An organisation that ever earned something, since when, and how it is paid."""

    organisation: Organisation
    since: datetime
    balance_micro: int
    preference: PayoutPreference

    def counts_for(self, *, rail: str, cadence: str, cut_off: datetime) -> bool:
        picked = self.preference
        in_force = picked.since is None or picked.since < cut_off
        return self.since < cut_off and in_force and (picked.rail, picked.cadence) == (rail, cadence)


def _earners() -> list[_Earner]:
    accounts = Account.objects.filter(kind=Kind.PROVIDER_PAYABLE, organisation__isnull=False).order_by("organisation")
    return [
        _Earner(
            organisation=row.organisation,
            since=row.created_at,
            balance_micro=row.balance_micro,
            preference=getattr(row.organisation, "payout_preference", None)
            or PayoutPreference(organisation=row.organisation),
        )
        for row in accounts.select_related("organisation__payout_preference")
        if row.organisation is not None
    ]


def _of(run: PayoutRun, earners: Sequence[_Earner]) -> list[_Earner]:
    return [
        earner for earner in earners if earner.counts_for(rail=run.rail, cadence=run.cadence, cut_off=run.period_end)
    ]


def _open_runs(*, at: datetime) -> None:
    """A row for each rail, cadence and cut-off that has come, has none, and has somebody in it."""
    first = Account.objects.filter(kind=Kind.PROVIDER_PAYABLE).order_by("created_at").first()
    if first is None:
        return
    picked = set(PayoutPreference.objects.values_list("rail", "cadence").distinct()) | {(Rail.USDC, Cadence.WEEKLY)}
    earners: list[_Earner] | None = None
    for rail, cadence in sorted(picked):
        last = (
            PayoutRun.objects.filter(kind=PayoutRun.Kind.CYCLE, rail=rail, cadence=cadence)
            .order_by("-period_end")
            .first()
        )
        for end in period_ends(cadence, after=last.period_end if last else first.created_at, until=at):
            earners = _earners() if earners is None else earners
            if not any(earner.counts_for(rail=rail, cadence=cadence, cut_off=end) for earner in earners):
                continue
            PayoutRun.objects.get_or_create(
                kind=PayoutRun.Kind.CYCLE,
                rail=rail,
                cadence=cadence,
                period_end=end,
                defaults={"execute_on": execution_date(cadence, end, rail), "created_at": at},
            )
            failpoints.passing("a run was opened")


def _make(run: PayoutRun, members: Sequence[_Earner], *, at: datetime) -> int:
    """Everybody's turn in one run. One that fails is tried again by the next sweep and stops nobody else."""
    if run.rail in BANKS and not _has_rate(run, at=at):
        return 0
    made, failed = 0, 0
    least = minimum_micro(run.cadence, Policy.load())
    for earner in members:
        if earner.balance_micro < least and not (earner.preference.next_cadence or earner.preference.next_rail):
            continue
        try:
            made += retrying(_turn)(run=run, organisation=earner.organisation, at=at)
        except Exception:
            failed += 1
            log.exception("payout_not_made", run=str(run.public_id), organisation=str(earner.organisation.public_id))
    _turns_are_over(run, failed=failed, at=at)
    return made


def _has_rate(run: PayoutRun, *, at: datetime) -> bool:
    try:
        rates.rate_in_force(currency_of(run.rail), at)
    except Refusal as refusal:
        log.warning("run_waits_for_a_rate", run=str(run.public_id), reason=refusal.code)
        with transaction.atomic():
            alert(
                key=f"rate:{run.public_id}:{at:%Y%m%d}",
                what=_("a run waits for an exchange rate"),
                detail=_("The %(rail)s run of %(period_end_at)s is not made. %(refusal)s"),
                data={
                    "rail": Rail(run.rail).label,
                    "period_end_at": run.period_end.isoformat(),
                    "refusal": refusal,
                },
                at=at,
            )
        return False
    return True


@transaction.atomic
def _turns_are_over(run: PayoutRun, *, failed: int, at: datetime) -> None:
    run = PayoutRun.objects.select_for_update(no_key=True).get(pk=run.pk)
    used = FxRate.objects.filter(transfers__payout__run=run).distinct()
    if run.cleared_at is None and any(rates.jumped(rate) for rate in used):
        approvals.tell_of_rate(run, at=at)
    else:
        approvals.clear_if_small(run, at=at)
    if not failed and run.made_at is None:
        run.made_at = at
        run.save(update_fields=["made_at"])
    elif failed:
        alert(
            key=f"not-made:{run.public_id}:{at:%Y%m%d}",
            what=_("payouts of a run could not be made"),
            detail=_("Of the run of %(period_end_at)s %(failed)s are missing. They are tried again; the log says why."),
            data={"period_end_at": run.period_end.isoformat(), "failed": failed},
            at=at,
        )
    failpoints.passing("before clearing is committed")
    transaction.on_commit(lambda: failpoints.passing("the run was cleared"))


@transaction.atomic
def _turn(*, run: PayoutRun, organisation: Organisation, at: datetime) -> bool:
    """One organisation's turn in a run, once."""
    run = PayoutRun.objects.select_for_update(no_key=True).get(pk=run.pk)
    if Payout.objects.filter(run=run, organisation=organisation).exists():
        return False
    method = active_method(organisation, at, run.rail)
    due = method is not None and transfers.doubt(method) is None
    made = (
        _pay(
            run=run,
            organisation=organisation,
            method=method,
            least_micro=max(1, minimum_micro(run.cadence, Policy.load())),
            at=at,
        )
        if due and method is not None
        else None
    )
    take_up_choices(organisation=organisation, cut_off=run.period_end, at=at)
    return made is not None


def _pay(
    *, run: PayoutRun, organisation: Organisation, method: PayoutMethod, least_micro: int, at: datetime
) -> Payout | None:
    """What is payable at the run's cut-off, if it is the minimum at least; None else."""
    payable = payable_at(organisation, run.period_end)
    if payable.micro < least_micro:
        return None
    payable = after_debts(organisation, payable, at=at)
    if payable.micro < least_micro:
        return None
    converted = rates.convert(payable.micro, currency_of(run.rail), at) if run.rail in BANKS else None
    return _reserve(
        run=run,
        organisation=organisation,
        method=method,
        amount_micro=converted.cost_micro if converted else payable.micro,
        payable=payable,
        converted=converted,
        by=None,
        at=at,
    )


# --- by hand ---------------------------------------------------------------------------------------------------------


def pay_off_cycle(
    *,
    organisation: Organisation,
    by: User,
    reason: str,
    at: datetime,
    amount_micro: int | None = None,
    key: str = "",
) -> Payout:
    """Pay what was earned so far, or ``amount_micro`` of it, outside the cycle and also below the minimum.

    Once per ``key``, which the page makes: a form that is sent twice pays once, and the second time returns that payout.
    Raises StaffOnly, ReasonMissing, NoPayoutMethod, AccountInDoubt, NothingToPay, NotEnoughMoney, and what ``rates.convert`` refuses.
    """
    if not by.is_staff:
        raise StaffOnly
    if not reason.strip():
        raise ReasonMissing
    metering.settle_payees(payees=[organisation], at=at)
    run_id = uuid5(organisation.public_id, f"off-cycle:{key}") if key else uuid4()
    return _pay_off_cycle(
        run_id=run_id, organisation=organisation, by=by, reason=reason.strip()[:300], at=at, amount_micro=amount_micro
    )


@transaction.atomic
def _pay_off_cycle(
    *, run_id: UUID, organisation: Organisation, by: User, reason: str, at: datetime, amount_micro: int | None
) -> Payout:
    approvals.lock_caps()
    before = Payout.objects.filter(run__public_id=run_id).first()
    if before is not None:
        return before
    method = active_method(organisation, at)
    if method is None:
        raise NoPayoutMethod
    if transfers.doubt(method) is not None:
        raise AccountInDoubt
    payable = after_debts(organisation, payable_at(organisation, None), at=at)
    amount = payable.micro if amount_micro is None else amount_micro
    if amount <= 0:
        raise NothingToPay
    if amount > payable.micro:
        raise NotEnoughMoney(needed_micro=amount, have_micro=payable.micro)
    converted = rates.convert(amount, currency_of(method.rail), at) if method.rail in BANKS else None
    run = PayoutRun.objects.create(
        public_id=run_id,
        kind=PayoutRun.Kind.OFF_CYCLE,
        rail=method.rail,
        period_end=at,
        execute_on=execution_day(method.rail, at),
        created_at=at,
        created_by=by,
        reason=reason,
        made_at=at,
    )
    return _reserve(
        run=run,
        organisation=organisation,
        method=method,
        amount_micro=converted.cost_micro if converted else amount,
        payable=payable,
        converted=converted,
        by=by,
        at=at,
    )


def execution_day(rail: str, at: datetime) -> date:
    """The day on which a payout outside the cycle leaves: today, or for a bank its next business day."""
    midnight = datetime.combine(at.astimezone(UTC).date(), datetime.min.time(), UTC)
    return execution_date(Cadence.WEEKLY, midnight, rail)


# --- setting aside ---------------------------------------------------------------------------------------------------


def _reserve(
    *,
    run: PayoutRun,
    organisation: Organisation,
    method: PayoutMethod,
    amount_micro: int,
    payable: Payable,
    converted: Converted | None,
    by: User | None,
    at: datetime,
) -> Payout:
    """Precondition: inside a transaction that holds the locks of the run and of the organisation's payable account."""
    alone = approvals.may_go_alone(run=run, amount_micro=amount_micro, at=at)
    # The rest of a cycle waits with its whole run.
    by_itself = run.kind == PayoutRun.Kind.OFF_CYCLE or run.cleared_at is not None
    if converted is not None and by_itself and rates.jumped(converted.rate):
        alone = False
    payout = Payout(
        run=run,
        organisation=organisation,
        amount_micro=amount_micro,
        rail=method.rail,
        destination=method.address or method.masked,
        method=method,
        state=Payout.State.APPROVED if alone else Payout.State.RESERVED,
        reserved_at=at,
        approved_at=at if alone else None,
    )
    statement = statements.issue_payout(
        organisation=organisation,
        reference=str(payout.public_id),
        amount_micro=amount_micro,
        period_start=_began(run, organisation, at=at),
        period_end=run.period_end,
        later_micro=payable.later_micro,
        kept_micro=payable.kept_micro,
        at=at,
        kind_of_run=run.kind,
        source=Kind.PROVIDER_PAYABLE,
    )
    payout.statement_sha256 = statement.sha256
    failpoints.passing("the statement was issued")
    payout.save(force_insert=True)
    if by is not None:
        payout.approved_by.add(by)
    elif run.cleared_at is None:
        run.approved_by.clear()  # whoever approved the run has not seen this payout in it
    if run.kind == PayoutRun.Kind.OFF_CYCLE and alone:
        run.cleared_at = at
        run.save(update_fields=["cleared_at"])
    if converted is not None:
        transfers.attach(payout=payout, converted=converted, at=at)
    if not alone:
        approvals.tell_waiting(payout, at=at)
    ledger.post(
        key=f"payout:{payout.public_id}:reserve",
        debit=payable.account,
        credit=ledger.account(Kind.IN_TRANSIT, organisation=organisation, reference=payout.public_id),
        amount_micro=amount_micro,
        kind=Move.PAYOUT,
        reference=str(payout.public_id),
        actor=by,
        reason=run.reason,
        at=at,
    )
    failpoints.passing("before reserving is committed")
    transaction.on_commit(lambda: failpoints.passing("reserved and committed"))
    return payout


def _began(run: PayoutRun, organisation: Organisation, *, at: datetime) -> datetime:
    """From when on a payout's statement counts: its period's start; outside the cycle, the last cut-off that was paid."""
    if run.cadence:
        return period_start(run.cadence, run.period_end)
    last = (
        Payout.objects.filter(organisation=organisation)
        .exclude(run__kind=PayoutRun.Kind.RETURN)
        .order_by("-run__period_end")
        .values_list("run__period_end", flat=True)
        .first()
    )
    earliest = last or organisation.created_at
    return min(earliest, at - timedelta(seconds=1))


# --- what comes next -------------------------------------------------------------------------------------------------


class NextPayout(NamedTuple):
    """The period that runs now: how it is paid, when it ends, and on which day it is paid."""

    cadence: str
    cut_off: datetime
    execute_on: date
    rail: str


def next_payout(organisation: Organisation, at: datetime) -> NextPayout:
    """The next cut-off of an organisation. What it picked for later counts after that one."""
    picked = cadence_of(organisation)
    end = next_period_end(picked.cadence, at)
    while picked.since is not None and end <= picked.since:
        end = next_period_end(picked.cadence, end)
    return NextPayout(picked.cadence, end, execution_date(picked.cadence, end, picked.rail), picked.rail)
