"""Bytes to answers: what is kept, what is skipped, what is refused, however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.base.http.answer import BEGINNING_BYTES, HEAD_BYTES, MOST_HEADERS, AnswerReader
from nsqdigest.base.http.errors import NoHttp
from support.fuzzing import times

OK = b"HTTP/1.1 200 OK\r\n"
State = tuple[object, ...]


def read(*pieces: bytes) -> AnswerReader:
    reader = AnswerReader()
    for piece in pieces:
        reader.feed(piece)
    return reader


def state(reader: AnswerReader) -> State:
    return (
        reader.status, reader.retry_after, reader.content_type, reader.kept, reader.complete,
        reader.complete and reader.keep_alive, reader.surplus,
    )  # fmt: skip


def outcome(*pieces: bytes) -> State:
    """Of a refusal only that it is one: the reason may depend on how much of a line is there."""
    reader = AnswerReader()
    try:
        for piece in pieces:
            reader.feed(piece)
    except NoHttp:
        return ("no HTTP",)
    return state(reader)


# -- what an answer says


@pytest.mark.unit
def test_status_and_the_two_headers_are_read_whatever_their_case() -> None:
    reader = read(OK + b"RETRY-after: 5\r\nContent-Type: text/plain\r\ncontent-length: 2\r\n\r\nok")
    assert reader.response(True) == (200, "5", "text/plain", b"ok", True)
    assert (reader.complete, reader.keep_alive, reader.surplus) == (True, True, False)


@pytest.mark.unit
def test_of_a_header_that_comes_twice_the_first_counts_and_empty_ones_join_nothing() -> None:
    assert read(OK + b"x:\r\nretry-after: 5\r\nretry-after: 6\r\ncontent-length: 0\r\n\r\n").retry_after == "5"


@pytest.mark.unit
@pytest.mark.parametrize(
    ("text", "complete", "keep_alive"),
    [
        (OK + b"content-length: 0\r\n\r\n", True, True),
        (OK + b"content-length: 0\r\nconnection: close\r\n\r\n", True, False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n", True, False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\nconnection: keep-alive\r\n\r\n", True, True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True, True),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 99\r\n\r\n", True, True),
        (OK + b"\r\nuntil the end", False, False),
        (OK + b"content-length: 9\r\n\r\nhalf", False, False),
        (OK + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n", False, False),
        (OK + b"transfer-encoding: chunked\r\n\r\n2;x=y\r\nok\r\n0\r\n\r\n", True, True),
        (b"HTTP/1.1 200\r\ncontent-length: 0\r\n\r\n", True, True),
        (b"HTTP/1.1 200 OK\ncontent-length: 0\n\n", True, True),
        (b"\r\n" + OK + b"content-length: 0\r\n\r\n", True, True),
    ],
)
def test_where_an_answer_ends_and_whether_the_connection_goes_on(text: bytes, complete: bool, keep_alive: bool) -> None:
    reader = read(text)
    assert (reader.complete, reader.keep_alive) == (complete, keep_alive)
    assert not reader.surplus


@pytest.mark.unit
def test_interim_answers_are_skipped_with_their_headers() -> None:
    interim = b"HTTP/1.1 100 Continue\r\nretry-after: 9\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </>\r\n\r\n"
    reader = read(interim)
    assert (reader.status, reader.begun) == (0, True)
    reader.feed(OK + b"content-length: 0\r\n\r\n")
    assert (reader.status, reader.retry_after, reader.complete) == (200, None, True)


@pytest.mark.unit
def test_a_change_of_protocol_that_nobody_asked_for_is_an_answer_and_the_end() -> None:
    reader = read(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n\0\0\0")
    assert reader.status == 101
    assert not reader.keep_alive


@pytest.mark.unit
@pytest.mark.parametrize("behind", [b"HTTP/1.1 500 No\r\n\r\n", b"H", b"garbage"])
def test_what_comes_behind_an_answer_ends_the_connection_and_changes_nothing(behind: bytes) -> None:
    reader = read(OK + b"content-length: 2\r\n\r\nok" + behind)
    assert (reader.status, reader.kept, reader.complete, reader.surplus) == (200, b"ok", True, True)


@pytest.mark.unit
def test_a_trailer_is_no_header() -> None:
    reader = read(OK + b"transfer-encoding: chunked\r\n\r\n0\r\nretry-after: 5\r\n\r\n")
    assert (reader.complete, reader.retry_after) == (True, None)


@pytest.mark.unit
def test_a_body_that_breaks_the_rules_does_not_change_the_status() -> None:
    reader = read(OK + b"transfer-encoding: chunked\r\n\r\nno size\r\n")
    assert (reader.status, reader.complete, reader.surplus) == (200, False, True)
    reader.feed(b"more")
    assert reader.status == 200


@pytest.mark.unit
def test_only_the_beginning_of_a_body_is_kept() -> None:
    reader = read(OK + b"content-length: 100000\r\n\r\n", b"x" * 50_000, b"y" * 50_000)
    assert reader.kept == b"x" * BEGINNING_BYTES
    assert (reader.complete, reader.body_bytes) == (True, 100_000)


@pytest.mark.unit
def test_one_connection_has_one_answer_after_the_other() -> None:
    reader = read(b"HTTP/1.1 503 No\r\nretry-after: 5\r\ncontent-length: 2\r\n\r\nno")
    reader.begin()
    assert state(reader) == (0, None, None, b"", False, False, False)
    reader.feed(OK + b"content-length: 0\r\n\r\n")
    assert (reader.status, reader.retry_after, reader.kept, reader.complete) == (200, None, b"", True)


# -- what is refused


@pytest.mark.unit
@pytest.mark.parametrize(
    "garbage",
    [
        b"220 mail.example.com ESMTP\r\n",
        b"\x00\x00\x00\x06\x00\x00\x00\x00OK",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 099 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        OK + b"content-length: -5\r\n\r\n",
        OK + b"content-length: 5\r\ncontent-length: 6\r\n\r\n",
        OK + b"content-length: 99999999999999999999999\r\n\r\n",
        OK + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        OK + b"no colon here\r\n\r\n",
        b"\xff" * 5_000,
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_with_its_beginning(garbage: bytes) -> None:
    with pytest.raises(NoHttp) as refused:
        read(garbage)
    assert refused.value.beginning == garbage[:BEGINNING_BYTES]
    assert str(refused.value)


@pytest.mark.unit
def test_the_reason_quotes_nothing_that_came() -> None:
    with pytest.raises(NoHttp) as refused:
        read(b"hunter2 hunter2\r\n")
    assert "hunter2" not in str(refused.value)


def headed(block: bytes) -> bytes:
    return OK + block + b"content-length: 0\r\n\r\n"


@pytest.mark.unit
def test_so_many_headers_are_read_and_no_more() -> None:
    assert read(headed(b"x: y\r\n" * (MOST_HEADERS - 1))).complete
    with pytest.raises(NoHttp, match="more than 100 headers"):
        read(headed(b"x: y\r\n" * MOST_HEADERS))


@pytest.mark.unit
@pytest.mark.parametrize("pieces", [1, 7])
def test_so_many_bytes_of_headers_are_read_and_no_more(pieces: int) -> None:
    def fed(text: bytes) -> AnswerReader:
        size = -(-len(text) // pieces)
        return read(*(text[start : start + size] for start in range(0, len(text), size)))

    room = HEAD_BYTES - len(headed(b"x: \r\n"))
    assert fed(headed(b"x: " + b"y" * room + b"\r\n")).complete
    with pytest.raises(NoHttp, match="bytes of headers"):
        fed(headed(b"x: " + b"y" * (room + 1) + b"\r\n"))


@pytest.mark.unit
def test_a_header_without_an_end_is_not_awaited() -> None:
    with pytest.raises(NoHttp, match="bytes of headers"):
        read(OK + b"x: ", *[b"yy"] * HEAD_BYTES)


@pytest.mark.unit
def test_interim_answers_without_an_end_are_not_awaited() -> None:
    with pytest.raises(NoHttp):
        read(*[b"HTTP/1.1 100 Continue\r\n\r\n"] * HEAD_BYTES)


# -- however it is cut

NAMES = st.sampled_from([b"retry-after", b"Content-Type", b"x", b"connection", b"Set-Cookie"])
VALUES = st.sampled_from([b"", b"5", b"close", b"keep-alive", b"text/plain; charset=utf-8", b"\xff\xfe", b"a" * 300])
BODIES = st.binary(max_size=600)
VERSIONS = st.sampled_from([b"HTTP/1.1", b"HTTP/1.0"])
STATUSES = st.sampled_from([200, 201, 204, 302, 304, 400, 410, 429, 500, 503, 599])


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    lines = [b"%s: %s\r\n" % pair for pair in draw(st.lists(st.tuples(NAMES, VALUES), max_size=6))]
    body = draw(BODIES)
    match draw(st.sampled_from(["length", "chunked", "end"])):
        case "length":
            lines.append(b"content-length: %d\r\n" % len(body))
        case "chunked":
            lines.append(b"transfer-encoding: chunked\r\n")
            cuts = sorted({0, len(body), *draw(st.lists(st.integers(0, len(body)), max_size=4))})
            body = b"".join(b"%x\r\n%s\r\n" % (end - start, body[start:end]) for start, end in pairwise(cuts))
            body += b"0\r\n\r\n"
    interim = b"HTTP/1.1 100 Continue\r\n\r\n" * draw(st.integers(0, 2))
    return interim + b"%s %d Text\r\n" % (draw(VERSIONS), draw(STATUSES)) + b"".join(lines) + b"\r\n" + body


def cut(text: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(ends)]


PLACES = st.lists(st.integers(0, 2_000), max_size=12)


@pytest.mark.property
@times(3)
@given(answers(), PLACES)
def test_an_answer_means_the_same_however_it_is_cut(text: bytes, places: list[int]) -> None:
    assert outcome(*cut(text, places)) == outcome(text)


@pytest.mark.property
@times(3)
@given(answers(), st.binary(max_size=3), st.integers(0, 400), PLACES)
def test_so_does_a_damaged_one(text: bytes, damage: bytes, at: int, places: list[int]) -> None:
    at %= len(text) + 1
    damaged = text[:at] + damage + text[at + 1 :]
    whole, pieces = outcome(damaged), outcome(*cut(damaged, places))
    # Once there is a status it is that status for good; what else came may be read further before it is refused.
    assert whole[0] == pieces[0]


@pytest.mark.property
@times(3)
@given(st.lists(st.binary(max_size=400), max_size=10))
def test_noise_is_refused_or_awaited_and_never_kept_beyond_the_bound(pieces: list[bytes]) -> None:
    reader = AnswerReader()
    refused = b""
    try:
        for piece in pieces:
            reader.feed(piece)
    except NoHttp as error:
        refused = error.beginning
    assert len(refused) <= BEGINNING_BYTES
    assert len(reader.kept) <= BEGINNING_BYTES
