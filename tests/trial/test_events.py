"""An input is one event, or an event on each line."""

from __future__ import annotations

import pytest

from nsqdigest.trial.events import Event, split

pytestmark = pytest.mark.unit

PRETTY = b'{\n  "user": "ada",\n  "items": [\n    {"a": 1}\n  ]\n}\n'


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b'{"a":1}', [1]),
        (b'{"a":1}\n', [1]),
        (b'\n\n{"a":1}\n', [3]),
        (b"no json", [1]),
        (PRETTY, [1]),
        (PRETTY.replace(b'"ada",', b'"ada"'), [1]),  # broken, and one event all the same
        (b'{"a":\n{}}', [1]),  # half of its lines look like objects, and it is one
        (b'{"a":\n{}\n}}', [1]),
        (b'{"a":1}\n{"a":2}\n', [1, 2]),
        (b'{"a":1}\r\n\r\n{"a":2}\r\n', [1, 3]),
        (b'{"a":1}\n{"a":2,}\nhello\n{"a":4}\n', [1, 2, 3, 4]),
        (b'{"a":1}\nhello', [1, 2]),
        (b"", []),
        (b" \n\r\n\t", []),
    ],
)
def test_it_is_told_by_its_look(data: bytes, lines: list[int]) -> None:
    assert [event.line for event in split(data)] == lines


def test_an_event_is_what_nsqd_would_hand_over() -> None:
    assert split(b'{"a":1} \r\n') == [Event(1, b'{"a":1} ')]
    assert split(b'\n {"a":1}\n{"a":2} \r\n') == [Event(2, b' {"a":1}'), Event(3, b'{"a":2} ')]
    assert split(b"\n" + PRETTY) == [Event(2, PRETTY.rstrip(b"\n"))]


def test_who_says_so_is_believed() -> None:
    assert [event.line for event in split(PRETTY, by_line=True)] == [1, 2, 3, 4, 5, 6]
    assert split(b'{"a":1}\n{"a":2}', by_line=False) == [Event(1, b'{"a":1}\n{"a":2}')]
    assert split(b"\n", by_line=False) == []
