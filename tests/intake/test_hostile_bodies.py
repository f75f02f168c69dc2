"""What bodies made to cost much do cost: CPU, beside that of reading honest JSON of the same size in the same run."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqdigest.base.dropping import remover
from nsqdigest.intake.routing import Router
from nsqdigest.nsq.frames import Message
from support.routes import LIMITS, intake_route, routed

pytestmark = pytest.mark.property

BODY_BYTES = LIMITS.event_bytes
LEAST_OF = 5
NOW_MS = 1_700_000_000_000


def cpu_s(work: Callable[[], object]) -> float:
    """The least of a few runs: the others had to share the caches with another process."""
    times_s = []
    gc.disable()
    try:
        for _ in range(LEAST_OF):
            began_s = time.process_time()
            work()
            times_s.append(time.process_time() - began_s)
    finally:
        gc.enable()
    return min(times_s)


def filled(piece: bytes, before: bytes = b'{"user":"u","x":', behind: bytes = b"}") -> bytes:
    return before + piece * ((BODY_BYTES - len(before) - len(behind)) // len(piece)) + behind


HONEST = filled(b'{"id":1,"name":"ada","tags":["a","b"],"price":1.5},', b'{"user":"u","x":[', b"1]}")
"""Python reads it in about 1 ms."""
TIMES_HONEST = 20
"""A check of the depth in one pass for each level took 120 times as long, a decoder that is slow near the ends of the
range of doubles 200 times."""


def in_list(piece: bytes) -> bytes:
    return filled(piece, b'{"user":"u","x":[', b"1]}")


SHAPES = {
    "opening brackets": b'{"user":"u","x":' + b"[" * 65_300 + b"]" * 100 + b"}",
    "only opening brackets": filled(b"["),
    "as deep as may be": filled(b"[" * 60 + b"]" * 60 + b",", b'{"user":"u","x":[', b"1]}"),
    "a level more each time": filled(b"[[],"),
    "closing brackets": filled(b"]"),
    "pairs": filled(b"[]"),
    "empty lists": in_list(b"[],"),
    "empty objects": in_list(b"{},"),
    "quotes": filled(b'"'),
    "quotes and brackets": filled(b'"['),
    "brackets in strings": in_list(b'"[",'),
    "backslashes": filled(b"\\", b'{"user":"u","x":"', b'"}'),
    "escaped quotes": filled(b'\\"', b'{"user":"u","x":"', b'"}'),
    "escapes": filled(b"\\u0041", b'{"user":"u","x":"', b'"}'),
    "pairs of halves": filled(b"\\ud83d\\ude00", b'{"user":"u","x":"', b'"}'),
    "halves": filled(b"\\ud83d", b'{"user":"u","x":"', b'"}'),
    "short texts": in_list(b'"",'),
    "digits": in_list(b"1,"),
    "large exponents": in_list(b"1e300,"),
    "large exponents in the read field": filled(b"1e300,", b'{"user":[', b"1]}"),
    "numbers of no normal form in the read field": filled(b"5e-324,", b'{"user":[', b"1]}"),
    "small exponents": in_list(b"1e-300,"),
    "exponents in text": filled(b"1e999,", b'{"user":"u","x":"', b'"}'),
    "an exponent at the end": filled(b"[],", b'{"user":"u","x":[', b"1e999]}"),
    "long numbers": in_list(b"9" * 308 + b","),
    "one long number": filled(b"9"),
    "long fractions": in_list(b"0." + b"9" * 4_000 + b","),
    "long exponents": in_list(b"1e-" + b"0" * 400 + b","),
    "members": filled(b'"a":1,', b'{"user":"u",', b'"b":1}'),
    "names of their own": b'{"user":"u"' + b"".join(b',"%x":1' % number for number in range(7_500)) + b"}",
    "values of the read field": filled(b'"user":"u",', b"{", b'"user":"u"}'),
    "lists in the read field": filled(b"[],", b'{"user":[', b"1]}"),
    "numbers beside one as written": filled(b"1.5,", b'{"user":1.5,"x":[', b"1]}"),
    "members beside one as written": filled(b'"a":1,', b'{"user":1.5,', b'"b":1}'),
    "blanks": filled(b" "),
    "not ASCII": filled("ü".encode(), b'{"user":"u","x":"', b'"}'),
    "not UTF-8": filled("ü".encode(), b'{"user":"u","x":"', b'\xff"}'),
    "nested, but no end": filled(b'{"a":'),
    "honest": HONEST,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_no_body_costs_much_more_than_to_read_an_honest_one(shape: str) -> None:
    router, message = Router([intake_route()], LIMITS), Message(b"0" * 16, 0, 1, SHAPES[shape])
    assert len(message.body) <= BODY_BYTES
    assert cpu_s(lambda: routed(router, message, NOW_MS)) < TIMES_HONEST * cpu_s(lambda: json.loads(HONEST))


@settings(max_examples=60)
@given(
    st.text(alphabet='[]{}",:\\1e9. u', min_size=1, max_size=12),
    st.sampled_from(["", "[", "{", '"', '"a":[', '{"email":1}', "[" * 60]),
)
def test_no_body_of_a_repeated_piece_costs_much_more_either(piece: str, before: str) -> None:
    body = filled(piece.encode(), b'{"user":"u","x":[1,' + before.encode(), b"]}")
    router, message = Router([intake_route()], LIMITS), Message(b"0" * 16, 0, 1, body)
    assert cpu_s(lambda: routed(router, message, NOW_MS)) < TIMES_HONEST * cpu_s(lambda: json.loads(HONEST))


DROPPING = {
    "the name again and again": filled(b'"email":1,', b"{", b'"b":1}'),
    "containers of that name": filled(b'"email":[],', b"{", b'"b":1}'),
    "every other member": filled(b'"email":1,"a":1,', b"{", b'"b":1}'),
    "members beside it": filled(b'"a":1,', b'{"email":1,', b'"b":1}'),
    "containers beside it": filled(b'"a":[],', b'{"email":1,', b'"b":1}'),
    "a list beside it": filled(b"[],", b'{"email":1,"x":[', b"1]}"),
    "text beside it": filled(b'\\"', b'{"email":1,"x":"', b'"}'),
    "elements that do not have it": filled(b"{},", b'{"u":[{"email":1},', b"1]}"),
    "lists of lists": filled(b"[],", b'{"u":[{"email":1},', b"1]}"),
    "deep lists": b'{"u":' + b"[{}," * 60 + b"{}," * 20_000 + b'{"email":1}' + b"]" * 60 + b"}",
}
OBJECTS_ON_THE_WAY = {
    "objects of the same name": filled(b'"u":{"email":1},', b"{", b'"b":1}'),
    "objects in a list": filled(b'{"email":1},', b'{"u":[', b"1]}"),
    "names with escapes": filled(b'"\\u0061":1,', b'{"email":1,', b'"b":1}'),
    "containers four levels deep": filled(b'"a":[[[[]]]],', b'{"email":1,', b'"b":1}'),
}
TIMES_HONEST_ON_THE_WAY = 25
"""Each of these objects, about 4,000, is Python's work."""


@pytest.mark.parametrize("shape", DROPPING)
def test_what_a_route_drops_costs_little(shape: str) -> None:
    remove = remover([("email",), ("u", "email")])
    assert cpu_s(lambda: remove(DROPPING[shape])) < TIMES_HONEST * cpu_s(lambda: json.loads(HONEST))


@pytest.mark.parametrize("shape", OBJECTS_ON_THE_WAY)
def test_thousands_of_objects_that_have_what_a_route_drops_cost_a_bounded_time(shape: str) -> None:
    remove = remover([("email",), ("u", "email")])
    assert cpu_s(lambda: remove(OBJECTS_ON_THE_WAY[shape])) < TIMES_HONEST_ON_THE_WAY * cpu_s(
        lambda: json.loads(HONEST)
    )
