"""What a provider's front shows on every tab, read once a request. For pages only: it reads every app's rules.

A view of the dashboard keeps its ``Desk`` on the request; the frame takes the same one, so that the gauges and the page
agree and nothing is read twice.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from math import sqrt
from typing import Any

from django.http import HttpRequest
from django.utils import timezone
from django.utils.dateformat import format as date_format
from django.utils.translation import gettext as _

from billing import metering
from gpunex.kit import show
from gpunex.policy.models import Policy
from marketplace.models import ModelPrice
from payouts import runs
from payouts.models import PayoutMethod
from providers import fleet
from providers.fleet import Fleet, Host, Standing
from providers.models import Gpu, Provider
from reliability import score as formula
from reliability import scores
from reliability.models import Score


@dataclass(frozen=True)
class Reliability:
    """The mean of machines' scores, each weighing as its GPUs do. ``score`` 0 to 100, give or take ``margin``, the parts 0 to 1."""

    score: float
    uptime: float
    completion: float
    consistency: float
    new: bool
    margin: float = 0.0
    version: int = formula.VERSION


class Desk:
    """One provider's facts at one time, each read when it is first asked for."""

    def __init__(self, provider: Provider, at: datetime) -> None:
        self.provider = provider
        self.at = at

    @cached_property
    def policy(self) -> Policy:
        return Policy.load()

    @cached_property
    def prices(self) -> dict[int, int]:
        """What is asked for each model, in micro-USDC per GPU per hour, by the model's pk."""
        asked = ModelPrice.objects.filter(provider=self.provider, current=True)
        return dict(asked.values_list("gpu_model_id", "price_micro"))

    @cached_property
    def fleet(self) -> Fleet:
        return fleet.read(
            provider=self.provider, offline_seconds=self.policy.offline_seconds, at=self.at, priced=self.prices.keys()
        )

    @cached_property
    def scores(self) -> dict[int, Score]:
        """The latest score of each live machine that has one, by the machine's pk."""
        return scores.latest_of([host.machine.pk for host in self.fleet.hosts])

    @property
    def reliability(self) -> Reliability | None:
        """None until a machine has a score."""
        return weighted(
            (self.scores[host.machine.pk], max(1, len(host.cards)))
            for host in self.fleet.hosts
            if host.machine.pk in self.scores
        )

    @cached_property
    def earning(self) -> metering.Earning:
        return metering.earning(self.provider.organisation, at=self.at)

    @cached_property
    def method(self) -> PayoutMethod | None:
        """Where the money goes, now or from a coming day on."""
        return PayoutMethod.objects.standing(self.at).filter(organisation=self.provider.organisation).first()

    @cached_property
    def payout_on(self) -> date:
        """The day on which the period that runs now is paid."""
        return runs.next_payout(self.provider.organisation, self.at)[2]

    @property
    def unpriced(self) -> list[Any]:
        """Models of given cards that nothing is asked for, in the catalogue's order."""
        missing = [model for pk, model in self.fleet.models.items() if pk not in self.prices]
        return sorted(missing, key=lambda model: (model.position, model.name))

    @property
    def troubled(self) -> list[Host]:
        """Machines that need a person: silent, or with a card that failed, is degraded or was delisted."""
        return [host for host in self.fleet.hosts if is_troubled(host)]


def is_troubled(host: Host) -> bool:
    if not host.cards or all(card.standing == Standing.KEPT for card in host.cards):
        return False
    return not host.connected or any(
        card.standing in (Standing.FAILED, Standing.DELISTED)
        or (card.gpu.given and card.gpu.health == Gpu.Health.DEGRADED)
        for card in host.cards
    )


def weighted(scores: Iterable[tuple[Score, int]]) -> Reliability | None:
    rows = list(scores)
    total = sum(weight for _score, weight in rows)
    if not total:
        return None

    def mean(name: str) -> float:
        return sum(getattr(score, name) * weight for score, weight in rows) / total

    return Reliability(
        score=mean("score"),
        uptime=mean("uptime"),
        completion=mean("completion"),
        consistency=mean("consistency"),
        new=all(score.new for score, _weight in rows),
        margin=sqrt(sum(((score.margin or 0.0) * weight) ** 2 for score, weight in rows)) / total,
        version=rows[0][0].version,
    )


def of(request: HttpRequest) -> Desk | None:
    """The desk of the provider that the request's person acts for, made once a request; None for who is no provider."""
    if not hasattr(request, "desk"):
        organisation = request.organisation
        provider = None
        if organisation:
            provider = Provider.objects.filter(organisation=organisation.pk).select_related("organisation").first()
        request.desk = Desk(provider, timezone.now()) if provider else None
    return request.desk


def gauges(desk: Desk) -> list[dict[str, Any]]:
    """The band's readouts, from the words down to the shapes."""
    counts, fleet_now, reliability = desk.fleet.counts, desk.fleet, desk.reliability
    rows: list[dict[str, Any]] = [
        {
            "label": _("Earning now, after fee"),
            "value": show.usdc(desk.earning.rate_micro_per_hour),
            "unit": _("USDC per hour"),
        },
        {
            "label": _("Rented"),
            "value": str(counts[Standing.RENTED]),
            "unit": _("of %(total)s") % {"total": fleet_now.given},
        },
        {"label": _("Free"), "value": str(counts[Standing.FREE])},
    ]
    if counts[Standing.HIDDEN]:
        rows.append({"label": _("Hidden"), "value": str(counts[Standing.HIDDEN])})
    offline = {"label": _("Offline"), "value": str(counts[Standing.OFFLINE])}
    if counts[Standing.OFFLINE]:
        offline |= {"state": "bad", "word": _since(fleet_now.offline_since, desk.at)}
    delisted = {"label": _("Delisted"), "value": str(counts[Standing.DELISTED] + counts[Standing.FAILED])}
    if counts[Standing.DELISTED] + counts[Standing.FAILED]:
        delisted |= {"state": "warn", "word": _("failed") if counts[Standing.FAILED] else _("below floor")}
    rows += [offline, delisted]
    if reliability is not None:
        rows.append(
            {
                "label": _("Reliability"),
                "value": show.cut(reliability.score, 2),
                "unit": _("new") if reliability.new else "",
            }
        )
    rows.append(
        {
            "label": _("Next payout"),
            "value": show.day_text(desk.payout_on, year=False),
            "unit": date_format(desk.payout_on, "l"),
        }
    )
    return rows


def tabs_count(desk: Desk) -> dict[str, int]:
    """On each tab, how many things there wait for the provider."""
    return {
        "machines": len(desk.troubled),
        "pricing": len(desk.unpriced),
        "payouts": 0 if desk.method or not desk.fleet.hosts else 1,
    }


def _since(moment: datetime | None, at: datetime) -> str:
    if moment is None:
        return _("never connected")
    today = moment.astimezone(UTC).date() == at.astimezone(UTC).date()
    return _("since %(time)s") % {
        "time": moment.astimezone(UTC).strftime("%H:%M") if today else show.moment(moment, "day")
    }
