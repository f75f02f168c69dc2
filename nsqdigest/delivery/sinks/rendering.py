"""A sink's body, made in a thread: an operator's template may take long, and the daemon goes on meanwhile.

Invariants:
- One thread renders at a time for a sink. One that does not end keeps that thread, and no other starts.
- What a template does wrong is an outcome, `UNRENDERED`, that names its file and line and quotes no event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Generic, ParamSpec, TypeVar

from nsqdigest.base import threads
from nsqdigest.base.reasons import Verdict
from nsqdigest.delivery.bodies.base import BodyFailed
from nsqdigest.delivery.sinks.base import Outcome

P = ParamSpec("P")
T = TypeVar("T")


class Rendering(Generic[P, T]):
    def __init__(
        self, body: Callable[P, T], shown_path: str, timeout_s: float, name: str, *, has_templates: bool = False
    ) -> None:
        """`shown_path`: the template's; "" for a body of ours, and with `has_templates` for several templates, which
        name their places themselves."""
        self._body = body
        self._shown_path = shown_path
        self._has_templates = has_templates or bool(shown_path)
        self._timeout_s = timeout_s
        self._worker = threads.Worker(f"bodies of {name}")

    async def of(self, *given: P.args, **named: P.kwargs) -> T | Outcome:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.wrap_future(self._worker.start(partial(self._body, *given, **named)))
        except TimeoutError:
            return Outcome(Verdict.UNRENDERED, place_of(self._shown_path, self._too_slow()))
        except BodyFailed as failure:
            return Outcome(Verdict.UNRENDERED, place_of(self._shown_path, failure), answer=failure.quoting)

    def _too_slow(self) -> BodyFailed:
        problem = f"no body within {self._timeout_s:g} s"
        if self._has_templates:
            return BodyFailed(problem, "make the template shorter")
        return BodyFailed(f"{problem}: the machine is too busy", "give it more CPU, or raise the sink's timeout")

    def close(self) -> None:
        self._worker.stop()


def place_of(path: str, failure: BodyFailed) -> str:
    line = "" if failure.line is None else f":{failure.line}"
    place = f"{path}{line}: " if path else ""
    return f"{place}{failure.problem}; {failure.remedy}"
