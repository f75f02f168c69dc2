"""finisher.py in simulated time: when a call is made and what is in it, and what becomes of one that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from nsqdigest.base.errors import StoreError
from nsqdigest.delivery.conclusions import Conclusion
from nsqdigest.delivery.delivery import Delivery
from nsqdigest.delivery.finisher import FEW, GATHER_S, MOST_PER_CALL, Finisher, Result
from nsqdigest.store.answers import Ended
from nsqdigest.store.digests import Ending
from nsqdigest.store.schedule import Schedule
from support.delivering import DAMAGE, Delivering, ToldDigests, failure, now_s, simulate
from support.simulated import simulated

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)


class Stage:
    def __init__(self, digests: ToldDigests) -> None:
        self.digests = digests
        self.results: list[tuple[float, Result]] = []
        self.buried_in: list[int] = []
        self.windows: list[tuple[float, float]] = []
        self.finisher = Finisher(digests, 0, self._uniform, self._on_results, self._on_dead)  # type: ignore[arg-type]
        self._made = Delivering(digests)

    def _uniform(self, low: float, high: float) -> float:
        self.windows.append((low, high))
        return high

    def _on_results(self, results: Sequence[Result]) -> None:
        self.results += [(now_s(), result) for result in results]

    def _on_dead(self, partition: int) -> None:
        self.buried_in.append(partition)

    def may_claim(self, after_s: float = 0.0) -> bool:
        return self.finisher.may_claim(asyncio.get_running_loop().time() + after_s)

    def why(self) -> StoreError | None:
        return self.finisher.error

    def put(self, *names: str, lease_ms: int = 60_000, kind: str = "close") -> list[Delivery]:
        made = self._made.deliveries(self._made.claims(*names), lease_ms)
        after, conclusions = Schedule(1, 1), list[Conclusion]()
        for each in made:
            close, bury = Ending.close(each.claim, "id", after), Ending.bury(each.claim, "id", after, b"")
            conclusions.append(Conclusion(each, close if kind == "close" else bury))
        self.finisher.put(conclusions)
        return made

    def ended(self) -> list[tuple[float, str, Any]]:
        return [(at_s, result.conclusion.delivery.claim.timeline, result.ended) for at_s, result in self.results]

    def calls(self) -> list[tuple[float, list[str]]]:
        return [
            (at_s, [ending.claim.timeline for ending in endings])
            for at_s, (_, endings) in self.digests.called("finish")
        ]


@simulated
async def test_an_end_goes_at_once_where_none_is_under_way_and_gathers_behind_one() -> None:
    stage = Stage(ToldDigests(takes_s={"finish": 1}))
    stage.put("a")
    await asyncio.sleep(0.2)
    stage.put("b")
    await asyncio.sleep(0.2)
    stage.put("c", "d")
    await stage.finisher.quiet()
    # A few may become more in a moment.
    assert stage.calls() == [(0, ["a"]), (1 + GATHER_S, ["b", "c", "d"])]
    assert [at_s for at_s, *_ in stage.ended()] == [1, *[2 + GATHER_S] * 3]
    assert not stage.finisher.is_busy
    stage.put("e")
    await asyncio.sleep(0)
    assert stage.calls()[-1] == (2 + GATHER_S, ["e"])


@simulated
async def test_enough_of_them_wait_for_no_more() -> None:
    stage = Stage(ToldDigests(takes_s={"finish": 1}))
    stage.put("a")
    await asyncio.sleep(0.5)
    behind = [f"t{number}" for number in range(FEW)]
    stage.put(*behind)
    await stage.finisher.quiet()
    assert stage.calls() == [(0, ["a"]), (1, behind)]


@simulated
async def test_nothing_is_no_call() -> None:
    stage = Stage(ToldDigests())
    stage.finisher.put([])
    assert not stage.finisher.is_busy
    await stage.finisher.quiet()
    await stage.finisher.stop()
    assert stage.calls() == []


@simulated
async def test_a_call_has_two_hundred_ends_at_most() -> None:
    stage = Stage(ToldDigests(takes_s={"finish": 1}))
    names = [f"t{number}" for number in range(2 * MOST_PER_CALL + 5)]
    stage.put(*names)
    await stage.finisher.quiet()
    assert MOST_PER_CALL == 200
    assert stage.calls() == [(0, names[:200]), (1, names[200:400]), (2 + GATHER_S, names[400:])]
    assert len(stage.results) == len(names)


@simulated
async def test_each_is_told_what_became_of_it() -> None:
    stage = Stage(ToldDigests(ended={"b": Ended.ALREADY, "c": Ended.STALE}))
    stage.put("a", "b", "c")
    await stage.finisher.quiet()
    assert stage.ended() == [(0, "a", Ended.DONE), (0, "b", Ended.ALREADY), (0, "c", Ended.STALE)]


@simulated
async def test_a_call_that_failed_is_made_again_with_what_ended_since() -> None:
    stage = Stage(ToldDigests(fails={"finish": [failure() for _ in range(6)]}))
    stage.put("a")
    await asyncio.sleep(0.05)
    stage.put("b")
    await stage.finisher.quiet()
    steps_s = [0.3, 0.9, 2.0, 2.0, 2.0, 2.0]
    assert [at_s for at_s, _ in stage.calls()] == pytest.approx([sum(steps_s[:n]) for n in range(7)])
    assert [names for _, names in stage.calls()] == [["a"], *[["a", "b"]] * 6]
    assert stage.windows == [(100, 1000 * step_s) for step_s in steps_s]
    assert {ended for *_, ended in stage.ended()} == {Ended.DONE}
    assert len(stage.results) == 2


@simulated
async def test_after_a_call_that_went_well_the_pauses_begin_anew() -> None:
    stage = Stage(ToldDigests(fails={"finish": [failure(), failure(), None, failure()]}, takes_s={"finish": 1}))
    stage.put("a")
    await asyncio.sleep(3.4)
    stage.put("b")
    await asyncio.sleep(0.6)
    await stage.finisher.quiet()
    assert [at_s for at_s, _ in stage.calls()] == pytest.approx([0, 1.3, 3.2, 4.2 + GATHER_S, 5.5 + GATHER_S])


@simulated
async def test_what_redis_does_not_do_within_its_lease_is_left_and_the_others_are_not() -> None:
    stage = Stage(ToldDigests(fails={"finish": [failure() for _ in range(4)]}))
    stage.put("short", lease_ms=300)
    stage.put("long")
    await stage.finisher.quiet()
    assert stage.ended()[0][1:] == ("short", None)
    assert stage.results[0][1].error is not None
    assert stage.ended()[0][0] < 0.3
    assert stage.ended()[1][1:] == ("long", Ended.DONE)
    assert [names for _, names in stage.calls()][-1] == ["long"]


@simulated
async def test_a_call_that_failed_forbids_claims_until_an_end_succeeds() -> None:
    stage = Stage(ToldDigests(fails={"finish": [failure(), failure()]}))
    stage.put("a")
    await asyncio.sleep(0.1)
    assert stage.why() is not None
    assert not stage.may_claim()
    await stage.finisher.quiet()
    assert stage.why() is None
    assert stage.may_claim()


@simulated
async def test_after_ends_that_were_left_a_trial_may_begin_after_a_pause_and_another_after_a_longer_one() -> None:
    stage = Stage(ToldDigests(fails={"finish": [failure() for _ in range(3)]}))
    for number, pause_s in enumerate([3.0, 9.0], 1):
        stage.put(f"t{number}", lease_ms=50)
        await stage.finisher.quiet()
        assert stage.windows[-1][1] == 1000 * pause_s
        forbidden, allowed = stage.may_claim(pause_s - 0.1), stage.may_claim(pause_s + 0.1)
        assert allowed > forbidden
        stage.finisher.trial_began(asyncio.get_running_loop().time() + 60)
        assert not stage.may_claim(59)


@simulated
async def test_an_end_that_another_call_made_says_that_redis_is_well_and_a_stale_one_does_not() -> None:
    stage = Stage(
        ToldDigests(fails={"finish": [failure(), None, failure()]}, ended={"a": Ended.STALE, "b": Ended.ALREADY})
    )
    stage.put("a")
    await stage.finisher.quiet()
    assert stage.why() is not None
    stage.put("b")
    await stage.finisher.quiet()
    assert stage.why() is None


@simulated
async def test_when_all_are_left_there_is_no_pause() -> None:
    stage = Stage(ToldDigests(fails={"finish": [failure()]}))
    stage.put("a", lease_ms=50)
    await stage.finisher.quiet()
    assert now_s() == 0
    assert stage.ended() == [(0, "a", None)]


@simulated
async def test_a_call_that_breaks_off_is_divided_until_the_bad_one_stands_alone() -> None:
    stage = Stage(ToldDigests(damaged={"finish": {"t5"}}))
    names = [f"t{number}" for number in range(8)]
    stage.put(*names)
    await stage.finisher.quiet()
    assert {(name, ended) for _, name, ended in stage.ended() if ended is not Ended.DONE} == {("t5", Ended.DAMAGED)}
    assert len(stage.results) == 8
    assert [len(some) for _, some in stage.calls()] == [8, 4, 4, 2, 1, 1, 2]
    assert stage.results[[name for _, name, _ in stage.ended()].index("t5")][1].error is DAMAGE


@simulated
async def test_of_a_divided_call_what_failed_otherwise_is_asked_again_and_the_rest_is_not() -> None:
    stage = Stage(ToldDigests(fails={"finish": [DAMAGE, failure(), None]}))
    stage.put("a", "b")
    await stage.finisher.quiet()
    assert [names for _, names in stage.calls()] == [["a", "b"], ["a"], ["b"], ["a"]]
    assert len(stage.results) == 2


@simulated
async def test_after_a_burial_the_longest_dead_are_looked_at_once() -> None:
    """Also where only the answer of the burial was lost; not where nothing of ours was buried."""
    stage = Stage(ToldDigests(ended={"again": Ended.ALREADY, "stale": Ended.STALE}, damaged={"finish": {"bad"}}))
    stage.put("a")
    stage.put("stale", "bad", kind="bury")
    await stage.finisher.quiet()
    assert stage.buried_in == []
    stage.put("b", "bad", "c", kind="bury")
    await stage.finisher.quiet()
    assert stage.buried_in == [0]
    stage.put("again", kind="bury")
    await stage.finisher.quiet()
    assert stage.buried_in == [0, 0]


@simulated
async def test_what_one_call_has_too_much_work_with_follows_in_the_next() -> None:
    stage = Stage(ToldDigests(per_call={"finish": 2}))
    stage.put("a", "b", "c", "d", "e")
    await stage.finisher.quiet()
    assert [names for _, names in stage.calls()] == [["a", "b", "c", "d", "e"], ["c", "d", "e"], ["e"]]
    assert [(name, ended) for _, name, ended in stage.ended()] == [(name, Ended.DONE) for name in "abcde"]


@simulated
async def test_stopped_it_asks_nothing_more() -> None:
    stage = Stage(ToldDigests(fails={"finish": [failure() for _ in range(100)]}))
    stage.put("a")
    await asyncio.sleep(5)
    calls = len(stage.calls())
    await stage.finisher.stop()
    await asyncio.sleep(60)
    assert len(stage.calls()) == calls
    assert not stage.finisher.is_busy
