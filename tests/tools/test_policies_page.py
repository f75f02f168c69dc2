"""The page about policies and its pictures are what the simulator makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.tree import load

pytestmark = pytest.mark.unit

if TYPE_CHECKING:
    from scripts import pages, policies_page
else:
    pages = load("scripts.pages")
    policies_page = load("scripts.policies_page")


def test_the_page_and_its_pictures_are_what_the_simulator_gives() -> None:
    assert pages.stale(policies_page.files) == [], "run `make policies-page`"


def test_the_nights_on_which_clocks_change_have_one_digest() -> None:
    for name, at in (("spring", "Sun 3:00"), ("autumn", "Sun 2:30")):
        (kind,) = (kind for kind in policies_page.KINDS_OF_POLICY if kind.name == name)
        digests = policies_page.run_of(kind).digests
        assert [policies_page.clock(digest.at_ms, with_day=True) for digest in digests] == [at]


def test_nothing_goes_out_in_the_quiet_hours_of_the_picture() -> None:
    (kind,) = (kind for kind in policies_page.KINDS_OF_POLICY if kind.name == "quiet")
    shown = [policies_page.clock(digest.at_ms) for digest in policies_page.run_of(kind).digests]
    assert "7:00" in shown
    assert not [each for each in shown if int(each.split(":")[0]) >= 22 or int(each.split(":")[0]) < 7]
