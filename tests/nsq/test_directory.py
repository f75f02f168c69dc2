"""What a nsqlookupd's answer means, and what is known of a topic's nsqds after many of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsqdigest.base.allowed_hosts import Allowed
from nsqdigest.base.errors import LookupFailed
from nsqdigest.base.reasons import LookupProblem
from nsqdigest.config import Address
from nsqdigest.nsq.directory import (
    FORGET_AFTER_ANSWERS,
    MOST_PRODUCERS,
    Change,
    Directory,
    Entry,
    Named,
    poll_wait_s,
    read_answer,
    usual_host,
)

pytestmark = pytest.mark.unit

ONE, TWO, THREE = (Address("10.0.0.1", port) for port in (4150, 4250, 4350))
L1, L2 = "lookup-1:4161", "lookup-2:4161"


def producer(host: Any = "10.0.0.1", port: Any = 4150) -> dict[str, Any]:
    return {
        "remote_address": "10.0.0.9:50000", "hostname": "h", "broadcast_address": host, "tcp_port": port,
        "http_port": 4151, "version": "1.3.0",
    }  # fmt: skip


def answer(*producers: dict[str, Any]) -> bytes:
    return json.dumps({"channels": ["c"], "producers": list(producers)}).encode()


def failure(status: int, body: bytes) -> tuple[LookupProblem, str]:
    with pytest.raises(LookupFailed) as caught:
        read_answer(status, body, None)
    return caught.value.reason, str(caught.value)


# -- answers


def test_an_answer_names_nsqds() -> None:
    assert read_answer(200, answer(producer(), producer("nsqd-2", 4250)), None).addresses == {
        ("10.0.0.1", 4150),
        ("nsqd-2", 4250),
    }


def test_the_envelope_of_old_versions_is_opened() -> None:
    body = json.dumps({"status_code": 200, "status_txt": "OK", "data": {"channels": [], "producers": [producer()]}})
    assert read_answer(200, body.encode(), None).addresses == {("10.0.0.1", 4150)}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b'{"message":"TOPIC_NOT_FOUND"}'),
        (200, b'{"status_code":404,"status_txt":"TOPIC_NOT_FOUND","data":null}'),
        (500, b'{"status_code":500,"status_txt":"TOPIC_NOT_FOUND","data":null}'),
        (200, b'{"channels":[],"producers":[]}'),
    ],
)
def test_a_topic_that_nobody_has_is_an_ordinary_answer(status: int, body: bytes) -> None:
    assert read_answer(status, body, None) == Named(frozenset(), frozenset())


@pytest.mark.parametrize(
    ("status", "body", "reason", "said"),
    [
        (404, b"404 page not found", "status", "status 404: is it a nsqlookupd?"),
        (404, b'{"message":"NOT_FOUND"}', "status", "status 404: NOT_FOUND"),
        (500, answer(producer()), "status", "status 500: no reason given"),
        (200, b'{"status_code":500,"status_txt":"INTERNAL","data":null}', "status", "status 500: INTERNAL"),
        (302, b"", "status", "status 302"),
        (200, b"", "garbage", "not the answer of a nsqlookupd"),
        (200, b"<html>hello</html>", "garbage", "not the answer of a nsqlookupd"),
        (200, b"\xff\xfe\x00", "garbage", "not the answer of a nsqlookupd"),
        (200, b"[]", "garbage", "not the answer of a nsqlookupd"),
        (200, b"{}", "garbage", "it has no list of producers"),
        (200, b'{"producers":null}', "garbage", "it has no list of producers"),
        (200, b'{"producers":{}}', "garbage", "producers"),
        (200, b'{"producers":[1]}', "garbage", "producers"),
        (200, answer(producer(None)), "garbage", "broadcast_address"),
        (200, answer(producer(port="4150")), "garbage", "tcp_port"),
        (200, answer(producer(port=True)), "garbage", "tcp_port"),
        (200, answer(producer())[:-3], "garbage", "not the answer of a nsqlookupd"),
        (200, b'{"producers":' + b"[" * 100_000, "garbage", "not the answer of a nsqlookupd"),
        (200, answer(*[producer()] * (MOST_PRODUCERS + 1)), "too-large", "names 1001 nsqds; 1000 is the most"),
    ],
)
def test_anything_else_is_a_failure_with_its_reason(status: int, body: bytes, reason: str, said: str) -> None:
    found, text = failure(status, body)
    assert found == reason
    assert said in text


@pytest.mark.parametrize(
    "host", ["", "two words", "[::1", "a" * 300, "http://nsqd", "nsqd:4150", "-x", "ü", "x" * 64, "a..b", "fe80::1%\0"]
)
def test_what_can_be_no_host_is_set_apart_and_hides_nobody(host: str) -> None:
    named = read_answer(200, answer(producer(host), producer("nsqd-2")), None)
    assert named.addresses == {("nsqd-2", 4150)}
    assert named.unusable == {f"{host[:60]}:4150"}


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_nor_is_a_number_that_can_be_no_port(port: int) -> None:
    named = read_answer(200, answer(producer(port=port), producer("nsqd-2")), None)
    assert named.addresses == {("nsqd-2", 4150)}
    assert named.unusable == {f"10.0.0.1:{port}"}


@pytest.mark.parametrize(
    ("written", "usual"),
    [
        ("NSQD-1.Internal.", "nsqd-1.internal"),
        ("[::1]", "::1"),
        ("2001:DB8:0:0::1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("10.0.0.1", "10.0.0.1"),
    ],
)
def test_a_host_has_one_spelling(written: str, usual: str) -> None:
    assert usual_host(written) == usual
    assert read_answer(200, answer(producer(written)), None).addresses == {(usual, 4150)}


# -- when to ask


def highest(_low: float, high: float) -> float:
    return high


def lowest(low: float, _high: float) -> float:
    return low


def test_the_next_round_comes_up_to_the_jitter_later_never_sooner() -> None:
    assert poll_wait_s(60_000, 0.3, 0, lowest) == 60
    assert poll_wait_s(60_000, 0.3, 0, highest) == pytest.approx(78)


def test_after_a_failure_it_comes_sooner_at_first_and_never_later() -> None:
    waits = [poll_wait_s(60_000, 0.3, failures, highest) for failures in range(1, 8)]
    assert waits == [3, 9, 27, 60, 60, 60, 60]
    assert [poll_wait_s(60_000, 0.3, failures, lowest) for failures in (1, 9)] == [1, 1]
    assert poll_wait_s(100, 0.3, 5, highest) == 0.1


# -- what is known


@pytest.fixture
def directory() -> Directory:
    return Directory([ONE], 0.0)


def test_the_addresses_of_the_file_are_known_from_the_first(directory: Directory) -> None:
    assert directory.addresses == (ONE,)
    assert directory.entry(ONE) == Entry(("file",), 0.0)


def test_what_a_nsqlookupd_names_is_found_once(directory: Directory) -> None:
    assert directory.answered(L1, [TWO], [], 1.0) == Change(found=(TWO,))
    assert directory.answered(L1, [TWO], [], 2.0) == Change()
    assert directory.entry(TWO) == Entry((L1,), 2.0)


def test_all_of_them_together_are_known() -> None:
    directory = Directory([], 0.0)
    assert directory.answered(L1, [ONE, TWO], [], 1.0).found == (ONE, TWO)
    assert directory.answered(L2, [TWO, THREE], [], 2.0).found == (THREE,)
    assert directory.addresses == (ONE, TWO, THREE)
    assert directory.entry(TWO) == Entry((L1, L2), 2.0)


def test_an_nsqd_named_by_the_file_and_by_a_nsqlookupd_is_one(directory: Directory) -> None:
    assert directory.answered(L1, [ONE], [ONE], 3.0) == Change(returned=(ONE,))
    assert directory.entry(ONE) == Entry(("file", L1), 3.0)


def test_also_where_they_spell_it_differently() -> None:
    directory = Directory([Address("NSQD-1", 4150), Address("::0001", 4150)], 0.0)
    assert directory.answered(L1, [Address("nsqd-1.", 4150), Address("::1", 4150)], [], 1.0).found == ()
    assert len(directory.addresses) == 2


def test_what_nothing_is_connected_to_is_forgotten_after_some_answers_without_it(directory: Directory) -> None:
    directory.answered(L1, [TWO], [], 0.0)
    changes = [directory.answered(L1, [], [], float(number)) for number in range(FORGET_AFTER_ANSWERS)]
    assert changes == [*[Change()] * (FORGET_AFTER_ANSWERS - 1), Change(forgotten=(TWO,))]
    assert directory.addresses == (ONE,)


def test_a_live_connection_is_kept_whatever_they_answer(directory: Directory) -> None:
    directory.answered(L1, [TWO], [], 0.0)
    for number in range(5 * FORGET_AFTER_ANSWERS):
        assert directory.answered(L1, [], [TWO], float(number)) == Change()
    assert directory.entry(TWO).sources == ()


def test_once_it_is_broken_it_is_forgotten(directory: Directory) -> None:
    directory.answered(L1, [TWO], [], 0.0)
    assert not directory.forget_if_unsourced(TWO)
    for _ in range(FORGET_AFTER_ANSWERS):
        directory.answered(L1, [], [TWO], 1.0)
    assert directory.forget_if_unsourced(TWO)
    assert directory.addresses == (ONE,)


def test_named_again_in_between_it_is_not_forgotten_and_worth_a_try(directory: Directory) -> None:
    directory.answered(L1, [TWO], [], 0.0)
    for _ in range(3):
        for _ in range(FORGET_AFTER_ANSWERS - 1):
            assert directory.answered(L1, [], [], 1.0) == Change()
        assert directory.answered(L1, [TWO], [], 2.0) == Change(returned=(TWO,))


def test_a_nsqlookupd_that_never_named_it_says_nothing_about_it(directory: Directory) -> None:
    directory.answered(L1, [TWO], [], 0.0)
    for _ in range(5 * FORGET_AFTER_ANSWERS):
        assert directory.answered(L2, [THREE], [], 1.0).forgotten == ()
    assert TWO in directory.addresses


def test_forgotten_and_named_again_it_is_found_anew(directory: Directory) -> None:
    directory.answered(L1, [TWO], [], 0.0)
    for _ in range(FORGET_AFTER_ANSWERS):
        directory.answered(L1, [], [], 1.0)
    assert directory.answered(L1, [TWO], [], 2.0) == Change(found=(TWO,))


def test_the_file_is_never_forgotten(directory: Directory) -> None:
    directory.answered(L1, [ONE], [], 0.0)
    for _ in range(5 * FORGET_AFTER_ANSWERS):
        assert directory.answered(L1, [], [], 1.0) == Change()
    assert not directory.forget_if_unsourced(ONE)
    assert directory.entry(ONE).sources == ("file",)


# -- another file


def test_addresses_of_another_file_are_found_and_those_of_before_leave(directory: Directory) -> None:
    assert directory.change([TWO], [], None, [], 1.0) == Change(found=(TWO,), forgotten=(ONE,))
    assert directory.addresses == (TWO,)
    assert directory.change([THREE], [], None, [TWO], 2.0) == Change(found=(THREE,), leaving=(TWO,))
    assert directory.entry(TWO).sources == ()
    assert directory.forget_if_unsourced(TWO)


def test_an_address_that_a_nsqlookupd_names_stays_when_the_file_does_not(directory: Directory) -> None:
    directory.answered(L1, [ONE], [ONE], 0.0)
    assert directory.change([], [], None, [ONE], 1.0) == Change()
    assert directory.entry(ONE).sources == (L1,)


def test_without_its_nsqlookupd_an_address_stays_only_while_it_is_connected(directory: Directory) -> None:
    directory.answered(L1, [TWO, THREE], [], 0.0)
    assert directory.change([ONE], [L1], None, [TWO], 1.0) == Change(forgotten=(THREE,))
    assert directory.answered(L2, [TWO], [TWO], 2.0) == Change(returned=(TWO,))
    assert directory.entry(TWO).sources == (L2,)


def test_an_nsqd_that_is_no_longer_allowed_leaves(directory: Directory) -> None:
    """The file's own stay. A connection that lives proves nothing: whoever registered that nsqd may be at its end."""
    directory.answered(L1, [ONE, TWO, THREE], [], 0.0)
    allowed = Allowed(["192.168.0.0/16"])
    assert directory.change([ONE], [], allowed, [ONE, TWO], 1.0) == Change(forgotten=(THREE,), leaving=(TWO,))
    assert directory.entry(ONE).sources == ("file",)
    assert directory.forget_if_unsourced(TWO)


def test_the_same_file_changes_nothing(directory: Directory) -> None:
    directory.answered(L1, [TWO], [], 0.0)
    assert directory.change([ONE], [], None, [ONE], 1.0) == Change()
    assert directory.entry(ONE) == Entry(("file",), 0.0)
