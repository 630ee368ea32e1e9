"""The whole way through, from the first form to the money on chain, told to a running platform."""

import pytest

from tests.platform import Platform

type Step = tuple[str, object]


@pytest.mark.spec("A1", "A2", "A3", "A6", "A7", "A8", "A9", "B2", "B4", "B5", "C1", "C3", "D1", "F1", "F2", "F3", "G1", "H1", "H2")
def test_from_the_first_form_to_the_money_on_chain(at_home: Platform) -> None:
    said: list[str] = []
    assert at_home.story(said).run(), "\n".join(said)
    assert said[-1] == "drift: 0 micro-USDC"


@pytest.mark.spec("B4", "F3", "G1", "H2")
def test_everything_is_killed_while_a_rental_runs_and_nothing_is_lost(at_home: Platform) -> None:
    """The job goes on at the host; it ends, is charged by its own seconds, paid out, and the books balance."""
    said: list[str] = []
    story = at_home.story(said)

    def power_cut() -> str:
        at_home.kill()
        at_home.start()
        return f"the pages answer again at {at_home.url}"

    steps = [step for step in story.steps if not step[0].startswith(("The install script", "The token does not", "The agent stops"))]
    place = next(number for number, (title, _) in enumerate(steps) if title.startswith("The renter rents")) + 1
    steps[place:place] = [("Everything is killed, and started again", power_cut)]
    with story:
        assert story.tell(steps), "\n".join(said)
    assert "drift 0" in said[-1]
