"""The reliability score: what it is, what it rests on, and what took points off it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_safe

from gpunex.desk import Desk
from gpunex.kit import show
from gpunex.kit.spans import Span, common, seconds, without
from gpunex.kit.templatetags import ui
from marketplace.models import Rental
from providers.fleet import Host
from providers.models import Machine
from providers.views import words
from providers.views.access import provider_page
from providers.views.score import score_rows
from reliability import score as formula
from reliability import scores
from reliability.models import Outcome

MACHINES_A_PAGE = 10
LOSSES_SHOWN = 20
SHORTEST_GAP = timedelta(seconds=60)  # shorter ones are the rhythm of heartbeats
SMALLEST_LOSS = 0.01  # points; below it −0.00 would be shown


@dataclass(frozen=True)
class Loss:
    """Something that took points off the score, and how many it takes now."""

    what: str
    note: str
    host: Host
    component: str
    points: float
    at: datetime
    halved_at: datetime


@provider_page
@require_safe
def performance(request: HttpRequest) -> HttpResponse:
    """The score of all machines together; below it the machines of one page with their losses and days."""
    desk: Desk = request.desk
    ordered = sorted(desk.fleet.hosts, key=lambda host: (_score_of(desk, host), host.machine.name))
    page = Paginator(ordered, MACHINES_A_PAGE).get_page(request.GET.get("page"))
    policy, reliability = desk.policy, desk.reliability
    pasts = scores.pasts_of([host.machine for host in page], at=desk.at, policy=policy)
    faults = _faults([host.machine for host in page])
    losses = (
        [loss for host in page for loss in _losses(desk, host, pasts[host.machine.pk], faults)] if reliability else []
    )
    losses.sort(key=lambda loss: -loss.points)
    return render(
        request,
        "providers/performance.html",
        {
            "nav": "performance",
            "reliability": reliability,
            "score": score_rows(reliability, _notes(desk)),
            "lost": show.cut((10_000 - int(reliability.score * 100 + 1e-6)) / 100, 2) if reliability else "",
            "losses": losses[:LOSSES_SHOWN],
            "rest": _rest(desk, losses) if page.paginator.num_pages == 1 else "",
            "page": page,
            "rows": [_row(desk, host, pasts[host.machine.pk]) for host in page],
            "first_day": desk.at - timedelta(days=policy.score_window_days - 1),
            "middle_day": desk.at - timedelta(days=policy.score_window_days // 2),
            "at": desk.at,
            "policy": policy,
            "weights": {
                "uptime": 100 * formula.UPTIME,
                "completion": 100 * formula.COMPLETION,
                "consistency": 100 * formula.CONSISTENCY,
            },
            "prior_hours": int(formula.PRIOR_HOURS),
            "version": formula.VERSION,
            "machines": len(desk.fleet.hosts),
            "away": [_away(desk, host) for host in page if not host.connected and host.machine.last_seen_at],
        },
    )


def _score_of(desk: Desk, host: Host) -> float:
    score = desk.scores.get(host.machine.pk)
    return score.score if score else 101.0


def _notes(desk: Desk) -> dict[str, str]:
    """What the parts rest on, over all machines with a score."""
    inputs = [score.inputs for score in desk.scores.values()]
    hours = int(sum(row.get("declared_hours", 0) for row in inputs))
    jobs, runs = (sum(row.get(name, 0) for row in inputs) for name in ("jobs", "runs"))
    return {
        "uptime": ngettext("%(hours)s declared hour", "%(hours)s declared hours", hours) % {"hours": show.cut(hours)},
        "completion": ngettext("%(count)s job", "%(count)s jobs", jobs) % {"count": show.cut(jobs)},
        "consistency": ngettext("%(count)s run against the first", "%(count)s runs against the first", runs)
        % {"count": show.cut(runs)},
    }


# --- where the points went -------------------------------------------------------------------------------------------


def _losses(desk: Desk, host: Host, past: dict[str, Any], faults: dict[tuple[int, datetime], str]) -> list[Loss]:
    """Each event's price: the score as it would be without it, less the score as it is, by the machine's share of all."""
    if host.machine.pk not in desk.scores:
        return []
    terms = scores.terms_of(desk.policy)
    base = formula.score(at=desk.at, **terms, **past)
    total = sum(max(1, len(other.cards)) for other in desk.fleet.hosts if other.machine.pk in desk.scores)
    share = max(1, len(host.cards)) / total
    half_life = timedelta(days=desk.policy.score_half_life_days)

    def points(**instead: Any) -> float:
        return share * (formula.score(at=desk.at, **terms, **(past | instead)).score - base.score)

    found = []
    for start, end in gaps(past, desk.at, desk.policy.score_window_days):
        length = show.duration(int((end - start).total_seconds()))
        note = ui.when(start)
        if end >= desk.at - SHORTEST_GAP:
            note = words.said(_("since {time}, still going on"), time=note)
        cost = points(connected=[*past["connected"], (start, end)])
        found.append(
            Loss(
                _("Not connected for %(length)s") % {"length": length},
                note,
                host,
                _("Uptime"),
                cost,
                start,
                end + half_life,
            )
        )
    for number, job in enumerate(past["jobs"]):
        if job.value < 1:
            jobs = [replace(other, value=1.0) if place == number else other for place, other in enumerate(past["jobs"])]
            what = faults.get((host.machine.pk, job.at), _("A job was interrupted by the machine's side"))
            found.append(Loss(what, ui.when(job.at), host, _("Jobs"), points(jobs=jobs), job.at, job.at + half_life))
    weak = [run for run in past["runs"] if run.value < 1]
    if weak:
        runs = [replace(run, value=1.0) for run in past["runs"]]
        least, most = min(run.value for run in weak), max(run.value for run in weak)
        what = _("Benchmarks between %(least)s and %(most)s %% of the first result") % {
            "least": show.cut(100 * least, 1),
            "most": show.cut(100 * most, 1),
        }
        note = ngettext("%(count)s run", "%(count)s runs", len(weak)) % {"count": len(weak)}
        newest = max(run.at for run in weak)
        found.append(Loss(what, note, host, _("Consistency"), points(runs=runs), newest, newest + half_life))
    return [
        replace(loss, halved_at=_next_halving(loss.halved_at, half_life, desk.at))
        for loss in found
        if loss.points >= SMALLEST_LOSS
    ]


def _next_halving(first: datetime, half_life: timedelta, at: datetime) -> datetime:
    return first if first > at else first + half_life * ((at - first) // half_life + 1)


def _rest(desk: Desk, losses: Sequence[Loss]) -> str:
    """The points that no shown loss accounts for, as text: the prior of new machines, and what is too small to show."""
    if not desk.reliability or len(losses) > LOSSES_SHOWN:
        return ""
    lost = 10_000 - int(desk.reliability.score * 100 + 1e-6)
    hundredths = lost - sum(int(loss.points * 100 + 1e-6) for loss in losses)
    return show.cut(hundredths / 100, 2) if hundredths > 0 else ""


def _faults(machines: Sequence[Machine]) -> dict[tuple[int, datetime], str]:
    """Why jobs failed by the machine's fault, in words, by the machine's pk and when."""
    causes = dict(Rental.Cause.choices)
    rows = Outcome.objects.filter(machine__in=machines, provider_fault=True).values_list("machine", "at", "cause")
    return {
        (machine, at): _("A job ended: %(cause)s") % {"cause": causes.get(cause, cause)} for machine, at, cause in rows
    }


def gaps(past: dict[str, Any], at: datetime, window_days: int) -> list[Span]:
    """Declared stretches in which the machine was neither connected nor excused, a minute and longer."""
    window = [(at - timedelta(days=window_days), at)]
    missing = without(without(common(past["declared"], window), past["excused"]), past["connected"])
    return [(start, end) for start, end in missing if end - start >= SHORTEST_GAP]


def _away(desk: Desk, host: Host) -> dict[str, Any]:
    return {"machine": host.machine, "said": words.host_said(host, desk.at)}


# --- days ------------------------------------------------------------------------------------------------------------


def _row(desk: Desk, host: Host, past: dict[str, Any]) -> dict[str, Any]:
    score = desk.scores.get(host.machine.pk)
    states = day_states(past, desk.at, desk.policy.score_window_days)
    full, part, down = (states.count(state) for state in ("ok", "part", "down"))
    return {
        "host": host,
        "machine": host.machine,
        "models": words.models_of(host),
        "score": score,
        "days": states,
        "label": _("%(days)s days: %(full)s in full, %(part)s interrupted, %(down)s down")
        % {"days": len(states), "full": full, "part": part, "down": down},
        "parts": score_rows(score) if score else [],
    }


def day_states(past: dict[str, Any], at: datetime, days: int) -> list[str]:
    """One word a UTC day, the oldest first, as ``svg.days`` draws them."""
    today = at.astimezone(UTC).date()
    states = []
    for back in range(days - 1, -1, -1):
        start = datetime.combine(today - timedelta(days=back), time(), tzinfo=UTC)
        day = [(start, min(start + timedelta(days=1), at))]
        states.append(_day_state(past, day))
    return states


def _day_state(past: dict[str, Any], day: Sequence[Span]) -> str:
    declared = common(past["declared"], day)
    if not declared:
        return "none"
    owed = without(declared, past["excused"])
    missing = without(owed, past["connected"])
    lost = sum((end - start).total_seconds() for start, end in missing if end - start >= SHORTEST_GAP)
    if lost and lost >= seconds(owed) - SHORTEST_GAP.total_seconds():
        return "down"
    if lost:
        return "part"
    return "excused" if seconds(owed) < seconds(declared) else "ok"
