"""docs/how-it-works.md draws the ways as they are, and one event does not change module too often."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.tree import ROOT, load

if TYPE_CHECKING:
    from scripts.river import __main__ as river
    from scripts.river import picture, ways
else:
    river, picture, ways = load("scripts.river.__main__"), load("scripts.river.picture"), load("scripts.river.ways")

TRACES = 10
"""A busy machine can change the order of what happens: then another trace is taken."""


def stages_of(block: str) -> str:
    """Without the numbers: how often a digest's parts look around on its way depends on the machine."""
    return re.sub(r"\d+ calls, \d+ changes", "", block)


@pytest.mark.integration
@pytest.mark.servers
def test_the_page_draws_the_ways_as_they_are_and_an_event_keeps_its_limit() -> None:
    on_page = stages_of(river.block_of((ROOT / "docs" / "how-it-works.md").read_text("utf-8")))
    traced = ways.traced_ways()
    for _ in range(TRACES - 1):
        if stages_of(river.river(traced)) == on_page:
            break
        traced = ways.traced_ways()
    assert stages_of(river.river(traced)) == on_page, "run `make river`"
    assert picture.changes_of(traced.event) <= river.MOST_CHANGES


@pytest.mark.unit
def test_a_way_is_drawn_by_stages(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a.py").write_text("class A:\n    def read(self) -> None: ...\n")
    (tmp_path / "b" / "c.py").write_text("def take(names: list[Name], count: int) -> Answer:\n    ...\n")
    step = ways.Step
    way = (
        (
            step(ways.AWAIT, "a.py", "A.read", 2),
            step("a.py", "a.py", "A.cut", 9),
            step("a.py", "b/c.py", "take", 1),
            step("b/c.py", "d.py", "D.__init__", 1),
            step("b/c.py", "d.py", "D.add", 1),
            step("a.py", "d.py", "D.add", 1),
        ),
        (step("", "a.py", "A.alone", 1),),
    )
    assert picture.drawn(way, tmp_path) == [
        "a.py                              … read   · d.add",
        "  b/c.py                          take(list[Name]) → Answer   · d.D, d.add",
    ]
    assert picture.changes_of(way) == 3


@pytest.mark.unit
def test_a_way_is_what_most_have_and_nothing_that_happens_anyway() -> None:
    calls = [
        (1, True, "", "timer.py", "tick", 1),
        (2, True, "timer.py", "agenda.py", "look", 1),
        *(
            call
            for at in (10, 20, 30)
            for call in (
                (at, True, "", "timer.py", "tick", 1),
                (at + 1, True, "timer.py", "agenda.py", "look", 1),
                (at + 2, False, "", "read.py", "read", 1),
                (at + 3, True, "read.py", "take.py", f"take_{at}" if at == 30 else "take", 1),
            )
        ),
    ]
    step = ways.Step
    assert ways.way_of(calls, [(0, 5)], [(10, 15), (20, 25), (30, 35)]) == (
        (step(ways.AWAIT, "read.py", "read", 1), step("read.py", "take.py", "take", 1)),
    )
