"""Operators' commands over HTTP: `POST /api/pause` and `/api/resume` with `{"kind": "topic", "name": "events"}`.

Invariants:
- A write requires the token of `admin.token`, compared in constant time; without a token in the file all are refused.
- A body is small JSON with JSON's content type, which a web page of another origin cannot send without a preflight.
- The answer is JSON: the state and whether it changed, or `{"error": …}` with the remedy.

It knows the daemon only as `Operated`, which `daemon.operator` implements.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol

import msgspec
from aiohttp import web

from nsqdigest.base.words import nearest
from nsqdigest.config import Secret

Kind = Literal["topic", "route", "sink"]


class Target(msgspec.Struct, forbid_unknown_fields=True):
    kind: Kind
    name: str


class Operated(Protocol):
    """Has topics, routes and sinks that can be paused."""

    def names_of(self, kind: Kind) -> Sequence[str]: ...

    def pause(self, kind: Kind, name: str) -> bool:
        """Returns whether that changed anything."""

    def resume(self, kind: Kind, name: str) -> bool: ...


class OperatorApi:
    def __init__(self, operated: Operated, token: Callable[[], Secret | None]) -> None:
        """`token`: that of the configuration in force."""
        self._operated = operated
        self._token = token

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/api/pause", self._handler(self._operated.pause, paused=True)),
            web.post("/api/resume", self._handler(self._operated.resume, paused=False)),
        ]

    def _handler(
        self, act: Callable[[Kind, str], bool], *, paused: bool
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            refusal = self._refusal(request)
            if refusal is not None:
                return refusal
            try:
                target = msgspec.json.decode(await request.read(), type=Target)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                return _answer(400, error=f'the body is no {{"kind": "topic", "name": "…"}}: {error}')
            known = self._operated.names_of(target.kind)
            if target.name not in known:
                guess = nearest(target.name, known)
                hint = f'did you mean "{guess}"?' if guess else f"there is: {', '.join(known)}"
                return _answer(404, error=f'there is no {target.kind} "{target.name}"; {hint}')
            changed = act(target.kind, target.name)
            return _answer(200, kind=target.kind, name=target.name, paused=paused, changed=changed)

        return handle

    def _refusal(self, request: web.Request) -> web.Response | None:
        token = self._token()
        if token is None:
            return _answer(403, error="writes are refused: admin.token is not set in the file of this daemon")
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        shown_bytes = shown.strip().encode(errors="surrogateescape")  # a header may hold any bytes
        if scheme.lower() != "bearer" or not hmac.compare_digest(shown_bytes, token.reveal().encode()):
            return _answer(401, error="the token is missing or wrong: authorization: Bearer TOKEN, that of admin.token")
        if request.content_type != "application/json":
            return _answer(415, error="content-type is not application/json")
        return None


def _answer(status: int, **fields: object) -> web.Response:
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    if status == web.HTTPUnauthorized.status_code:
        headers["www-authenticate"] = "Bearer"
    return web.Response(
        body=msgspec.json.encode(fields), status=status, headers=headers, content_type="application/json"
    )
