"""A score explained: what each event costs, what raises it, on the page and by the API."""

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.test import Client
from django.urls import reverse
from django.utils import translation

from gpunex.kit import svg
from marketplace.models import Listing
from providers.models import Gpu, Machine, MaintenanceWindow, Provider, Schedule
from reliability import (
    ahead,
    availability,
    days,
    events,
    explain,
    export,
    incidents,
    recorded,
    score,
    score_words,
    scores,
)
from reliability.explain import Explanation
from reliability.losses import Loss
from reliability.models import Availability, Connection, Excuse, Gap
from reliability.score import micros
from tests.hosts import approved
from tests.reliability import histories

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
NOW = datetime(2026, 10, 14, 12, tzinfo=UTC)


@pytest.fixture
def clock() -> Iterator[Any]:
    with time_machine.travel(NOW, tick=False) as travelled:
        yield travelled


@pytest.fixture
def provider(db: None, clock: Any) -> Provider:
    return approved(at=NOW - 60 * DAY)


@pytest.fixture
def machine(provider: Provider) -> Machine:
    """Two cards around the clock for 60 days, connected without a gap, measured well three times."""
    return make(provider)


def make(provider: Provider, *, cards: int = 2) -> Machine:
    start = NOW - 60 * DAY
    [made] = histories.machines(provider, 1, cards=cards, at=NOW)
    Schedule.objects.create(machine=made, effective_from=start, created_at=start, timezone="UTC", always=True)
    Connection.objects.create(machine=made, boot_id="boot-1", started_at=start)
    for card in made.gpus.all():
        histories.runs(card, [(start + n * DAY, 100.0, 0.99) for n in range(3)])
    return made


def told(machine: Machine, *, at: datetime = NOW) -> Explanation:
    return explain.explain(recorded.read(machine), at=at, version=2)


def gap(machine: Machine, start: datetime, end: datetime | None, kind: str = "") -> None:
    open_ = Connection.objects.get(machine=machine, ended_at=None)
    Connection.objects.filter(pk=open_.pk).update(ended_at=start, closed_at=start + timedelta(seconds=50))
    if end is not None:
        Connection.objects.create(machine=machine, boot_id="boot-2", started_at=end)
        if kind:
            Gap.objects.create(machine=machine, started_at=start, ended_at=end, kind=kind)


def only(losses: list[Loss]) -> Loss:
    [loss] = losses
    return loss


@pytest.mark.spec("I4")
def test_a_gap_costs_what_the_score_would_have_more_without_it(machine: Machine) -> None:
    without = told(machine).parts.score
    gap(machine, NOW - 5 * DAY, NOW - 5 * DAY + 7 * HOUR, kind="reboot")
    found = told(machine)
    loss = only([each for each in found.losses if each.component == "uptime"])
    assert loss.points == pytest.approx(without - found.parts.score)
    assert (loss.code, loss.cards, loss.ongoing) == ("reboot", (), False)
    assert score_words.loss_in_words(loss) == "Not connected: the host restarted for 7 h"
    assert loss.halved_at == NOW + 14 * DAY
    assert loss.until == NOW - 5 * DAY + 7 * HOUR + 90 * DAY


@pytest.mark.spec("I4")
def test_prices_and_the_prior_sum_to_what_is_missing(machine: Machine) -> None:
    gap(machine, NOW - 9 * DAY, NOW - 9 * DAY + 3 * HOUR)
    gap(machine, NOW - 4 * DAY, NOW - 4 * DAY + timedelta(seconds=30))
    card = machine.gpus.first()
    assert card is not None
    histories.runs(card, [(NOW - 2 * DAY, 88.0, 0.7)])
    incidents.record_outcome(
        machine=machine, reference=uuid.uuid4(), cause="gpu_lost", provider_fault=True, at=NOW - 3 * DAY
    )
    found = told(machine)
    assert sum(loss.points for loss in found.losses) + sum(found.prior.values()) == pytest.approx(found.lost, abs=1e-9)
    codes = {loss.code for loss in found.losses}
    assert codes == {"silent", "short", "throttled", "gpu_lost"}
    throttled = only([loss for loss in found.losses if loss.code == "throttled"])
    assert (throttled.cards, throttled.throttle_reasons) == ((0,), ("sw_thermal",))
    assert "clocks were held back (sw_thermal)" in score_words.loss_in_words(throttled)
    assert score_words.cards_in_words(throttled) == "GPU 0"
    short = only([loss for loss in found.losses if loss.code == "short"])
    assert score_words.loss_in_words(short) == "1 gap of less than a minute"
    assert [loss.points for loss in found.losses] == sorted((loss.points for loss in found.losses), reverse=True)


@pytest.mark.spec("I1", "I4")
def test_throttling_shows_as_the_cause_and_lowers_consistency(machine: Machine) -> None:
    before = told(machine).parts.consistency
    card = machine.gpus.first()
    assert card is not None
    histories.runs(card, [(NOW - HOUR, 100.0, 0.76)])
    found = told(machine)
    assert found.parts.consistency < before
    assert only([loss for loss in found.losses if loss.component == "consistency"]).value == pytest.approx(0.8)
    assert [step.code for step in found.steps if step.code in ("cooling", "level")] == ["cooling"]


@pytest.mark.spec("I4")
def test_what_goes_on_names_what_to_do_and_what_it_brings(machine: Machine) -> None:
    at = NOW - 10 * HOUR
    Machine.objects.update(hidden_at=at)
    availability.observe(at=at)
    found = told(machine)
    loss = only([each for each in found.losses if each.component == "uptime"])
    assert (loss.code, loss.ongoing, loss.until, loss.started_at) == ("hidden", True, None, at)
    step = found.steps[0]
    assert (step.code, step.state, step.days) == ("back", "hidden", 7)
    assert score_words.step_in_words(step) == "Show it to renters again, and stay available for 7 days"
    # The same by hand: a week without any, less a week with nothing but.
    week = NOW + 7 * DAY
    with_it = score_with(machine, at=week, back=NOW)
    assert step.points == pytest.approx(50 * (with_it - told(machine, at=week).parts.uptime))


def score_with(machine: Machine, *, at: datetime, back: datetime) -> float:
    found = recorded.read(machine)
    cards = [
        events.CardEvents(card.id, card.index, [*card.states, events.Change(back, "available")], card.runs)
        for card in found.cards
    ]
    past = events.past(events.Events(found.machine, found.schedules, found.connections, cards=cards), at=micros(at))
    return score.of_machine(past).uptime


@pytest.mark.spec("I4")
def test_staying_available_is_worth_what_the_score_then_is(machine: Machine) -> None:
    gap(machine, NOW - 2 * DAY, NOW - DAY)
    found = told(machine)
    stay = only_step(found, "stay")
    week = told(machine, at=NOW + 7 * DAY).parts
    assert stay.points == pytest.approx(50 * (week.uptime - found.parts.uptime))
    jobs = only_step(found, "jobs")
    assert jobs.points == pytest.approx(
        30 * (1 - found.parts.completion)
    )  # ten good ones take all of the prior's place


def only_step(found: Explanation, code: str) -> ahead.Step:
    [step] = [each for each in found.steps if each.code == code]
    return step


@pytest.mark.spec("I3", "I4")
def test_the_loss_of_today_has_halved_when_it_says(machine: Machine) -> None:
    gap(machine, NOW - 2 * DAY, NOW - DAY)
    found = told(machine)
    assert found.halved_by is not None
    assert 0 <= (NOW + 14 * DAY - found.halved_by) / DAY < 1.5  # sooner by the evidence that grows beside it

    def uptime_loss(at: datetime) -> float:
        return sum(loss.points for loss in told(machine, at=at).losses if loss.component == "uptime")

    assert uptime_loss(found.halved_by) == pytest.approx(uptime_loss(NOW) / 2, rel=0.01)
    whole = make(machine.provider)
    assert told(whole).halved_by is None


@pytest.mark.spec("I4")
def test_days_say_what_was_kept_and_why_not_all(machine: Machine) -> None:
    noon = NOW - 3 * DAY
    gap(machine, noon, noon + 6 * HOUR, kind="journalled")
    planned = NOW - 6 * DAY
    MaintenanceWindow.objects.create(
        machine=machine, starts_at=planned, ends_at=planned + 2 * HOUR, declared_at=planned - 2 * DAY
    )
    Excuse.objects.create(
        machine=machine, started_at=NOW - 8 * DAY, ended_at=NOW - 8 * DAY + HOUR, recorded_at=NOW - DAY, reason="ours"
    )
    card = machine.gpus.first()
    assert card is not None
    Availability.objects.create(gpu=card, at=NOW - 10 * DAY, state="failed")
    Availability.objects.create(gpu=card, at=NOW - 10 * DAY + 4 * HOUR, state="available")
    found = {day.day: day for day in told(machine).days}
    assert len(found) == 90
    words = {
        (NOW - back * DAY).date(): score_words.day_in_words(found[(NOW - back * DAY).date()]) for back in range(90)
    }
    assert words[noon.date()] == "6 h network down"
    assert words[planned.date()] == "available as declared; excused: 2 h planned maintenance"
    assert words[(NOW - 8 * DAY).date()] == "available as declared; excused: 1 h excused by our team"
    assert words[(NOW - 10 * DAY).date()] == "2 h GPU failed"  # one of two cards for four hours
    assert words[(NOW - 80 * DAY).date()] == "not declared"
    assert words[(NOW - DAY).date()] == "available as declared"
    states = {day.state for day in found.values()}
    assert states == {"none", "ok", "part", "excused"}
    assert found[noon.date()].available_hours == pytest.approx(18)


def test_a_day_that_a_version_of_the_hours_declares_in_part_is_judged_by_that(machine: Machine) -> None:
    Schedule.objects.create(
        machine=machine, effective_from=NOW - 2 * DAY, created_at=NOW - 4 * DAY, timezone="UTC", always=False,
        windows=[[day, "08:00", "10:00"] for day in range(7)],
    )  # fmt: skip
    yesterday = told(machine).days[-2]
    assert (yesterday.state, yesterday.declared_hours, yesterday.available_hours) == ("ok", 2.0, 2.0)


# --- lists -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("F1")
def test_bars_of_a_list_are_one_query_and_as_the_page_of_each(
    provider: Provider, django_assert_num_queries: Any
) -> None:
    made = [make(provider, cards=1) for _ in range(4)]
    gap(made[1], NOW - 3 * DAY, NOW - 2 * DAY)
    assert days.keep_up(at=NOW) > 200
    with django_assert_num_queries(1):
        bars = days.bars_of(made, at=NOW)
    for each in made:
        assert bars[each.pk] == [day.state for day in told(each).days]
    assert days.keep_up(at=NOW) == 8  # today's and yesterday's
    Excuse.objects.create(machine=made[1], started_at=NOW - 4 * DAY, ended_at=NOW - DAY, recorded_at=NOW, reason="ours")
    days.keep_up(at=NOW)
    assert days.bars_of([made[1]], at=NOW)[made[1].pk] == [day.state for day in told(made[1]).days]


def test_bars_have_a_title_a_day() -> None:
    drawn = svg.days(["ok", "down"], label="2 days", titles=["1 Oct: fine", "2 Oct: <down>"])
    assert drawn.count("<title>") == 2
    assert "2 Oct: &lt;down&gt;" in drawn
    assert "<title>" not in svg.days(["ok"], label="1 day")


# --- API -------------------------------------------------------------------------------------------------------------


def listed(machine: Machine) -> Listing:
    card = machine.gpus.select_related("variant__model").first()
    assert card is not None
    assert card.variant is not None
    return Listing.objects.create(
        machine=machine, gpu_model=card.variant.model, state=Listing.State.OFFERED, price_micro=400_000, tier="community", country="DE",
        gpus_total=2, gpus_free=2, vram_gib=24, created_at=NOW, refreshed_at=NOW,
    )  # fmt: skip


def ask(machine: Machine, name: str, client: Client | None = None) -> Any:
    return (client or Client()).get(reverse(f"reliability:{name}", args=[machine.public_id]))


@pytest.mark.spec("I4", "F1")
@pytest.mark.case("marketplace-31")
def test_anyone_may_ask_why_an_offered_machine_has_its_score(machine: Machine) -> None:
    listed(machine)
    gap(machine, NOW - 5 * DAY, NOW - 5 * DAY + 7 * HOUR)
    answer = ask(machine, "explain")
    assert answer.status_code == 200
    found = answer.json()
    parts = told(machine).parts
    assert (found["score"], found["margin"], found["version"]) == (parts.score, parts.margin, 2)
    assert found["losses"][0]["text"] == "Not connected for 7 h"
    lost = sum(loss["points"] for loss in found["losses"])
    prior = sum(found[name]["prior"] for name in ("uptime", "completion", "consistency"))
    assert lost + prior == pytest.approx(100 - found["score"])
    assert len(found["days"]) == 90
    assert {gpu["id"] for gpu in found["gpus"]} == {str(card.public_id) for card in machine.gpus.all()}
    owner = machine.provider.organisation
    for secret in (owner.name, str(owner.public_id), str(machine.provider.public_id), machine.name):
        assert secret not in answer.text


@pytest.mark.spec("I3")
def test_the_public_export_replays_and_names_nobody(machine: Machine) -> None:
    listed(machine)
    MaintenanceWindow.objects.create(
        machine=machine, starts_at=NOW, ends_at=NOW + HOUR, declared_at=NOW - 2 * DAY, reason="my office moves"
    )
    scores.refresh(at=NOW)
    answer = ask(machine, "events")
    replayed = list(export.replay_stored(answer.json()))
    assert [each.same for each in replayed] == [True]
    owner = machine.provider.organisation
    for secret in (owner.name, str(owner.public_id), machine.name, "my office moves"):
        assert secret not in answer.text


def test_machines_that_are_not_offered_are_their_owners_alone(machine: Machine) -> None:
    for name in ("explain", "events"):
        answer = ask(machine, name)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    client = Client()
    client.force_login(machine.provider.organisation.created_by)
    assert ask(machine, "explain", client).status_code == 200
    stranger = Client()
    stranger.force_login(approved(at=NOW).organisation.created_by)
    assert ask(machine, "explain", stranger).status_code == 404
    answer = Client().get(reverse("reliability:explain", args=[uuid.uuid4()]))
    assert answer.status_code == 404
    listed(machine).delete()


# --- pages -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def owner(machine: Machine) -> Client:
    client = Client()
    client.force_login(machine.provider.organisation.created_by)
    return client


@pytest.mark.spec("I4")
def test_the_page_explains_a_lost_point_in_one_look(machine: Machine, owner: Client) -> None:
    gap(machine, NOW - 5 * DAY, NOW - 5 * DAY + 7 * HOUR, kind="unknown")
    scores.refresh(at=NOW - DAY)
    scores.refresh(at=NOW)
    page = owner.get(reverse("providers:performance"))
    text = page.text
    assert "Not connected: the machine was down, or its agent for 7 h" in text
    assert "What raises it most" in text
    assert "7 more days available in all declared hours" in text
    assert "what these events cost today has halved by" in text
    assert "± " in text
    assert "Events and scores (JSON)" in text
    assert "7 h not connected" in text
    with translation.override("ar"):
        assert owner.get(reverse("providers:performance"), headers={"Accept-Language": "ar"}).status_code == 200


@pytest.mark.spec("I3")
def test_the_owner_may_take_the_events_away(machine: Machine, owner: Client) -> None:
    scores.refresh(at=NOW)
    url = reverse("providers:score_events", args=[machine.public_id])
    answer = owner.get(url)
    assert answer["Content-Disposition"] == f'attachment; filename="score-{machine.public_id}.json"'
    assert [each.same for each in export.replay_stored(json.loads(answer.content))] == [True]
    assert owner.post(url).status_code == 405
    stranger = Client()
    stranger.force_login(approved(at=NOW).organisation.created_by)
    assert stranger.get(url).status_code == 404
    assert Client().get(url).status_code == 302


@pytest.mark.spec("F1")
def test_renters_read_score_margin_parts_and_ninety_days_with_reasons(machine: Machine) -> None:
    gap(machine, NOW - 5 * DAY, NOW - 5 * DAY + 7 * HOUR)
    Gpu.objects.update(performance=100.0)
    scores.refresh(at=NOW)
    text = Client().get(listed(machine).get_absolute_url()).text
    assert "7 h not connected" in text
    assert text.count('<rect class="day"') == 90
    assert "Each day that was not kept in full" in text
    assert "In nine of ten cases" in text
    assert reverse("reliability:events", args=[machine.public_id]) in text
