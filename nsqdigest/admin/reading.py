"""What anybody may read over HTTP: `GET` of `/api/status`, `history`, `timelines`, `timeline`, `deliveries`, `dead`.

Invariants:
- Nothing here changes the daemon, so none of it needs the token.
- `status`, `history` and `deliveries` are read from memory. Of those that read Redis only so many are under way at a
  time; who comes beyond waits a moment, and is then sent away (429). Each is bounded, whatever Redis holds.
- The answer is one of the shapes of `views`, or `ErrorView` with the remedy: 400 no such question, 404 there is
  no such timeline, 429 try again, 503 Redis does not answer.

It knows the daemon only as `Observed` and `Browsed`, which `daemon.view` and `daemon.browsing` implement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol, TypeVar

import msgspec
from aiohttp import web

from nsqdigest.admin.views import (
    DeadListView,
    DeliveriesView,
    ErrorView,
    HistoryView,
    StatusView,
    TimelineDetailView,
    TimelinesView,
)
from nsqdigest.base.errors import NsqdigestError, StoreError
from nsqdigest.base.words import nearest
from nsqdigest.store.listing import State

MOST_SHOWN = 500
USUALLY_SHOWN = 50
MOST_READS = 2
"""Of Redis, at a time."""
WAITS_S = 2.0
WITHIN_S = 10.0
_LONGEST_TEXT = 1024

T = TypeVar("T", bound=msgspec.Struct)


class Asked(NamedTuple):
    """What a query asks for; "" is any."""

    route: str = ""
    sink: str = ""
    timeline: str = ""
    digest: str = ""
    text: str = ""
    states: frozenset[State] = frozenset()
    limit: int = USUALLY_SHOWN


class NoSuchThing(NsqdigestError):
    """There is none of this name."""


class Observed(Protocol):
    """A daemon as it is now."""

    def status(self) -> StatusView: ...

    def history(self) -> HistoryView: ...


class Browsed(Protocol):
    """What a daemon works on. What reads Redis may raise `StoreError`."""

    def deliveries(self, asked: Asked) -> DeliveriesView: ...

    async def timelines(self, asked: Asked) -> TimelinesView: ...

    async def timeline(self, asked: Asked) -> TimelineDetailView:
        """Raises NoSuchThing."""

    async def dead(self, asked: Asked) -> DeadListView: ...


class _Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class ReadingApi:
    def __init__(self, observed: Observed, browsed: Browsed) -> None:
        self._observed = observed
        self._browsed = browsed
        self._slots = asyncio.Semaphore(MOST_READS)

    def routes(self) -> list[web.RouteDef]:
        of = self._browsed
        return [
            web.get("/api/status", self._of_memory((), lambda _: self._observed.status())),
            web.get("/api/history", self._of_memory((), lambda _: self._observed.history())),
            web.get("/api/deliveries", self._of_memory(("route", "sink", "timeline", "limit"), of.deliveries)),
            web.get("/api/timelines", self._of_store(("route", "sink", "text", "state", "limit"), of.timelines)),
            web.get("/api/timeline", self._of_store(("route", "timeline", "digest"), of.timeline)),
            web.get("/api/dead", self._of_store(("route", "sink", "limit"), of.dead)),
        ]

    def _of_memory(self, known: tuple[str, ...], read: Callable[[Asked], msgspec.Struct]) -> _Handler:
        async def handle(request: web.Request) -> web.Response:
            try:
                return _answer(200, read(_asked(request, known)))
            except _Refused as refusal:
                return _error(refusal.status, str(refusal))

        return handle

    def _of_store(self, known: tuple[str, ...], read: Callable[[Asked], Awaitable[msgspec.Struct]]) -> _Handler:
        async def handle(request: web.Request) -> web.Response:
            try:
                asked = _asked(request, known)
                async with self._slot():
                    return _answer(200, await _within(read(asked)))
            except _Refused as refusal:
                return _error(refusal.status, str(refusal))
            except NoSuchThing as error:
                return _error(404, str(error))
            except StoreError as error:
                return _error(503, f"Redis cannot be read: {error}; see `nsqdigest doctor`")

        return handle

    def _slot(self) -> _Slot:
        return _Slot(self._slots)


_Handler = Callable[[web.Request], Awaitable[web.Response]]


class _Slot:
    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots

    async def __aenter__(self) -> None:
        try:
            async with asyncio.timeout(WAITS_S):
                await self._slots.acquire()
        except TimeoutError:
            raise _Refused(429, f"{MOST_READS} other reads of Redis are under way; try again in a moment") from None

    async def __aexit__(self, *_: object) -> None:
        self._slots.release()


async def _within(read: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(WITHIN_S):
            return await read
    except TimeoutError:
        raise _Refused(503, f"Redis did not answer within {WITHIN_S:g} s") from None


# -- the question


def _asked(request: web.Request, known: tuple[str, ...]) -> Asked:
    query = request.query
    for name in query:
        if name not in known:
            guess = nearest(name, known)
            there = f'did you mean "{guess}"?' if guess else f"there is {', '.join(known) or 'none here'}"
            raise _Refused(400, f'"{name[:60]}" is no parameter of {request.path}; {there}')
    texts = {name: _text(query, name) for name in ("route", "sink", "timeline", "digest", "text")}
    if "timeline" in known and "digest" in known and not texts["timeline"]:
        raise _Refused(400, "timeline is missing: its name")
    return Asked(**texts, states=_states(query.getall("state", [])), limit=_limit(query.get("limit", "")))


def _text(query: Mapping[str, str], name: str) -> str:
    text = query.get(name, "")
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise _Refused(400, f"{name} is not UTF-8") from None
    if size_bytes > _LONGEST_TEXT:
        raise _Refused(400, f"{name} is longer than {_LONGEST_TEXT} bytes")
    return text


def _states(texts: list[str]) -> frozenset[State]:
    try:
        return frozenset(State(text) for text in texts if text)
    except ValueError:
        raise _Refused(400, f"state is one of {', '.join(State)}") from None


def _limit(text: str) -> int:
    if not text:
        return USUALLY_SHOWN
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MOST_SHOWN):
        raise _Refused(400, f"limit is a number from 1 to {MOST_SHOWN}")
    return int(text)


# -- the answer


def _error(status: int, text: str) -> web.Response:
    return _answer(status, ErrorView(error=text))


def _answer(status: int, view: msgspec.Struct) -> web.Response:
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    if status in (429, 503):
        headers["retry-after"] = "1"
    return web.Response(body=msgspec.json.encode(view), status=status, headers=headers, content_type="application/json")
