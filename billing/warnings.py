"""Telling a payer before the money ends: once a crossing, early and again late.

1. What counts is how long the balance lasts at the present burn: ``funded_until`` of the meters that run.
2. Below the policy's hours (24 and 1 at first) the owners are told, once. Told is a row (``BalanceWarning``), which is lifted when the
   balance lasts a quarter longer than those hours: a deposit of a cent at the line brings no mail after mail.
3. Only the most urgent is sent: who starts a rental with an hour's money gets one mail, and counts as told of the earlier one too.
4. While nothing runs nothing is said and nothing is lifted: many short rentals on a small balance bring one warning, not one each.
5. Once the money has ended the rental's own mail says so; no warning comes after the fact.

>>> lifted(24, timedelta(hours=29)), lifted(24, timedelta(hours=31))
(False, True)
"""

from datetime import datetime, timedelta

import structlog
from django.db import transaction

from billing.models import BalanceWarning, Meter
from billing.notices import BALANCE_ENDING, BALANCE_LOW
from gpunex.accounts.models import Organisation
from gpunex.accounts.notices import notify
from gpunex.policy.models import Policy

log = structlog.get_logger(__name__)

NAMED_AT_MOST = 5


def lifted(hours: int, left: timedelta) -> bool:
    """Whether a balance that lasts ``left`` is well beyond a warning of ``hours``."""
    return left > timedelta(hours=hours) * 5 / 4


def warn(*, at: datetime) -> int:
    """Tell every payer whose balance has come below a line, and lift what no longer holds. Returns how many were told."""
    policy = Policy.load()
    lines = sorted({policy.warning_hours_late, policy.warning_hours_early})
    running: dict[int, list[Meter]] = {}
    for meter in Meter.objects.filter(closed=False, ended_at=None).order_by("payer_id", "pk"):
        running.setdefault(meter.payer_id, []).append(meter)
    standing: dict[int, list[BalanceWarning]] = {}
    for row in BalanceWarning.objects.filter(lifted_at=None, organisation__in=running):
        standing.setdefault(row.organisation_id, []).append(row)
    told = 0
    for payer, meters in running.items():
        try:
            told += _warn_payer(payer, meters, standing.get(payer, []), lines=lines, at=at)
        except Exception:  # one payer's mail never stops the others'
            log.exception("payer_not_warned", payer=payer)
    return told


def _warn_payer(
    payer: int, meters: list[Meter], standing: list[BalanceWarning], *, lines: list[int], at: datetime
) -> int:
    ends_at = min(meter.funded_until for meter in meters)
    left = ends_at - at
    over = [row.pk for row in standing if lifted(row.hours, left)]
    crossed = [hours for hours in lines if timedelta(0) < left <= timedelta(hours=hours)]
    known = {row.hours for row in standing}
    new = [hours for hours in crossed if hours not in known]
    if not over and not new:
        return 0
    with transaction.atomic():
        BalanceWarning.objects.filter(pk__in=over).update(lifted_at=at)
        made = [
            row
            for row, was_made in (
                BalanceWarning.objects.get_or_create(
                    organisation_id=payer, hours=hours, lifted_at=None, defaults={"warned_at": at}
                )
                for hours in new
            )
            if was_made
        ]
        # The most urgent that holds is the one to say; where that was said before, an earlier one is not said after it.
        urgent = next((row for row in made if row.hours == crossed[0]), None)
        if urgent is None:
            return 0
        notify(
            organisation=Organisation.objects.get(pk=payer),
            event=BALANCE_ENDING if urgent.hours == lines[0] else BALANCE_LOW,
            key=f"balance_warning:{urgent.pk}",
            data={
                "what": _what(meters),
                "burn_micro": sum(meter.rate_micro_per_hour for meter in meters),
                "funded_at": ends_at.isoformat(),
            },
            at=at,
        )
    return 1


def _what(meters: list[Meter]) -> str:
    """What runs, in words that need no language: ``2 × H100 80GB (fra-1), 1 × L4 24GB (mad-2)``."""
    named = [
        f"{meter.quantity} × {meter.labels.get('model', '')} ({meter.labels.get('machine', '')})"
        for meter in meters[:NAMED_AT_MOST]
    ]
    return ", ".join(named) + (f" … +{len(meters) - NAMED_AT_MOST}" if len(meters) > NAMED_AT_MOST else "")
