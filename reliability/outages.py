"""The platform's own outages, in which nobody's silence counts.

Two things show one:

- The platform did not run: ``watch`` leaves a mark each time, and the mark is missing for longer than the offline time.
- It runs, and nobody gets through: most machines fall silent at once. Recorded from the first of them on, and over when
  they are heard from again, at the latest after six hours; then the ordinary rules take over.

"Most" is counted so that nobody can stage it. When a machine is about to be called offline, each one that is connected and
has been silent for half the offline time counts as silent. At least five machines of two providers have to be, and

- half of all machines, so that accounts with a machine each are not enough,
- half of all providers, each with one vote that is the share of its machines, so that one with many machines is not enough,
- and both again without any one provider, whichever it is: nobody's own outage becomes the platform's by somebody else's
  bad luck.

>>> of_a = [(1, True)] * 100   # a provider that pulls its plug
>>> of_b, of_c = [(2, True), *[(2, False)] * 4], [(3, False)] * 5
>>> are_most_silent([*of_a, *of_b, *of_c])
False
>>> are_most_silent([*of_a, *[(2, True)] * 5, *[(3, True)] * 4, (3, False)])
True
"""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta

import structlog
from django.db import transaction
from django.db.models import Q

from gpunex.policy.models import Policy
from providers.models import Machine
from reliability.models import PlatformOutage, Watch

log = structlog.get_logger(__name__)

SHARE = 0.5
LEAST_MACHINES, LEAST_PROVIDERS = 5, 2
LONGEST = timedelta(hours=6)


@transaction.atomic
def leave_mark(*, at: datetime, longest_gap: timedelta) -> PlatformOutage | None:
    """We run at ``at``. The outage that this shows, if we had not run for longer than ``longest_gap``."""
    mark, made = Watch.objects.select_for_update().get_or_create(pk=1, defaults={"at": at})
    before, mark.at = mark.at, max(mark.at, at)
    if made:
        return None
    mark.save(update_fields=["at"])
    if at - before <= longest_gap:
        return None
    return PlatformOutage.objects.create(started_at=before, ended_at=at, recorded_at=at)


@transaction.atomic
def watch_silence(*, at: datetime, offline_seconds: int) -> PlatformOutage | None:
    """Open, extend or end the outage that the silence of most machines is. Returns it while it lasts."""
    limit = timedelta(seconds=offline_seconds)
    ongoing = PlatformOutage.objects.select_for_update().filter(ongoing=True).first()
    if ongoing is None:
        connected = Machine.objects.live().filter(offline_since=None, connected_since__isnull=False)
        if not connected.filter(last_seen_at__lte=at - limit).exists() or _just_over(at, limit):
            return None
    # Those that went a moment ago went with the others.
    there = Machine.objects.live().filter(connected_since__isnull=False)
    there = there.filter(
        Q(offline_since=None) | Q(offline_since__gt=(ongoing.started_at if ongoing else at) - 2 * limit)
    )
    rows = [(provider, seen) for provider, seen in there.values_list("provider_id", "last_seen_at") if seen is not None]
    # Who fell silent in an outage that is over, and stayed so, does not fall silent again.
    over = PlatformOutage.objects.filter(kind=PlatformOutage.Kind.SILENCE, ongoing=False).order_by("-ended_at").first()
    known_until = over.started_at + limit if over else None
    lasts = are_most_silent(
        (provider, seen <= at - limit / 2 and (known_until is None or seen > known_until)) for provider, seen in rows
    )
    if ongoing is None:
        return _open(rows, at=at, since=at - limit / 2) if lasts else None
    ongoing.ended_at = max(at, ongoing.ended_at)
    ongoing.ongoing = lasts and at - ongoing.started_at < LONGEST
    ongoing.save(update_fields=["ended_at", "ongoing"])
    return ongoing if ongoing.ongoing else None


def _open(rows: list[tuple[int, datetime]], *, at: datetime, since: datetime) -> PlatformOutage:
    silent = [(provider, seen) for provider, seen in rows if seen <= since]
    log.warning("machines_silent", silent=len(silent), machines=len(rows))
    return PlatformOutage.objects.create(
        kind=PlatformOutage.Kind.SILENCE,
        started_at=min(seen for _provider, seen in silent),
        ended_at=at,
        ongoing=True,
        recorded_at=at,
        evidence={
            "machines": len(rows),
            "silent": len(silent),
            "providers": len({provider for provider, _seen in rows}),
            "providers_silent": len({provider for provider, _seen in silent}),
        },
    )


def _just_over(at: datetime, limit: timedelta) -> bool:
    return PlatformOutage.objects.filter(ended_at__gt=at - limit).exists()


def are_most_silent(machines: Iterable[tuple[int, bool]]) -> bool:
    """Whether this is the platform's silence; each machine is its provider's key and whether it is silent."""
    there: Counter[int] = Counter()
    silent: Counter[int] = Counter()
    for provider, quiet in machines:
        there[provider] += 1
        silent[provider] += quiet
    if silent.total() < LEAST_MACHINES or sum(count > 0 for count in silent.values()) < LEAST_PROVIDERS:
        return False
    votes = {provider: silent[provider] / count for provider, count in there.items()}
    total_votes = sum(votes.values())
    return all(
        silent.total() - silent[left_out] >= SHARE * (there.total() - there[left_out])
        and total_votes - votes[left_out] >= SHARE * (len(there) - 1)
        for left_out in there
    ) and (silent.total() >= SHARE * there.total() and total_votes >= SHARE * len(there))


def patience(*, at: datetime, policy: Policy | None = None) -> int:
    """For how many seconds a machine may be silent at ``at`` before its offers go: an outage of ours comes on top."""
    seconds = (policy or Policy.load()).offline_seconds
    limit = timedelta(seconds=seconds)
    recent = PlatformOutage.objects.filter(ended_at__gt=at - limit, started_at__lte=at).order_by("started_at").first()
    return seconds if recent is None else seconds + int((at - recent.started_at).total_seconds()) + 1
