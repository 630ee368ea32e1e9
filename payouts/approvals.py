"""What leaves without a second look, and what two administrators approve first.

1. A payout up to the policy's cap a payout is approved when it is made. Above it, two administrators approve it.
2. Nothing of a run is signed or handed to a bank before the run is cleared: by itself once it is made, if its total is at most the
   policy's cap a run; else by two administrators. A payout that comes into a cleared run later waits if the total would be above that cap;
   one that comes into a run on its way to two approvals takes back the first: it was given to a smaller total.
3. Off-cycle payouts and returns are runs of one payout: approving it clears its run. What of them leaves without a second administrator
   within 24 hours stays below the cap of one run as well, so that many small ones drain no more than one large one may.
4. An administrator who asked for an off-cycle payout is the first of its two.
5. A run of a bank, or a payout outside the cycle, at a rate that jumped waits for two, whatever its amount (``payouts.bank.rates``).
"""

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Count, Sum
from django.utils.translation import gettext_lazy as _

from gpunex.accounts.models import User
from gpunex.kit.refusals import Refusal
from gpunex.policy.models import Policy
from payouts.models import Payout, PayoutRun
from payouts.notices import alert

APPROVALS = 2
ROLLING = timedelta(hours=24)
_BY_HAND = (PayoutRun.Kind.OFF_CYCLE, PayoutRun.Kind.RETURN)
_LEFT = (Payout.State.FAILED, Payout.State.RETURNED)


class StaffOnly(Refusal):
    code = "staff_only"
    message = _("Only an administrator may do this.")


class NotWaiting(Refusal):
    code = "not_waiting"
    message = _("This payout does not wait for an approval any more.")


class RunNotWaiting(Refusal):
    code = "run_not_waiting"
    message = _("This run does not wait for an approval.")


class ApprovedAlready(Refusal):
    code = "approved_already"
    message = _("You have approved this already; a second administrator has to.")


def total_micro(run: PayoutRun) -> int:
    """What the run pays, without what failed or came back."""
    payouts = Payout.objects.filter(run=run).exclude(state__in=_LEFT)
    return payouts.aggregate(micro=Sum("amount_micro"))["micro"] or 0


def may_go_alone(*, run: PayoutRun, amount_micro: int, at: datetime) -> bool:
    """Whether a payout that is about to be made in ``run`` needs no second administrator.

    Precondition: the run is locked; by hand, so is the policy (``lock_caps``), or two at once would each see room for themselves.
    """
    policy = Policy.load()
    if amount_micro > policy.payout_cap_micro:
        return False
    if run.kind in _BY_HAND:
        return alone_lately(at) + amount_micro <= policy.run_cap_micro
    return run.cleared_at is None or total_micro(run) + amount_micro <= policy.run_cap_micro


def alone_lately(at: datetime) -> int:
    """What off-cycle payouts and returns took within the last 24 hours without a second administrator."""
    alone = (
        Payout.objects.filter(run__kind__in=_BY_HAND, reserved_at__gt=at - ROLLING)
        .exclude(state__in=_LEFT)
        .annotate(approvals=Count("approved_by"))
        .filter(approvals__lt=APPROVALS)
        # One that waits has not left; it is looked at by people before it does.
        .exclude(state=Payout.State.RESERVED)
    )
    return sum(alone.values_list("amount_micro", flat=True))


def lock_caps() -> None:
    """One payout by hand at a time is judged. Precondition: inside a transaction, before any other lock."""
    Policy.load()
    list(Policy.objects.select_for_update(no_key=True).values_list("pk", flat=True))


@transaction.atomic
def approve(*, payout: Payout, by: User, at: datetime) -> Payout:
    """One administrator's yes; with the second one's the payout is approved. Raises StaffOnly, NotWaiting, ApprovedAlready."""
    if not by.is_staff:
        raise StaffOnly
    run = PayoutRun.objects.select_for_update(no_key=True).get(pk=payout.run_id)
    payout = Payout.objects.select_for_update(no_key=True).get(pk=payout.pk)
    if payout.state != Payout.State.RESERVED:
        raise NotWaiting
    if payout.approved_by.filter(pk=by.pk).exists():
        raise ApprovedAlready
    payout.approved_by.add(by)
    if payout.approved_by.count() < APPROVALS:
        return payout
    payout.state, payout.approved_at = Payout.State.APPROVED, at
    payout.save(update_fields=["state", "approved_at"])
    if run.kind in _BY_HAND and run.cleared_at is None:
        run.approved_by.add(*payout.approved_by.all())
        run.cleared_at = at
        run.save(update_fields=["cleared_at"])
    return payout


@transaction.atomic
def approve_run(*, run: PayoutRun, by: User, at: datetime) -> PayoutRun:
    """One administrator's yes to a whole run above the cap; with the second one's it is cleared.

    Its payouts above their own cap wait on for theirs. Raises StaffOnly, RunNotWaiting, ApprovedAlready.
    """
    if not by.is_staff:
        raise StaffOnly
    run = PayoutRun.objects.select_for_update(no_key=True).get(pk=run.pk)
    if not waits(run):
        raise RunNotWaiting
    if run.approved_by.filter(pk=by.pk).exists():
        raise ApprovedAlready
    run.approved_by.add(by)
    if run.approved_by.count() >= APPROVALS:
        run.cleared_at = at
        run.save(update_fields=["cleared_at"])
    return run


def waits(run: PayoutRun) -> bool:
    """Whether the run is made and two administrators have not approved it yet. One of a single payout is cleared with that payout."""
    return run.kind == PayoutRun.Kind.CYCLE and run.cleared_at is None and Payout.objects.filter(run=run).exists()


def clear_if_small(run: PayoutRun, *, at: datetime) -> None:
    """Once everybody's turn in the run has come: cleared if its total is within the cap, else every administrator is told.

    Precondition: inside a transaction that holds the run's lock.
    """
    if run.cleared_at is not None:
        return
    total, cap = total_micro(run), Policy.load().run_cap_micro
    if total <= cap:
        run.cleared_at = at
        run.save(update_fields=["cleared_at"])
        return
    alert(
        key=f"run-waits:{run.public_id}",
        what=_("a run waits for two approvals"),
        detail=_(
            "The run of %(period_end_at)s comes to %(total_micro)s; more than %(cap_micro)s needs two administrators."
        ),
        data={"period_end_at": run.period_end.isoformat(), "total_micro": total, "cap_micro": cap},
        at=at,
    )


def tell_of_rate(run: PayoutRun, *, at: datetime) -> None:
    """A run was made at a rate that jumped: it is not cleared by itself."""
    alert(
        key=f"run-waits:{run.public_id}",
        what=_("a run waits for two approvals"),
        detail=_(
            "The run of %(period_end_at)s was made at an exchange rate that jumped. Compare the rate with its source; two administrators "
            "approve the run before it leaves."
        ),
        data={"period_end_at": run.period_end.isoformat()},
        at=at,
    )


def tell_waiting(payout: Payout, *, at: datetime) -> None:
    """A payout was made that two administrators have to approve: none of them hears of it too late."""
    alert(
        key=f"payout-waits:{payout.public_id}",
        what=_("one waits for two approvals"),
        detail=_("A payout of %(amount_micro)s to %(organisation)s needs two administrators before it leaves."),
        data={"amount_micro": payout.amount_micro, "organisation": payout.organisation.name},
        at=at,
    )
