"""The reliability score: what it is, what it rests on, what took points off it, and what would raise it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_safe

from gpunex.desk import Desk
from gpunex.kit import show
from gpunex.kit.templatetags import ui
from providers.fleet import Host
from providers.models import Machine
from providers.views import words
from providers.views.access import provider_page
from providers.views.score import score_rows
from reliability import explain, export, formulas, recorded, score_words, scores
from reliability import score as formula
from reliability.explain import Explanation
from reliability.losses import Loss

MACHINES_A_PAGE = 10
LOSSES_SHOWN = 20
STEPS_SHOWN = 3
SMALLEST = 0.01  # points; below it −0.00 would be shown
EXPORTED = timedelta(days=90)


@dataclass(frozen=True)
class Line:
    """Something that took points off the score, as a row of the page."""

    what: str
    note: str
    host: Host
    component: str
    points: float
    loss: Loss


@provider_page
@require_safe
def performance(request: HttpRequest) -> HttpResponse:
    """The score of all machines together; below it the machines of one page with their losses and days."""
    desk: Desk = request.desk
    ordered = sorted(desk.fleet.hosts, key=lambda host: (_score_of(desk, host), host.machine.name))
    page = Paginator(ordered, MACHINES_A_PAGE).get_page(request.GET.get("page"))
    policy, reliability = desk.policy, desk.reliability
    told = _explained([host.machine for host in page], desk.at, policy.score_window_days)
    lines = [line for host in page for line in _lines(desk, host, told[host.machine.pk])] if reliability else []
    lines.sort(key=lambda line: -line.points)
    return render(
        request,
        "providers/performance.html",
        {
            "nav": "performance",
            "reliability": reliability,
            "score": score_rows(reliability, _notes(desk)),
            "lost": show.cut((10_000 - int(reliability.score * 100 + 1e-6)) / 100, 2) if reliability else "",
            "losses": lines[:LOSSES_SHOWN],
            "rest": _rest(desk, lines) if page.paginator.num_pages == 1 else "",
            "halved_by": max((each.halved_by for each in told.values() if each.halved_by), default=None),
            "steps": _steps(desk, page, told) if reliability else [],
            "trend": _trend(desk),
            "page": page,
            "rows": [_row(desk, host, told[host.machine.pk]) for host in page],
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
            "version": formulas.counting(desk.at),
            "machines": len(desk.fleet.hosts),
            "away": [_away(desk, host) for host in page if not host.connected and host.machine.last_seen_at],
        },
    )


@provider_page
@require_safe
def score_events(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """Everything a machine's scores of the last 90 days rest on, and the scores: a file to check them with."""
    desk: Desk = request.desk
    machine = get_object_or_404(Machine, provider=desk.provider, public_id=public_id)
    text = json.dumps(export.document(machine, at=desk.at, since=desk.at - EXPORTED), indent=1)
    response = HttpResponse(text, content_type="application/json")
    response["Content-Disposition"] = f'attachment; filename="score-{machine.public_id}.json"'
    return response


def _explained(machines: Sequence[Machine], at: datetime, window_days: int) -> dict[int, Explanation]:
    found = recorded.read_all(machines, since=at - timedelta(days=window_days))
    version = formulas.counting(at)
    return {key: explain.explain(events, at=at, version=version) for key, events in found.items()}


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


def _trend(desk: Desk) -> dict[str, Any]:
    """The score of each day, for a small line and the table beside it."""
    rows = scores.trend(list(desk.scores), at=desk.at)
    if len(rows) < 2:
        return {}
    first, last = rows[0][1], rows[-1][1]
    says = _("From %(first)s to %(last)s in %(days)s days") % {
        "first": show.cut(first, 2),
        "last": show.cut(last, 2),
        "days": (rows[-1][0] - rows[0][0]).days,
    }
    return {"values": [value for _day, value in rows], "says": says, "weeks": _weekly(rows)}


def _weekly(rows: Sequence[tuple[date, float]]) -> list[tuple[date, float]]:
    """Every seventh day up to the last, newest first: a table that a person reads."""
    last = rows[-1][0]
    return [(day, value) for day, value in reversed(rows) if (last - day).days % 7 == 0]


# --- where the points went, and come from ----------------------------------------------------------------------------


def _share(desk: Desk, host: Host) -> float:
    """A machine's part in the score of all: by its GPUs, among the machines that have a score."""
    total = sum(max(1, len(other.cards)) for other in desk.fleet.hosts if other.machine.pk in desk.scores)
    return max(1, len(host.cards)) / total if total and host.machine.pk in desk.scores else 0.0


def _lines(desk: Desk, host: Host, told: Explanation) -> list[Line]:
    share = _share(desk, host)
    found = []
    for loss in told.losses:
        points = share * loss.points
        if points >= SMALLEST:
            what = score_words.loss_in_words(loss)
            found.append(Line(what, _note(loss), host, score_words.component_of(loss), points, loss))
    return found


def _note(loss: Loss) -> str:
    note = ui.when(loss.started_at)
    if loss.ongoing:
        note = words.said(_("since {time}, still going on"), time=note)
    cards = score_words.cards_in_words(loss)
    return words.said(_("{cards}, {time}"), cards=cards, time=note) if cards else note


def _steps(desk: Desk, hosts: Sequence[Host], told: dict[int, Explanation]) -> list[dict[str, Any]]:
    """What would raise the score of all machines most."""
    found = [(step.points * _share(desk, host), host, step) for host in hosts for step in told[host.machine.pk].steps]
    worth = sorted((each for each in found if each[0] >= SMALLEST), key=lambda each: -each[0])
    return [
        {"host": host, "what": score_words.step_in_words(step), "points": points}
        for points, host, step in worth[:STEPS_SHOWN]
    ]


def _rest(desk: Desk, lines: Sequence[Line]) -> str:
    """The points that no shown loss accounts for, as text: the prior of new machines, and what is too small to show."""
    if not desk.reliability or len(lines) > LOSSES_SHOWN:
        return ""
    lost = 10_000 - int(desk.reliability.score * 100 + 1e-6)
    hundredths = lost - sum(int(line.points * 100 + 1e-6) for line in lines)
    return show.cut(hundredths / 100, 2) if hundredths > 0 else ""


def _away(desk: Desk, host: Host) -> dict[str, Any]:
    return {"machine": host.machine, "said": words.host_said(host, desk.at)}


# --- days and cards --------------------------------------------------------------------------------------------------


def _row(desk: Desk, host: Host, told: Explanation) -> dict[str, Any]:
    score = desk.scores.get(host.machine.pk)
    states = [day.state for day in told.days]
    full, part, down = (states.count(state) for state in ("ok", "part", "down"))
    said = [score_words.day_in_words(day) for day in told.days]
    return {
        "host": host,
        "machine": host.machine,
        "models": words.models_of(host),
        "score": score,
        "days": states,
        "titles": [f"{show.day_text(day.day)}: {text}" for day, text in zip(told.days, said, strict=True)],
        "told": [
            (day, text)
            for day, text in reversed(list(zip(told.days, said, strict=True)))
            if day.state not in ("ok", "none")
        ],
        "label": _("%(days)s days: %(full)s in full, %(part)s interrupted, %(down)s down")
        % {"days": len(states), "full": full, "part": part, "down": down},
        "parts": score_rows(score) if score else [],
        "cards": [
            (card.gpu, told.cards[str(card.gpu.public_id)])
            for card in host.cards
            if str(card.gpu.public_id) in told.cards
        ],
    }
