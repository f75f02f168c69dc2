"""How much a template may do in one rendering (pure)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nsqdigest.delivery.bodies.base import BodyFailed

MOST_STEPS = 1_000_000
_STEPS_BETWEEN_LOOKS = 256
LONGEST_INTEGER_BITS = 10_000
_ELEMENTS_PER_STEP = 16
_LARGEST_EXPONENT = 64


class Work:
    """What one rendering may still do."""

    __slots__ = ("_is_over", "_look_at", "characters", "steps")

    def __init__(self, most_characters: int, is_over: Callable[[], bool]) -> None:
        self.steps = MOST_STEPS
        self.characters = most_characters
        self._is_over = is_over
        self._look_at = MOST_STEPS - _STEPS_BETWEEN_LOOKS

    def step(self) -> None:
        self.steps -= 1
        if self.steps <= self._look_at:
            self._look_at = self.steps - _STEPS_BETWEEN_LOOKS
            if self.steps <= 0:
                raise BodyFailed(f"takes more than {MOST_STEPS:,} steps", "loop over less, such as data.records[:10]")
            if self._is_over():
                raise BodyFailed("takes too long", "loop over less, such as data.records[:10]")

    def copy(self, elements: int) -> None:
        """Many in one go, so the clock is looked at each time."""
        self.steps -= elements // _ELEMENTS_PER_STEP
        self._look_at = self.steps
        self.step()

    def grow(self, characters: int) -> None:
        self.step()
        self.characters -= characters
        if self.characters < 0:
            raise TooLong

    def weigh(self, value: Any) -> None:
        """Steps for all that is in it: a few lists within each other can hold one thing a million times."""
        ahead = [value]
        while ahead:
            self.step()
            each = ahead.pop()
            if isinstance(each, dict):
                ahead += each.values()
            elif isinstance(each, list | tuple):
                ahead += each


class TooLong(BodyFailed):
    def __init__(self) -> None:
        super().__init__("makes more text than the sink's max_body allows", "show less, such as data.records[:10]")


def check_integers(operator: str, left: int, right: int) -> None:
    """Whether their result is of a size that a number in JSON has."""
    bits = left.bit_length() + right.bit_length()
    if operator == "**":
        bits = left.bit_length() * right if 0 <= right <= _LARGEST_EXPONENT else LONGEST_INTEGER_BITS + 1
    if bits > LONGEST_INTEGER_BITS:
        raise BodyFailed("reckons with too large a number", "leave it out")
