"""Operators' commands over HTTP: what `POST` under /api does.

    /api/pause, /api/resume   {"kind": "topic", "name": "events"}
    /api/flush                {"route": "events", "timeline": "user:42"}; of a revived digest also {"digest": "0193…"}
    /api/dead/replay          {"ids": ["0193…"]}

Invariants:
- Whoever comes here has the token: `guard` has decided that, and `gate` logs what was done.
- The answer is JSON: what holds now, and whether that is new; or `{"error": …}` with the remedy.
- What is not there is named with what is near.

It knows the daemon only as `Operated`, which `daemon.operator` implements.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Annotated, Literal, Protocol, TypeVar

import msgspec
from aiohttp import web

from nsqdigest.admin.gate import answer_json, error
from nsqdigest.base.words import nearest

Kind = Literal["topic", "route", "sink"]
MOST_IDS = 100
_TARGET = '{"kind": "topic", "name": "…"}'


class Target(msgspec.Struct, forbid_unknown_fields=True):
    kind: Kind
    name: str


class Timeline(msgspec.Struct, forbid_unknown_fields=True):
    route: str
    timeline: str
    digest: str = ""


class Digests(msgspec.Struct, forbid_unknown_fields=True):
    ids: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MOST_IDS)]


class Operated(Protocol):
    """Has topics, routes and sinks that can be paused, timelines and dead digests."""

    def names_of(self, kind: Kind) -> Sequence[str]: ...

    def pause(self, kind: Kind, name: str) -> bool:
        """Returns whether that changed anything."""

    def resume(self, kind: Kind, name: str) -> bool: ...

    async def flush(self, route: str, timeline: str, digest: str) -> str:
        """Makes a timeline due now; with the id of a digest, that one, revived. Returns its state, "" where it is not
        there; raises NsqdigestError where an operator holds it."""

    async def replay(self, ids: Sequence[str]) -> list[tuple[str, str]]:
        """Makes dead digests due now. Returns what became of each id."""


T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.Response]]


class OperatorApi:
    def __init__(self, operated: Operated) -> None:
        self._operated = operated

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/api/pause", _handler(Target, _TARGET, self._pause)),
            web.post("/api/resume", _handler(Target, _TARGET, self._resume)),
            web.post("/api/flush", _handler(Timeline, '{"route": "…", "timeline": "…"}', self._flush)),
            web.post("/api/dead/replay", _handler(Digests, '{"ids": ["…"]}', self._replay)),
        ]

    async def _pause(self, target: Target) -> web.Response:
        return self._set(target, self._operated.pause, paused=True)

    async def _resume(self, target: Target) -> web.Response:
        return self._set(target, self._operated.resume, paused=False)

    def _set(self, target: Target, act: Callable[[Kind, str], bool], *, paused: bool) -> web.Response:
        if refusal := self._unknown(target.kind, target.name):
            return refusal
        changed = act(target.kind, target.name)
        return answer_json({"kind": target.kind, "name": target.name, "paused": paused, "changed": changed})

    async def _flush(self, wanted: Timeline) -> web.Response:
        if refusal := self._unknown("route", wanted.route):
            return refusal
        state = await self._operated.flush(wanted.route, wanted.timeline, wanted.digest)
        if not state:
            return error(
                HTTPStatus.NOT_FOUND,
                "there is no such timeline: one that was delivered and got nothing new is forgotten",
            )
        return answer_json({"route": wanted.route, "timeline": wanted.timeline, "state": state})

    async def _replay(self, wanted: Digests) -> web.Response:
        done = await self._operated.replay(wanted.ids)
        return answer_json({"digests": [{"id": digest_id, "result": result} for digest_id, result in done]})

    def _unknown(self, kind: Kind, name: str) -> web.Response | None:
        known = self._operated.names_of(kind)
        if name in known:
            return None
        guess = nearest(name, known)
        hint = f'did you mean "{guess}"?' if guess else f"there is: {', '.join(known)}"
        return error(HTTPStatus.NOT_FOUND, f'there is no {kind} "{name}"; {hint}')


def _handler(kind: type[T], example: str, act: Callable[[T], Awaitable[web.Response]]) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        try:
            wanted = msgspec.json.decode(await request.read(), type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            return error(HTTPStatus.BAD_REQUEST, f"the body is no {example}: {problem}")
        return await act(wanted)

    return handle
