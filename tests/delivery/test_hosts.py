"""hosts.py: the turns of a sink's hosts, in simulated time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.backoff import Curve
from nsqdigest.base.reasons import Verdict
from nsqdigest.delivery.hosts import Host, Hosts, Post, Step, Turn, held_of
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest

pytestmark = pytest.mark.unit

CURVE = Curve(1.0, 30.0, jitter="none")
DELIVERED, DOWN, BAD = (
    Outcome(Verdict.DELIVERED, "200"),
    Outcome(Verdict.UNAVAILABLE, "503"),
    Outcome(Verdict.AGAIN, "500"),
)


def digest(name: str = "id") -> OutgoingDigest:
    return OutgoingDigest(name, "r", "t", 1, 1, b"")


def hosts(concurrency: int = 8, curve: Curve = CURVE, **how: int) -> Hosts:
    return Hosts(concurrency, curve, random.Random(1).uniform, 60_000, **how)


def sent(of: Hosts, host: Host, outcome: Outcome, now_s: float = 0.0, name: str = "id") -> bool:
    assert of.turn(host, now_s).step is Step.POST
    return of.ended(host, of.began(host, now_s, now_s + 15), digest(name), outcome, now_s)


def test_a_new_host_gets_one_post_and_one_more_for_each_that_it_accepts() -> None:
    of = hosts()
    host = of.host("a")
    posts: list[Post] = []
    for accepted in range(10):
        while of.turn(host, 0.0).step is Step.POST:
            posts.append(of.began(host, 0.0, 15.0))
        assert len(posts) == min(1 + accepted, 6)
        of.ended(host, posts.pop(), digest(), DELIVERED, 0.0)


def test_a_host_that_fails_gets_nothing_until_its_time_and_then_a_probe() -> None:
    of = hosts()
    host = of.host("a")
    assert sent(of, host, DOWN)
    assert (host.failing_since_s, host.why) == (0.0, "503")
    assert of.turn(host, 0.5) == Turn(Step.LATER, 1.5)
    assert of.turn(host, 2.0).step is Step.POST
    probe = of.began(host, 2.0, 17.0)
    assert probe.is_probe
    assert of.turn(host, 2.0).step is Step.LATER
    assert of.ended(host, probe, digest(), DELIVERED, 2.0)
    assert (host.failing_since_s, host.why) == (None, "")


def test_a_host_that_failed_for_long_is_well_only_after_its_last_probe() -> None:
    of = hosts()
    host = of.host("a")
    sent(of, host, DOWN)
    sent(of, host, DOWN, 10.0)
    assert host.controller.decision.level == 2
    assert not sent(of, host, DELIVERED, 20.0)
    assert host.failing_since_s == 0.0
    assert of.turn(host, 20.0).step is Step.LATER
    assert sent(of, host, DELIVERED, 30.0)
    assert host.failing_since_s is None


def test_failures_of_single_digests_are_no_failure_of_their_host_until_there_are_three() -> None:
    of = hosts()
    host = of.host("a")
    assert [sent(of, host, BAD, name=name) for name in ("x", "x", "y")] == [False] * 3
    assert sent(of, host, BAD, name="z")
    assert of.turn(host, 0.0).step is Step.LATER


def test_what_was_broken_off_or_had_no_body_says_nothing() -> None:
    of = hosts()
    host = of.host("a")
    for outcome in (None, Outcome(Verdict.UNRENDERED, "t.j2:1")):
        assert not of.ended(host, of.began(host, 0.0, 15.0), digest(), outcome, 0.0)
    assert of.turn(host, 0.0).step is Step.POST
    assert host.is_idle


def test_without_backoff_a_host_that_fails_is_posted_to_one_by_one() -> None:
    of = hosts(curve=Curve(1.0, 0.0))
    host = of.host("a")
    sent(of, host, DOWN)
    assert of.turn(host, 0.0).step is Step.POST
    assert sent(of, host, DELIVERED)


def test_others_wait_only_for_a_host_that_answers() -> None:
    of = hosts()
    host = of.host("a")
    post = of.began(host, 0.0, 15.0)
    host.waiting = 5
    assert of.turn(host, 0.0).step is Step.WAIT
    host.waiting = 6
    assert of.turn(host, 0.0).step is Step.LATER
    assert of.turn(host, 0.0, is_waiting=True).step is Step.WAIT  # itself one of the six
    of.ended(host, post, digest(), DELIVERED, 1.0)
    of.began(host, 1.0, 15.0), of.began(host, 1.0, 15.0)
    host.waiting = 20
    assert of.turn(host, 1.9).step is Step.WAIT
    assert of.turn(host, 2.1).step is Step.LATER


def test_probes_of_many_hosts_take_half_of_the_posts() -> None:
    of = hosts()
    for number in range(8):
        sent(of, of.host(f"{number}"), DOWN)
    turns = []
    for number in range(8):
        host = of.host(f"{number}")
        turns.append(of.turn(host, 100.0).step)
        if turns[-1] is Step.POST:
            of.began(host, 100.0, 115.0)
    assert turns == [Step.POST] * 4 + [Step.LATER] * 4
    assert of.turn(of.host("well"), 100.0).step is Step.POST


def test_hosts_that_never_accepted_a_digest_leave_a_quarter_of_the_posts_to_those_that_did() -> None:
    of = hosts()
    sent(of, of.host("well"), DELIVERED)
    turns = []
    for number in range(20):
        host = of.host(f"{number}")
        turns.append(of.turn(host, 9.0).step)
        if turns[-1] is Step.POST:
            of.began(host, 0.0, 15.0)
        elif turns[-1] is Step.WAIT:
            host.waiting += 1
    assert turns == [Step.POST] * 6 + [Step.WAIT] * 6 + [Step.LATER] * 8
    assert of.turn(of.host("well"), 9.0).step is Step.POST


def test_a_host_that_accepted_a_digest_is_forgotten_after_those_that_never_did() -> None:
    of = hosts(most=3)
    sent(of, of.host("well"), DELIVERED)
    for number in range(9):
        of.host(f"{number}")
    assert sorted(of._hosts) == ["7", "8", "well"]


def test_the_longest_unused_hosts_are_forgotten_but_none_that_is_in_use() -> None:
    of = hosts(most=3)
    busy = of.host("busy")
    of.began(busy, 0.0, 15.0)
    for name in ("a", "b", "c", "d"):
        of.host(name)
    assert len(of) == 3
    assert of.host("busy") is busy
    assert sorted(of._hosts) == ["busy", "c", "d"]


def test_how_many_digests_it_holds() -> None:
    assert [held_of(each) for each in (1, 8, 1000)] == [4, 32, 1064]


@given(
    concurrency=st.integers(1, 9),
    steps=st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from([DELIVERED, DOWN, BAD, None]), st.floats(0, 5)), max_size=80
    ),
    data=st.randoms(use_true_random=False),
)
def test_bounds_hold_whatever_happens(
    concurrency: int, steps: list[tuple[str, Outcome | None, float]], data: random.Random
) -> None:
    of = hosts(concurrency, most=2)
    under_way: list[tuple[Host, Post]] = []
    now_s = 0.0
    for name, outcome, passed_s in steps:
        now_s += passed_s
        host = of.host(name)
        if of.turn(host, now_s).step is Step.POST:
            under_way.append((host, of.began(host, now_s, now_s + 15)))
        elif under_way:
            ended, post = under_way.pop(data.randrange(len(under_way)))
            of.ended(ended, post, digest(name), outcome, now_s)
        assert of.posting == len(under_way) <= concurrency
        for each, _ in under_way:
            assert each.posting <= max(1, concurrency * 3 // 4)
        assert sum(post.is_probe for _, post in under_way) <= max(1, concurrency // 2)
    while under_way:
        ended, post = under_way.pop()
        of.ended(ended, post, digest(), DELIVERED, now_s)
    assert of.posting == 0
    assert of.turn(of.host("new"), now_s).step is Step.POST
