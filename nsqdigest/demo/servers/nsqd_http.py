"""The HTTP side of the embedded nsqd: publishing, statistics, making and pausing channels; nsqd's paths and words."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web
from aiohttp.typedefs import Handler

from nsqdigest.demo.servers.nsqd_queues import Broker, Channel, Refusal, valid_name
from nsqdigest.demo.servers.nsqd_session import VERSION, split_mpub

_YES_OR_NO = {"true": True, "1": True, "false": False, "0": False}


def _problem(status: int, text: str) -> web.Response:
    return web.json_response({"message": text}, status=status)


class _HttpRefusal(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@web.middleware
async def _answer_refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except _HttpRefusal as refusal:
        return _problem(refusal.status, str(refusal))
    except web.HTTPRequestEntityTooLarge:
        return _problem(413, "BODY_TOO_BIG")
    except web.HTTPMethodNotAllowed:
        return _problem(405, "METHOD_NOT_ALLOWED")
    except web.HTTPNotFound:
        return _problem(404, "NOT_FOUND")


def _topic_name(query: Mapping[str, str]) -> str:
    if "topic" not in query:
        raise _HttpRefusal(400, "MISSING_ARG_TOPIC")
    if not valid_name(query["topic"]):
        raise _HttpRefusal(400, "INVALID_TOPIC")
    return query["topic"]


class HttpSide:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._options = broker.options

    def application(self) -> web.Application:
        # A message that is too large gets nsqd's refusal; only a body beyond every limit gets aiohttp's.
        app = web.Application(middlewares=[_answer_refusals], client_max_size=self._options.max_body_size_bytes)
        app.add_routes(
            [
                web.get("/ping", self._ping),
                web.get("/stats", self._stats),
                web.post("/pub", self._pub),
                web.post("/mpub", self._mpub),
                web.post("/topic/create", self._create_topic),
                web.post("/channel/create", self._create_channel),
                web.post("/channel/pause", self._pause_channel),
                web.post("/channel/unpause", self._unpause_channel),
            ]
        )
        return app

    async def _ping(self, request: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def _stats(self, request: web.Request) -> web.Response:
        query = request.query
        if query.get("format") != "json":
            raise _HttpRefusal(400, "INVALID_FORMAT")
        include_clients = _YES_OR_NO.get(query.get("include_clients", ""), True)
        stats = self._broker.stats(query.get("topic", ""), query.get("channel", ""), include_clients)
        return web.json_response({"version": VERSION, "health": "OK", **stats})

    async def _pub(self, request: web.Request) -> web.Response:
        body = await request.read()
        if len(body) > self._options.max_msg_size_bytes:
            raise _HttpRefusal(413, "MSG_TOO_BIG")
        if not body:
            raise _HttpRefusal(400, "MSG_EMPTY")
        topic_name = _topic_name(request.query)
        self._broker.publish(topic_name, [body], self._delay_ms(request.query))
        return web.Response(text="OK")

    def _delay_ms(self, query: Mapping[str, str]) -> int:
        text = query.get("defer", "0")
        if not (text.isascii() and text.isdigit()) or int(text) > self._options.max_req_timeout_ms:
            raise _HttpRefusal(400, "INVALID_DEFER")
        return int(text)

    async def _mpub(self, request: web.Request) -> web.Response:
        topic_name = _topic_name(request.query)
        body = await request.read()
        binary = "binary" in request.query and _YES_OR_NO.get(request.query["binary"], True)
        self._broker.publish(topic_name, self._split_binary(body) if binary else self._split_lines(body))
        return web.Response(text="OK")

    def _split_binary(self, body: bytes) -> list[bytes]:
        try:
            return split_mpub(body, self._options)
        except Refusal as refusal:
            raise _HttpRefusal(413, refusal.code.removeprefix("E_")) from refusal

    def _split_lines(self, body: bytes) -> list[bytes]:
        lines = [line for line in body.split(b"\n") if line]
        if any(len(line) > self._options.max_msg_size_bytes for line in lines):
            raise _HttpRefusal(413, "MSG_TOO_BIG")
        return lines

    async def _create_topic(self, request: web.Request) -> web.Response:
        self._broker.topic(_topic_name(request.query))
        return web.Response()

    def _names(self, query: Mapping[str, str]) -> tuple[str, str]:
        """Of an existing topic, and of a channel that may be there."""
        for name in ("topic", "channel"):
            if name not in query:
                raise _HttpRefusal(400, f"MISSING_ARG_{name.upper()}")
            if not valid_name(query[name]):
                raise _HttpRefusal(400, f"INVALID_ARG_{name.upper()}")
        if query["topic"] not in self._broker.topics:
            raise _HttpRefusal(404, "TOPIC_NOT_FOUND")
        return query["topic"], query["channel"]

    async def _create_channel(self, request: web.Request) -> web.Response:
        self._broker.channel(*self._names(request.query))
        return web.Response()

    def _existing(self, query: Mapping[str, str]) -> Channel:
        topic_name, channel_name = self._names(query)
        channel = self._broker.topics[topic_name].channels.get(channel_name)
        if channel is None:
            raise _HttpRefusal(404, "CHANNEL_NOT_FOUND")
        return channel

    async def _pause_channel(self, request: web.Request) -> web.Response:
        self._existing(request.query).paused = True
        return web.Response()

    async def _unpause_channel(self, request: web.Request) -> web.Response:
        channel = self._existing(request.query)
        channel.paused = False
        channel.dispatch(self._broker.clock())
        return web.Response()
