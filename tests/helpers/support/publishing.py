"""Publishes events with ids of their own, over nsqd's HTTP, and remembers those that nsqd acknowledged.

Only what was acknowledged is owed. In the background it publishes at a given rate, so that a fault happens in the
middle.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from types import TracebackType
from typing import Any, Self

from support.servers import Nsqd

CHUNK = 200


class Publisher:
    """Events of one topic over so many timelines: `{"id": "p-17", "timeline": "t3", …}`."""

    def __init__(self, nsqd: Nsqd, topic: str, *, timelines: int, prefix: str = "p", padding: str = "") -> None:
        self._nsqd = nsqd
        self._topic = topic
        self._timelines = timelines
        self._prefix = prefix
        self._padding = padding
        self._numbers = itertools.count()
        self.acknowledged: set[str] = set()

    def publish(self, count: int) -> None:
        while count > 0:
            chunk = [self.event(number) for number in itertools.islice(self._numbers, min(count, CHUNK))]
            self._nsqd.publish_many(self._topic, [json.dumps(event).encode() for event in chunk])
            self.acknowledged.update(event["id"] for event in chunk)
            count -= len(chunk)

    def event(self, number: int) -> dict[str, Any]:
        return {
            "id": f"{self._prefix}-{number}",
            "timeline": f"t{number % self._timelines}",
            "number": number,
            "padding": self._padding,
        }


class Background:
    """`with Background(publisher, 20_000, per_s=8_000) as load:`. Leaving waits until all is published."""

    def __init__(self, publisher: Publisher, count: int, *, per_s: int) -> None:
        self._publisher = publisher
        self._count = count
        self._per_s = per_s
        self._given_up = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self.published = 0

    def _run(self) -> None:
        began_s = time.monotonic()
        try:
            while self.published < self._count:
                chunk = min(CHUNK, self._count - self.published)
                self._publisher.publish(chunk)
                self.published += chunk
                ahead_s = began_s + self.published / self._per_s - time.monotonic()
                if self._given_up.wait(max(0.0, ahead_s)):
                    return
        except Exception as error:
            self._failure = error

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def reached(self, part: float) -> bool:
        """Has it published this part of all? Raises what made it fail."""
        if self._failure is not None:
            raise self._failure
        return self.published >= part * self._count

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        if kind is not None:
            self._given_up.set()
        self._thread.join()
        if kind is None and self._failure is not None:
            raise self._failure
