"""The page about the controller says what the table of transitions says."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from nsqdigest.backoff import TRANSITIONS, Event, Level, Reason, State, Transition
from support.tree import load

pytestmark = pytest.mark.unit

if TYPE_CHECKING:
    from scripts import backoff_page, pages
else:
    pages = load("scripts.pages")
    backoff_page = load("scripts.backoff_page")

TEXT = "{http://www.w3.org/2000/svg}text"


def test_the_page_and_its_pictures_are_what_the_table_and_the_controller_give() -> None:
    assert pages.stale(backoff_page.files) == [], "run `make backoff-page`"


def test_every_transition_is_a_row() -> None:
    page = backoff_page.page("")
    for state, known in TRANSITIONS.items():
        section = page.partition(f"### {state}:")[2].partition("###")[0]
        rows = [line for line in section.splitlines() if line.startswith("| **")]
        assert len(rows) == sum(transition is not None for transition in known.values())


def test_every_state_is_in_the_picture() -> None:
    words = [node.text for node in ElementTree.fromstring(backoff_page.states_svg()).iter(TEXT)]
    assert {state.upper() for state in State} <= set(words)


def test_a_transition_without_a_place_in_the_picture_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Transition(State.RAMPING, Level.SAME, Reason.RAMPED)
    monkeypatch.setitem(TRANSITIONS[State.BACKOFF], Event.STEP, new)
    with pytest.raises(SystemExit, match="no place for"):
        backoff_page.states_svg()


def test_the_outage_goes_through_every_state_that_a_store_can_cause() -> None:
    states = [decision.state for _, decision in backoff_page.outage().decisions]
    assert set(states) == set(State) - {State.PAUSED}
    assert states[-1] is State.FLOWING
