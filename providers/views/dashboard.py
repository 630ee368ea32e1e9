"""The overview: what needs the provider, what was earned, how the machines stand."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_safe

from billing import revenue
from gpunex.desk import Desk
from gpunex.kit import show
from gpunex.kit.money import MICRO
from gpunex.kit.spans import common, seconds
from gpunex.kit.svg import Chart
from gpunex.kit.templatetags import ui
from gpunex.policy.models import TierPolicy
from marketplace.models import Rental
from payouts.models import Payout
from providers import tiers
from providers.fleet import Card, Hidden, Host, Standing
from providers.models import Gpu, MaintenanceWindow
from providers.schedules import declared_spans
from providers.views import income, words
from providers.views.access import provider_page
from providers.views.score import score_rows
from providers.views.words import said

CHART_DAYS = 30
MACHINES_SHOWN = 12
MOST_OF_A_KIND = 4  # beyond it, one line speaks for all
MAINTENANCE_AHEAD = timedelta(days=14)
WORST_FIRST = {"bad": 0, "warn": 1, "info": 2}


@provider_page
@require_safe
def overview(request: HttpRequest) -> HttpResponse:
    """The dashboard's first page. Asked by htmx, only what changes by itself: matters, readouts, machines, gauges."""
    desk: Desk = request.desk
    live = bool(request.headers.get("HX-Request"))
    today = datetime.combine(desk.at.astimezone(UTC).date(), time(), tzinfo=UTC)
    start = income.monday(desk.at) if live else today - timedelta(days=CHART_DAYS - 1)
    days = revenue.of(desk.provider.organisation, start=start, end=today + timedelta(days=1), at=desk.at).days
    machines = income.by_machine(desk.provider.organisation, since=income.monday(desk.at))
    steps = checklist(desk)
    page: dict[str, Any] = {
        "nav": "overview",
        "provider": desk.provider,
        "at": desk.at,
        "matters": matters(desk, started=not steps),
        "steps": steps,
        "readouts": _readouts(desk, days),
        "rows": [machine_row(desk, host, machines) for host in _shown(desk)],
        "machines": len(desk.fleet.hosts),
        "gpus": desk.fleet.given,
        "week_micro": sum(machines.values()),
        "reliability": desk.reliability,
        "live": live,
    }
    if live:
        return render(request, "providers/overview_live.html", page)
    return render(
        request, "providers/overview.html", page | {"earned": _chart(desk, days), "score": score_rows(desk.reliability)}
    )


# --- what needs the provider -----------------------------------------------------------------------------------------


def matters(desk: Desk, *, started: bool) -> list[dict[str, Any]]:
    """What needs a person, worst first, with one action each. Long lists of one kind become one line.

    ``started``: the first steps are done; before, the checklist asks for the price and the wallet.
    """
    found = [*_offline(desk), *_broken(desk), *_delisted(desk), *_quieter(desk), *_planned(desk)]
    if started:
        found += _money(desk)
    return sorted(found, key=lambda matter: WORST_FIRST[matter["state"]])


def _offline(desk: Desk) -> list[dict[str, Any]]:
    away = [host for host in desk.fleet.hosts if not host.connected and host.given and host.machine.last_seen_at]
    if len(away) > MOST_OF_A_KIND:
        title = ngettext("%(count)s machine is offline", "%(count)s machines are offline", len(away)) % {
            "count": len(away)
        }
        names = _(", ").join(host.machine.name for host in away[:8])
        return [_matter("bad", title, names, f"{reverse('providers:machines')}?state=offline", _("See them"))]
    found = []
    for host in away:
        title = said(
            _("{host} has been offline since {time}"),
            host=words.named(host),
            time=ui.when(host.machine.last_seen_at, "time" if _today(host.machine.last_seen_at, desk.at) else "full"),
        )
        note = said(
            _("{gpus} are hidden from renters. Last heard from {ago}."),
            gpus=words.models_of(host),
            ago=show.distance(host.machine.last_seen_at, desk.at),
        )
        found.append(_matter("bad", title, note, _page_of(host), _("What to do")))
    return found


def _broken(desk: Desk) -> list[dict[str, Any]]:
    found = []
    for host in desk.fleet.hosts:
        if host.connected and host.hidden == Hidden.HUNG:
            said_ = words.host_said(host, desk.at)
            title = said(_("The driver of {host} does not answer"), host=words.named(host))
            found.append(_matter("bad", title, said_.todo, _page_of(host), _("What to do")))
        for card in host.cards:
            if card.standing == Standing.FAILED:
                title = said(_("GPU {index} of {host} failed"), index=card.gpu.index, host=words.named(host))
                found.append(_matter("bad", title, words.card_said(card, host).reason, _page_of(host), _("What to do")))
            elif host.connected and card.gpu.given and card.gpu.health == Gpu.Health.DEGRADED:
                title = said(_("GPU {index} of {host} is degraded"), index=card.gpu.index, host=words.named(host))
                found.append(
                    _matter("warn", title, words.card_said(card, host).reason, _page_of(host), _("What to do"))
                )
    return _short(found, reverse("providers:machines"))


def _delisted(desk: Desk) -> list[dict[str, Any]]:
    found = []
    for host in desk.fleet.hosts:
        cards = [card for card in host.cards if card.standing == Standing.DELISTED]
        if not cards:
            continue
        told = words.card_said(cards[0], host)
        found.append(
            _matter(
                "warn",
                _delisted_title(host, cards),
                f"{told.reason} {told.todo}".strip(),
                f"{reverse('providers:benchmarks')}?machine={host.machine.public_id}",
                _("See the benchmarks"),
            )
        )
    return _short(found, f"{reverse('providers:machines')}?state=attention")


def _delisted_title(host: Host, cards: list[Card]) -> SafeString:
    if len(cards) == 1:
        return said(_("GPU {index} of {host} was delisted"), index=cards[0].gpu.index, host=words.named(host))
    return said(
        ngettext("{count} GPU of {host} was delisted", "{count} GPUs of {host} were delisted", len(cards)),
        count=len(cards),
        host=words.named(host),
    )


def _money(desk: Desk) -> list[dict[str, Any]]:
    found = []
    for model in desk.unpriced:
        title = said(_("{model} has no price"), model=ui.ltr(model.name))
        note = _("Without a price it is not offered. The recommendation of the market stands beside the field.")
        found.append(_matter("warn", title, note, reverse("providers:pricing"), _("Set a price")))
    if desk.method is None:
        note = _("Earnings wait in your account until the platform knows where to send them.")
        found.append(
            _matter("warn", _("There is nowhere to pay to yet"), note, reverse("providers:payouts"), _("Open payouts"))
        )
    return found


def _quieter(desk: Desk) -> list[dict[str, Any]]:
    """Decisions that keep GPUs off the market or cost something, and that may have been forgotten."""
    found = []
    for host in desk.fleet.hosts:
        name, page = words.named(host), _page_of(host)
        if host.machine.paused_at is not None:
            title = said(_("{host} is paused by our team"), host=name)
            found.append(_matter("warn", title, _("You have mail about it. Answer there."), page, _("Open")))
        elif host.connected and host.hidden == Hidden.DRAINING and not host.counts[Standing.RENTED]:
            title = said(_("{host} is drained"), host=name)
            found.append(
                _matter("info", title, _("Nothing runs on it. It takes no new work until you say so."), page, _("Open"))
            )
        elif host.connected and host.hidden == Hidden.PROVIDER:
            title = said(_("{host} is hidden by you"), host=name)
            note = said(_("Since {time}. Its declared hours run on."), time=ui.when(host.machine.hidden_at))
            found.append(_matter("info", title, note, page, _("Open")))
        if host.counts[Standing.UNADMITTED]:
            title = said(_("GPUs of {host} wait for admission"), host=name)
            what = _("They are connected and measured. Our team looks at what goes beyond the approved application.")
            found.append(_matter("info", title, what, page, _("Open")))
        reasons = tiers.reasons_of(host.machine)
        if reasons:
            title = said(_("{host} is offered as community"), host=name)
            found.append(_matter("info", title, " ".join(map(str, reasons)), page, _("Open")))
    return _short(found, reverse("providers:machines"))


def _planned(desk: Desk) -> list[dict[str, Any]]:
    windows = MaintenanceWindow.objects.filter(
        machine__provider=desk.provider,
        machine__retired_at=None,
        cancelled_at=None,
        ends_at__gt=desk.at,
        starts_at__lt=desk.at + MAINTENANCE_AHEAD,
    )
    found = []
    for window in windows.select_related("machine").order_by("starts_at")[:MOST_OF_A_KIND]:
        title = said(_("Maintenance on {time}"), time=ui.when(window.starts_at))
        length = show.duration(int((window.ends_at - window.starts_at).total_seconds()))
        note = said(_("{host}, for {length}."), host=ui.host(window.machine.name), length=length)
        found.append(
            _matter("info", title, note, reverse("providers:machine", args=[window.machine.public_id]), _("Review"))
        )
    return found


def _short(found: list[dict[str, Any]], href: str) -> list[dict[str, Any]]:
    """At most a few lines of one kind; the rest is a number."""
    if len(found) <= MOST_OF_A_KIND + 1:
        return found
    found.sort(key=lambda matter: WORST_FIRST[matter["state"]])
    rest = found[MOST_OF_A_KIND:]
    title = ngettext("%(count)s more of this kind", "%(count)s more of this kind", len(rest)) % {"count": len(rest)}
    return [*found[:MOST_OF_A_KIND], _matter(rest[0]["state"], title, "", href, _("See them"))]


def _matter(state: str, title: str, note: str, href: str, action: str) -> dict[str, Any]:
    return {"state": state, "title": title, "note": note, "href": href, "action": action}


def _page_of(host: Host) -> str:
    return reverse("providers:machine", args=[host.machine.public_id])


def _today(moment: datetime, at: datetime) -> bool:
    return moment.astimezone(UTC).date() == at.astimezone(UTC).date()


# --- the way to the first payment -------------------------------------------------------------------------------------


def checklist(desk: Desk) -> list[dict[str, Any]]:
    """The steps to being paid; none once something was rented and the money knows its way."""
    counts, hosts = desk.fleet.counts, desk.fleet.hosts
    seen = any(host.machine.last_seen_at for host in hosts)
    measured = any(card.gpu.benchmarked_at for host in hosts for card in host.cards)
    priced = bool(desk.prices)
    rented = bool(counts[Standing.RENTED]) or Rental.objects.filter(provider=desk.provider).exists()
    if rented and priced and desk.method:
        return []
    steps = [
        (
            bool(hosts),
            _("Install the agent"),
            _("One line on the machine, about five minutes."),
            "providers:install",
            _("Show the line"),
        ),
        (
            seen,
            _("Connected"),
            _("The machine and its GPUs show here by themselves."),
            "providers:machines",
            _("Machines"),
        ),
        (
            measured,
            _("Measured"),
            _("The first benchmark starts by itself, within minutes."),
            "providers:benchmarks",
            _("Benchmarks"),
        ),
        (
            priced,
            _("Set a price"),
            _("In USDC per GPU per hour. You can change it at any time."),
            "providers:pricing",
            _("Set a price"),
        ),
        (
            desk.method is not None,
            _("Connect a wallet"),
            _("Payouts go to your own Solana wallet."),
            "providers:payouts",
            _("Connect a wallet"),
        ),
        (rented, _("First rental"), _("From then on you earn by the second."), "providers:pricing", ""),
    ]
    now = next((number for number, step in enumerate(steps) if not step[0]), len(steps))
    return [
        {
            "state": "done" if done else "now" if number == now else "later",
            "title": title,
            "note": "" if done else note,
            "when": said('<a href="{href}">{action}</a>', href=reverse(to), action=action)
            if action and not done
            else "",
        }
        for number, (done, title, note, to, action) in enumerate(steps)
    ]


# --- figures ---------------------------------------------------------------------------------------------------------


def _readouts(desk: Desk, days: Mapping[date, int]) -> dict[str, Any]:
    today, week = desk.at.astimezone(UTC).date(), income.monday(desk.at)
    last = (
        Payout.objects.filter(organisation=desk.provider.organisation, state=Payout.State.PAID)
        .order_by("-finished_at", "-pk")
        .first()
    )
    return {
        "today_micro": days.get(today, 0),
        "week_micro": sum(amount for day, amount in days.items() if day >= week.date()),
        "fee": TierPolicy.of(desk.provider.tier).fee_bps / 100,
        "last_payout": last,
        "next_payout": desk.payout_on,
        "share": _rented_share(desk, week),
    }


def _rented_share(desk: Desk, week: datetime) -> float | None:
    """Of the GPU hours declared this week so far, the share that was rented; None where none was declared."""
    declared = 0.0
    for host in desk.fleet.hosts:
        begun = max(week, host.machine.enrolled_at)
        declared += host.given * seconds(
            common(declared_spans(host.machine.schedules.all(), begun, desk.at), [(begun, desk.at)])
        )
    if not declared:
        return None
    return min(1.0, income.rented_seconds(desk.provider, start=week, end=desk.at) / declared)


def _chart(desk: Desk, earned: Mapping[date, int]) -> dict[str, Any]:
    today = desk.at.astimezone(UTC).date()
    days = [today - timedelta(days=back) for back in range(CHART_DAYS - 1, -1, -1)]
    amounts = [earned.get(day, 0) for day in days]
    short = [show.day_text(day, year=False) for day in days]
    return {
        "chart": Chart(
            values=[amount / MICRO for amount in amounts],
            label=_("Earned per day in the last %(days)s days, USDC after the fee") % {"days": CHART_DAYS},
            ticks=[short[0], short[CHART_DAYS // 2], short[-1]],
            titles=[f"{day}: {show.usdc(amount)} USDC" for day, amount in zip(short, amounts, strict=True)],
            unfinished=True,
        ),
        "days": list(zip(reversed(days), reversed(amounts), strict=True)),
        "sum_micro": sum(amounts),
    }


def _shown(desk: Desk) -> list[Host]:
    """The machines of the overview: those that need somebody first."""
    troubled = {host.machine.pk for host in desk.troubled}
    return sorted(desk.fleet.hosts, key=lambda host: (host.machine.pk not in troubled, host.machine.name))[
        :MACHINES_SHOWN
    ]


def machine_row(desk: Desk, host: Host, earned: Mapping[int, int]) -> dict[str, Any]:
    """One line of a table of machines. ``earned``: micro-USDC of this week by the machine's pk."""
    asked = sorted(
        {desk.prices[card.model.pk] for card in host.cards if card.model is not None and card.model.pk in desk.prices}
    )
    score = desk.scores.get(host.machine.pk)
    return {
        "host": host,
        "machine": host.machine,
        "models": words.models_of(host),
        "said": words.host_said(host, desk.at),
        "cells": words.cells_of(host),
        "cells_label": words.counts_in_words(host),
        "prices": asked,
        "week_micro": earned.get(host.machine.pk, 0),
        "score": score,
    }
