"""Every request over HTTP passes here, before its handler and after: `guard` decides, this carries it out.

Invariants:
- Every answer has the headers of `HEADERS`: nobody keeps it, no other page shows or reads it, and what is in it runs
  nothing. What a page of ours may be kept by is its own ETag (`pages`).
- Under /api every answer is JSON; one that is no 200 is `{"error": …}`, with the remedy. What is wrong inside stays in
  the log.
- A body is read whole before its handler is called, no more than `MOST_BODY_BYTES` of it, within `BODY_WITHIN_S`. Only
  then does its connection count as answering (`door`). The body of a refused request is not read.
- A write is logged with what it was and whose address asked for it; a refusal is logged and counted with its reason.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import msgspec
from aiohttp import web
from aiohttp.http import HttpVersion11
from aiohttp.http_exceptions import HttpProcessingError

from nsqdigest.admin import proof, unix_socket
from nsqdigest.admin.door import Door
from nsqdigest.admin.guard import Asked, Brake, Guard, Refused, Tokens
from nsqdigest.base import log
from nsqdigest.base.errors import NsqdigestError, StoreError, Unreachable
from nsqdigest.base.metrics import Metrics
from nsqdigest.base.reasons import HttpRefusal as Reason

MOST_BODY_BYTES = 64 * 1024
BODY_WITHIN_S = 10.0
ANSWER_WITHIN_S = 30.0
"""Redis has time-outs of its own; this is for what asks it many times."""

HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_BUG = "this failed by a mistake of the program; its log has more"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_OF_PROXIES = frozenset({"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"})
_HEALTH = frozenset({"/livez", "/readyz", "/metrics"})
_OF_PROXIES_TOO = "x-forwarded"
"""How their other headers begin: -for, -host, -proto, -port, -server."""

_log = log.get("admin")


class Gate:
    _door: Door

    def __init__(self, tokens: Callable[[], Tokens], metrics: Metrics, *, is_local: bool) -> None:
        """`tokens` returns those of the file in force."""
        self._nonces = proof.Nonces(secrets.token_bytes(32))
        self._guard = Guard(tokens, self._nonces, is_local=is_local)
        self._brake = Brake()
        self._metrics = metrics

    def attach(self, application: web.Application, door: Door) -> None:
        self._door = door
        application.router.add_routes([web.get(proof.NONCE_PATH, self._nonce, expect_handler=on_expect)])
        application.middlewares.append(self._pass)
        application.on_response_prepare.append(_set_headers)

    def count(self, reason: Reason) -> None:
        self._metrics.add("http_refusals_total", reason=reason)
        _log.counted("info", "admin.refused", by=("reason",), every_s=60.0, reason=reason)

    @web.middleware
    async def _pass(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        self._door.head_is_there(transport)
        try:
            return await self._answer(request, handler, transport)
        finally:
            self._door.ends(transport)

    async def _answer(
        self, request: web.Request, handler: Handler, transport: asyncio.Transport | None
    ) -> web.StreamResponse:
        asked, client = _asked(request), _client(request)
        now_s = time.monotonic()
        decided = self._guard.decide(asked, now_s, may_try=self._brake.may_try(client, now_s))
        if isinstance(decided, Refused):
            if decided.reason is Reason.TOKEN_WRONG:
                self._brake.was_wrong(client, now_s)
            return self._refuse(asked, decided)
        if not asked.is_of_api:
            is_health = asked.path in _HEALTH
            return await handler(request) if self._door.begins(transport, is_health=is_health) else self._busy(asked)
        body = await _body(request)
        if isinstance(body, web.Response):
            return body
        if decided.proved is not None and not decided.proved.covers(body):
            return self._refuse(asked, Refused(401, Reason.TOKEN_WRONG, "the proof is of another body"))
        if not self._door.begins(transport, is_health=False):
            return self._busy(asked)
        answer = await _fenced(request, handler)
        if decided.proved is not None and isinstance(answer, web.Response) and isinstance(answer.body, bytes):
            answer.headers[proof.HEADER] = decided.proved.of_answer(answer.status, answer.body)
        if asked.is_write:
            _log.info("admin.write", path=asked.path, client=client, status=answer.status, what=_what(body))
        return answer

    def _busy(self, asked: Asked) -> web.Response:
        text = "too many requests are being answered; try again in a moment"
        return self._refuse(asked, Refused(HTTPStatus.SERVICE_UNAVAILABLE, Reason.BUSY, text))

    def _refuse(self, asked: Asked, refused: Refused) -> web.Response:
        self.count(refused.reason)
        return _refusal(asked, refused)

    async def _nonce(self, _request: web.Request) -> web.Response:
        return answer_json({"nonce": self._nonces.make(time.monotonic(), secrets.token_bytes(16))})


class ServerLog:
    """What aiohttp logs, in our words: a traceback for each client that sends garbage would only fill the log."""

    def __init__(self, count: Callable[[Reason], None]) -> None:
        self._count = count

    def debug(self, *_: object, **__: object) -> None: ...

    def exception(self, message: str, *_: object, exc_info: BaseException | None = None) -> None:
        if isinstance(exc_info, (HttpProcessingError, web.RequestPayloadError)):
            self._count(Reason.MALFORMED)
        elif not isinstance(exc_info, OSError):
            _log.error("admin.request.bug", error=exc_info or message, exc_info=exc_info)


class Connection(web.RequestHandler):
    """What aiohttp answers by itself, to what is no HTTP or where something failed outside of a handler, in our form.
    No application has a part in that, and so no `on_response_prepare`."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        answer = super().handle_error(request, status, exc, message)
        if status == HTTPStatus.INTERNAL_SERVER_ERROR:
            answer = error(status, _BUG)
            answer.force_close()
        for name, value in HEADERS.items():
            answer.headers.setdefault(name, value)
        answer.headers.setdefault("server", "nsqdigest")  # instead of what we are made of
        return answer


async def on_expect(request: web.Request) -> None:
    """Who waits for a word before the body gets it; another expectation is none of ours, and is passed over."""
    if request.headers.get("expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # what may be written instead of an answer is no answer


def _asked(request: web.Request) -> Asked:
    headers = request.headers
    return Asked(
        method=request.method,
        path=request.path,
        hosts=tuple(headers.getall("host", [])),
        origin=headers.get("origin"),
        site=headers.get("sec-fetch-site"),
        mode=headers.get("sec-fetch-mode"),
        is_passed_on=_is_passed_on(request),
        authorization=headers.get("authorization"),
        content_type=request.content_type,
        content_encoding=headers.get("content-encoding", ""),
        has_body=request.body_exists,
        target=request.raw_path,
    )


def _client(request: web.Request) -> str:
    """Its address, or the user at the other end of a Unix socket."""
    transport = request.transport
    connection: socket.socket | None = transport.get_extra_info("socket") if transport is not None else None
    if connection is not None and connection.family == socket.AF_UNIX:
        return unix_socket.user_of(connection)
    return request.remote or ""


def _is_passed_on(request: web.Request) -> bool:
    """Also where it is HTTP/1.0: nginx before 1.29.7 asks so, and adds no header that its file does not name."""
    names = [name.lower() for name in request.headers]
    return request.version < HttpVersion11 or any(
        name in _OF_PROXIES or name.startswith(_OF_PROXIES_TOO) for name in names
    )


async def _body(request: web.Request) -> bytes | web.Response:
    """All of it, or a refusal. The request keeps it for its handler."""
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            return await request.read()
    except TimeoutError:
        return error(HTTPStatus.REQUEST_TIMEOUT, f"the body did not come within {BODY_WITHIN_S:g} s")
    except (OSError, web.RequestPayloadError):
        return error(HTTPStatus.BAD_REQUEST, "the body is broken off, or its framing is wrong")
    except web.HTTPRequestEntityTooLarge:
        return error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {MOST_BODY_BYTES:,} bytes")


async def _fenced(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What the handler answers, or raises, as JSON."""
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            return await handler(request)
    except web.HTTPException as refused:
        text = "there is no such address" if refused.status == HTTPStatus.NOT_FOUND else refused.reason
        given = refused.text if refused.text != f"{refused.status}: {refused.reason}" else None
        answer = error(refused.status, given or text)
        if "allow" in refused.headers:
            answer.headers["allow"] = refused.headers["allow"]
        return answer
    except TimeoutError:
        return error(HTTPStatus.SERVICE_UNAVAILABLE, f"no answer within {ANSWER_WITHIN_S:g} s; try again")
    except (StoreError, Unreachable) as failure:
        return error(HTTPStatus.SERVICE_UNAVAILABLE, f"Redis does not answer this now ({failure}); try again")
    except NsqdigestError as failure:
        return error(HTTPStatus.BAD_REQUEST, str(failure))
    except Exception as failure:
        _log.error("admin.request.bug", path=request.path, error=failure, exc_info=failure)
        return error(HTTPStatus.INTERNAL_SERVER_ERROR, _BUG)


def _what(body: bytes) -> object:
    """Of a write: it has no secrets."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def error(status: int, text: str) -> web.Response:
    return answer_json({"error": text}, status)


def answer_json(fields: object, status: int = HTTPStatus.OK) -> web.Response:
    return web.Response(body=msgspec.json.encode(fields), status=status, content_type="application/json")


def _refusal(asked: Asked, refused: Refused) -> web.Response:
    if asked.is_of_api:
        answer = error(refused.status, refused.text)
    else:
        answer = web.Response(text=f"{refused.text}\n", status=refused.status)
    if refused.status == HTTPStatus.UNAUTHORIZED:
        answer.headers["www-authenticate"] = "Bearer"
    if refused.status == HTTPStatus.TOO_MANY_REQUESTS:
        answer.headers["retry-after"] = "60"
    if asked.is_write or asked.has_body:
        answer.force_close()  # its body is not read
    return answer


async def _set_headers(_request: web.Request, answer: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        answer.headers.setdefault(name, value)
    answer.headers.pop("server", None)  # of what we are made is nobody's business
