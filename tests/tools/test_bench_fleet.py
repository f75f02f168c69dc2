"""The fleet simulation: its store, its daemons, and what is made of a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from support.tree import load

pytestmark = pytest.mark.unit

if TYPE_CHECKING:
    from bench import drawing
    from bench.fleet import compare, model
else:
    drawing = load("bench.drawing")
    model = load("bench.fleet.model")
    compare = load("bench.fleet.compare")

SHORT = model.Trouble("short", 20)


def run(choice: compare.Choice = compare.CHOSEN, daemons: int = 10, trouble: model.Trouble = SHORT) -> model.Run:
    return model.Simulation(choice.variant, trouble, 1, daemons).run()


def test_a_store_serves_in_the_order_it_is_asked_and_as_much_as_it_can() -> None:
    store = model.Store([10.0, 10.0, 20.0, 20.0])
    assert store.ask(0.5, 5.0) == pytest.approx(1.0)
    assert store.ask(0.5, 10.0) == pytest.approx(2.0)
    assert store.ask(0.6, 30.0) == pytest.approx(3.5)


def test_an_idle_second_of_the_store_is_lost() -> None:
    store = model.Store([10.0, 10.0, 10.0])
    assert store.ask(1.5, 5.0) == pytest.approx(2.0)


def test_what_is_beyond_all_that_it_can_do_is_never_done() -> None:
    assert model.Store([10.0]).ask(0.0, 11.0) == math.inf


def test_a_store_that_is_down_does_nothing_until_it_is_back() -> None:
    store = model.Store([0.0, 0.0, 10.0])
    assert store.is_down(1.9)
    assert store.ask(2.0, 5.0) == pytest.approx(2.5)


def test_a_run_is_the_same_again() -> None:
    assert run() == run()


def test_a_fleet_recovers_and_stores_its_backlog() -> None:
    found = run()
    seen = compare.seen(found, daemons=10)
    assert seen.half_s <= seen.all_s < model.WATCHED_S
    assert sum(found.stored) == pytest.approx(10 * model.COMES_IN * (SHORT.lasts_s + len(found.flowing)), rel=0.02)


def test_no_more_is_stored_than_was_asked_for() -> None:
    found = run(trouble=model.Trouble("slow", 30, share=0.02))
    assert 0 < found.stored_before <= found.could_before
    assert sum(found.stored) <= sum(found.asked)


def test_one_that_never_flows_is_said_to_take_for_ever() -> None:
    found = run()
    found.flowing = [0] * len(found.flowing)
    assert compare.seen(found, daemons=10).all_s == math.inf


@pytest.mark.parametrize("choice", dict.fromkeys(compare.JITTERS + compare.DESCENTS))
def test_a_daemon_alone_leaves_a_healthy_store_alone_no_longer_than_its_curve(choice: compare.Choice) -> None:
    found = model.alone(choice.variant, SHORT, 1, daemons=20)
    curve = choice.variant.curve
    level, longest_s = curve.level_cap, 0.0
    while level:
        longest_s += curve.longest_s(level) + model.REFUSED_S
        level = curve.below(level)
    assert found.left_alone_s[0] >= 0
    assert found.left_alone_s[-1] <= longest_s


def test_a_picture_is_well_formed_for_light_and_dark() -> None:
    frame = drawing.Frame(10, 10, 100, 50, last_x=10, last_y=5)
    body = [*frame.axes([(0, "0")], [(5, "<5>")]), frame.curve([(0, 0), (20, 9)], "ours-line")]
    drawn = drawing.svg(80, "a & b", body, drawing.colours(ours=("#000", "#fff")))
    ElementTree.fromstring(drawn)
    assert drawn.count("prefers-color-scheme:dark") == 2
    assert frame.at(20, 9) == (110, 10)
