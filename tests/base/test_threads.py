"""threads.py: blocking work beside the loop, in threads of its own."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from nsqdigest.base.threads import Worker, start

pytestmark = pytest.mark.unit

WITHIN_S = 10


def named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def refuse_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)


def test_work_gives_its_result_or_its_exception() -> None:
    assert start(lambda: 7, "w").result(WITHIN_S) == 7
    with pytest.raises(ZeroDivisionError):
        start(lambda: 1 // 0, "w").result(WITHIN_S)


def test_a_machine_without_threads_left_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_threads(monkeypatch)
    for done in (start(lambda: 7, "w"), Worker("w").start(lambda: 7)):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            done.result(WITHIN_S)


def test_a_worker_that_could_not_begin_begins_with_the_next_work(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, ran = Worker("late"), list[int]()
    with monkeypatch.context() as without:
        refuse_threads(without)
        assert isinstance(worker.start(lambda: ran.append(1)).exception(WITHIN_S), RuntimeError)
    worker.start(lambda: ran.append(2)).result(WITHIN_S)
    worker.stop()
    assert ran == [2]


def test_a_worker_does_one_thing_after_the_other_in_one_thread() -> None:
    worker, seen = Worker("in order"), list[tuple[int, int]]()
    may_go_on = threading.Event()
    first: Future[bool] = worker.start(lambda: may_go_on.wait(WITHIN_S))
    others = [worker.start(lambda n=n: seen.append((n, threading.get_ident()))) for n in range(3)]  # type: ignore[misc]
    assert not first.done()
    assert not any(done.done() for done in others)
    may_go_on.set()
    for done in others:
        done.result(WITHIN_S)
    assert [number for number, _ in seen] == [0, 1, 2]
    assert len({thread for _, thread in seen}) == 1
    worker.stop()


def test_a_worker_goes_on_after_an_exception() -> None:
    worker = Worker("goes on")
    assert isinstance(worker.start(lambda: 1 // 0).exception(WITHIN_S), ZeroDivisionError)
    assert worker.start(lambda: 7).result(WITHIN_S) == 7
    worker.stop()


def test_a_worker_has_no_thread_before_its_first_work_and_none_after_its_end() -> None:
    worker = Worker("only while")
    assert named("only while") == []
    done = worker.start(lambda: 7)
    (thread,) = named("only while")
    assert thread.daemon
    worker.stop()
    worker.stop()
    thread.join(WITHIN_S)
    assert (done.result(0), named("only while")) == (7, [])


def test_a_worker_that_was_stopped_does_later_work_in_a_new_thread() -> None:
    worker = Worker("again")
    may_go_on = threading.Event()
    hangs = worker.start(lambda: may_go_on.wait(WITHIN_S))
    worker.stop()
    assert worker.start(lambda: 7).result(WITHIN_S) == 7
    may_go_on.set()
    assert hangs.result(WITHIN_S)
    worker.stop()
