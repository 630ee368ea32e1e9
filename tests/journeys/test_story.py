"""The whole way through, from the first form to the money on chain, told to a running platform."""

from collections.abc import Callable

import pytest

from tests.platform import Platform

# Nothing in these can be lost, and each takes its time.
LEFT_OUT = ("The install script", "The token does not", "The agent stops")

type Event = Callable[[], str]


@pytest.mark.spec(
    "A1", "A2", "A3", "A6", "A7", "A8", "A9", "B2", "B4", "B5", "C1", "C3", "D1", "F1", "F2", "F3", "G1", "H1", "H2"
)
def test_from_the_first_form_to_the_money_on_chain(at_home: Platform) -> None:
    said: list[str] = []
    assert at_home.story(said).run(), "\n".join(said)
    assert said[-1] == "drift: 0 micro-USDC"


@pytest.mark.spec("B4", "F3", "G1", "H2")
def test_everything_is_killed_while_a_rental_runs_and_nothing_is_lost(at_home: Platform, power_cut: Event) -> None:
    """The job goes on at the host; it ends, is charged by its own seconds, paid out, and the books balance."""
    said = _told(at_home, power_cut, after=lambda title: title.startswith("The renter rents"))
    assert "drift 0" in said[-1]


@pytest.mark.soak
@pytest.mark.spec("B4", "F3", "G1", "H2")
def test_everything_is_killed_after_each_step_and_nothing_is_lost(at_home: Platform, power_cut: Event) -> None:
    said = _told(at_home, power_cut, after=lambda title: not title.startswith("The books"))
    assert "drift 0" in said[-1]


def _told(platform: Platform, event: Event, *, after: Callable[[str], bool]) -> list[str]:
    """The story with ``event`` after some of its steps. What it said."""
    said: list[str] = []
    story = platform.story(said)
    steps = []
    for title, step in story.steps:
        if title.startswith(LEFT_OUT):
            continue
        steps.append((title, step))
        if after(title):
            steps.append(("Everything is killed, and started again", event))
    with story:
        assert story.tell(steps), "\n".join(said)
    return said
