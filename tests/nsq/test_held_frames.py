"""held_frames.py: bytes of incomplete frames over all connections."""

from __future__ import annotations

import pytest

from nsqdigest.nsq.held_frames import HeldFrames

pytestmark = pytest.mark.unit


def test_nobody_ends_while_there_is_room() -> None:
    held: HeldFrames[str] = HeldFrames(100)
    assert held.hold("a", 60, is_new=True) is None
    assert held.hold("b", 40, is_new=True) is None
    assert held.hold("a", 0, is_new=True) is None
    assert held.hold("b", 100, is_new=False) is None


def test_beyond_it_the_frame_that_began_first_ends() -> None:
    held: HeldFrames[str] = HeldFrames(100)
    held.hold("a", 60, is_new=True)
    held.hold("b", 40, is_new=True)
    assert held.hold("c", 1, is_new=True) == "a"
    assert held.hold("a", 0, is_new=True) is None
    assert held.hold("b", 100, is_new=False) == "b"


def test_a_new_frame_is_the_youngest() -> None:
    held: HeldFrames[str] = HeldFrames(100)
    held.hold("a", 60, is_new=True)
    held.hold("b", 30, is_new=True)
    held.hold("a", 50, is_new=True)
    assert held.hold("c", 30, is_new=True) == "b"
