"""The window of RDY, beside a simulated nsqd with a buffer and a ticker: time is a number here, in ms."""

from __future__ import annotations

import math
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.nsq.window import PATIENCE_S, Window

GRANTED = 2500
TICKER_MS = 25.0
STEP_MS = 0.1
PATIENCE_MS = PATIENCE_S * 1000


def window(granted: int = GRANTED, round_trip_ms: float = 0.0) -> Window:
    made = Window(TICKER_MS / 1000, round_trip_ms / 1000)
    made.grant(granted)
    return made


def closed(granted: int = GRANTED) -> Window:
    """Silences have closed it, a message now and then."""
    made = window(granted)
    while made.used > 1:
        made.settle(0)
        made.arrived(1)
    return made


class Simulation:
    """A channel, nsqd's end of the connection, and ours, which finishes each message `work_ms` after it came."""

    def __init__(self, way_ms: float, work_ms: float, granted: int = GRANTED) -> None:
        self.now_ms = 0.0
        self.window = window(granted, 2 * way_ms)
        self.came: list[float] = []
        """When each message came here."""
        self.longest_held_ms = 0.0
        """That a message was in nsqd's buffer."""
        self.rdy_sent = 0
        self._way_ms, self._work_ms = way_ms, work_ms
        self._queue = 0
        self._held: list[float] = []
        self._rdy = self._in_flight = 0
        self._to_nsqd: deque[tuple[float, int, int]] = deque([(way_ms, self.window.used, 0)])
        """When it is there, RDY or -1, and how many are finished."""
        self._to_us: deque[tuple[float, int]] = deque()
        self._to_finish: deque[tuple[float, int]] = deque()
        self._ours = 0
        self._active_ms = 0.0
        self._next_tick_ms = TICKER_MS

    def publish(self, count: int = 1) -> None:
        self._queue += count

    def run(self, duration_ms: float) -> None:
        until_ms = self.now_ms + duration_ms
        while self.now_ms < until_ms:
            self.now_ms += STEP_MS
            self._nsqd()
            self._here()

    def run_until_came(self, count: int) -> None:
        while len(self.came) < count:
            assert self.now_ms < 1e6, "they never come"
            self.run(STEP_MS)

    def _nsqd(self) -> None:
        while self._to_nsqd and self._to_nsqd[0][0] <= self.now_ms:
            _, rdy, finished = self._to_nsqd.popleft()
            self._rdy = rdy if rdy >= 0 else self._rdy
            self._in_flight -= finished
            self._pump()
        self._pump()
        if self.now_ms >= self._next_tick_ms:
            self._next_tick_ms += TICKER_MS
            self._flush()

    def _pump(self) -> None:
        handed = min(self._queue, max(0, self._rdy - self._in_flight))
        self._queue -= handed
        self._in_flight += handed
        self._held += [self.now_ms] * handed
        if self._in_flight >= self._rdy:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self.longest_held_ms = max(self.longest_held_ms, self.now_ms - self._held[0])
            self._to_us.append((self.now_ms + self._way_ms, len(self._held)))
            self._held = []

    def _here(self) -> None:
        while self._to_us and self._to_us[0][0] <= self.now_ms:
            _, count = self._to_us.popleft()
            self._ours += count
            self.came += [self.now_ms] * count
            self._to_finish.append((self.now_ms + self._work_ms, count))
            self._active_ms = self.now_ms
            if self.window.arrived(self._ours):
                self._send_rdy()
        while self._to_finish and self._to_finish[0][0] <= self.now_ms:
            _, count = self._to_finish.popleft()
            self._ours -= count
            self._to_nsqd.append((self.now_ms + self._way_ms, -1, count))
            self._active_ms = self.now_ms
        is_silent = self.now_ms - self._active_ms >= 1000 * self.window.patience_s
        if is_silent and self.window.settle(self._ours):
            self._send_rdy()

    def _send_rdy(self) -> None:
        assert 0 < self.window.used <= max(GRANTED, self._ours + 1)
        self.rdy_sent += 1
        self._to_nsqd.append((self.now_ms + self._way_ms, self.window.used, 0))


def test_what_is_granted_is_used_at_first() -> None:
    assert window(5).used == 5


def test_nothing_is_used_before_something_is_granted() -> None:
    made = Window(TICKER_MS / 1000, 0.0)
    assert made.used == 0
    assert made.arrived(1) is False
    assert made.used == 0


def test_it_never_uses_more_than_was_granted() -> None:
    made = window(4)
    assert not made.arrived(4)
    assert made.used == 4
    made.grant(0)
    assert made.used == 0
    assert not made.settle(0)


def test_silence_leaves_room_for_the_next_message_alone() -> None:
    made = window()
    assert made.settle(3)
    assert made.used == 4
    assert made.settle(3) is False


def test_the_message_after_a_silence_opens_half_of_what_was_open() -> None:
    made = window(100)
    made.settle(0)
    assert made.arrived(1)
    assert made.used == 50


def test_messages_that_use_up_what_was_closed_keep_it_as_wide() -> None:
    made = closed()
    made.arrived(1)
    made.arrived(2)
    made.arrived(4)
    made.settle(0)
    assert (made.used, made.arrived(8), made.used) == (1, True, 16)


def test_messages_that_use_it_up_double_it() -> None:
    made = closed()
    used = []
    for _ in range(5):
        made.arrived(made.used)
        used.append(made.used)
    assert used == [2, 4, 8, 16, 32]


def test_after_a_grant_of_nothing_it_is_as_wide_as_before() -> None:
    made = closed()
    made.arrived(1)
    made.grant(0)
    made.grant(GRANTED)
    assert made.used == 2


def test_a_probe_does_not_narrow_it() -> None:
    made = window()
    made.grant(1)
    assert not made.arrived(1)
    made.grant(GRANTED)
    assert made.used == GRANTED


@pytest.mark.parametrize(("ticker_s", "round_trip_s"), [(0.0, 0.0), (0.025, 0.0115), (0.25, 0.2)])
def test_it_stays_open_where_nsqd_holds_nothing_back_or_is_far(ticker_s: float, round_trip_s: float) -> None:
    assert Window(ticker_s, round_trip_s).patience_s == math.inf


def test_of_several_round_trips_the_shortest_counts() -> None:
    made = window(100, round_trip_ms=50)
    made.note_round_trip(0.001)
    made.note_round_trip(0.050)
    assert made.patience_s == PATIENCE_S + 2 * 0.001


def test_a_steady_trickle_is_not_held_back() -> None:
    """Without a window each of them waits for the ticker: 12 ms at the median."""
    of = Simulation(way_ms=0.1, work_ms=2)
    published_ms = []
    for _ in range(200):
        of.publish()
        published_ms.append(of.now_ms)
        of.run(5)
    waited_ms = [came_ms - at_ms for came_ms, at_ms in zip(of.came, published_ms, strict=True)]
    assert max(waited_ms[20:]) < 1


def test_a_backlog_opens_it_within_a_few_round_trips() -> None:
    of = Simulation(way_ms=1, work_ms=2)
    of.window = closed()
    of.run(10)
    of.publish(10 * GRANTED)
    began_ms = of.now_ms
    while of.window.used < GRANTED:
        of.run(STEP_MS)
    assert of.now_ms - began_ms <= (math.log2(GRANTED) + 3) * (2 * 1 + 2)


@pytest.mark.parametrize("way_ms", [0.1, 1, 3, 20])
def test_a_backlog_comes_as_fast_as_without_a_window(way_ms: float) -> None:
    backlog = 10 * GRANTED

    def duration_ms(ticker_s: float) -> float:
        of = Simulation(way_ms, work_ms=2)
        of.window = Window(ticker_s, 2 * way_ms / 1000)
        of.window.grant(GRANTED)
        of.publish(backlog)
        of.run_until_came(backlog)
        return of.now_ms

    assert duration_ms(TICKER_MS / 1000) <= 1.05 * duration_ms(0.0) + 1


def test_all_that_is_granted_comes_where_nothing_is_finished() -> None:
    """Redis stands still, and what comes is slow enough for silences in between."""
    of = Simulation(way_ms=0.1, work_ms=math.inf)
    for count in (300, 1, 40, 1, 1, 2 * GRANTED):
        of.publish(count)
        of.run(30)
    assert len(of.came) == GRANTED


def test_silence_makes_room_where_all_of_it_is_in_flight() -> None:
    made = closed()
    assert made.settle(300)
    assert made.used == 301
    made.grant(200)
    made.settle(300)
    assert made.used == 200


def test_an_idle_connection_sends_nothing() -> None:
    of = Simulation(way_ms=0.1, work_ms=2)
    of.publish()
    of.run(1000)
    sent = of.rdy_sent
    of.run(10_000)
    assert of.rdy_sent == sent


@given(
    st.lists(st.tuples(st.integers(1, 300), st.sampled_from([0.1, 0.5, 1, 2, 3, 5, 10, 40])), min_size=1, max_size=30),
    st.sampled_from([0.1, 0.5, 2.0, 5.0]),
    st.sampled_from([0.2, 2.0, 10.0]),
    st.sampled_from([1, 2, 5, 100, GRANTED]),
)
def test_whatever_comes_it_all_comes_and_none_is_held_for_long(
    bursts: list[tuple[int, float]], way_ms: float, work_ms: float, granted: int
) -> None:
    of = Simulation(way_ms, work_ms, granted)
    for count, pause_ms in bursts:
        of.publish(count)
        of.run(pause_ms)
    total = sum(count for count, _ in bursts)
    of.run_until_came(total)
    assert len(of.came) == total
    patience_ms = PATIENCE_MS + 2 * 2 * way_ms
    # Since the flush before: it came here, was worked on, then nothing came, and RDY went back.
    assert of.longest_held_ms <= min(TICKER_MS, work_ms + patience_ms + 2 * way_ms + 3 * STEP_MS) + STEP_MS
