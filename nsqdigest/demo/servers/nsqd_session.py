"""The session of one client with the embedded nsqd: commands to answers, without a socket.

A command is looked at in nsqd's order: state, parameters, size of the body, body. So it takes two calls: `check` with
what stands before a body, and `carry_out` with all of it. Both raise Refusal with nsqd's own code and text.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import msgspec

from nsqdigest.demo.servers.nsqd_queues import Broker, Channel, Options, Refusal, Subscriber, valid_name
from nsqdigest.nsq.frames import Message

VERSION = "1.3.0"
"""The nsqd whose behaviour this is."""

_OK = b"OK"
_SMALLEST_MPUB_MESSAGE_BYTES = 5
_SIZE = struct.Struct(">i")
_ID_BYTES = 16
_MOST_DIGITS = 18

Params = tuple[str, ...]


class State(Enum):
    INIT = auto()
    SUBSCRIBED = auto()
    CLOSING = auto()


class _Identify(msgspec.Struct):
    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    feature_negotiation: bool = False
    heartbeat_interval: int = 0
    output_buffer_size: int = 0
    output_buffer_timeout: int = 0
    sample_rate: int = 0
    msg_timeout: int = 0


@dataclass(slots=True)
class _Negotiated:
    heartbeat_interval_ms: int
    msg_timeout_ms: int
    output_buffer_size_bytes: int = 16 * 1024
    output_buffer_timeout_ms: int = 250
    sample_rate: int = 0


def split_mpub(body: bytes, options: Options) -> list[bytes]:
    """The messages of a binary MPUB body."""
    if len(body) < _SIZE.size:
        raise Refusal("E_BAD_BODY", "MPUB failed to read message count")
    (count,) = _SIZE.unpack_from(body)
    most = (options.max_body_size_bytes - _SIZE.size) // _SMALLEST_MPUB_MESSAGE_BYTES
    if not 0 < count <= most:
        raise Refusal("E_BAD_BODY", f"MPUB invalid message count {count}")
    bodies: list[bytes] = []
    position = _SIZE.size
    for index in range(count):
        if len(body) - position < _SIZE.size:
            raise Refusal("E_BAD_MESSAGE", f"MPUB failed to read message({index}) body size")
        (size,) = _SIZE.unpack_from(body, position)
        if size <= 0:
            raise Refusal("E_BAD_MESSAGE", f"MPUB invalid message({index}) body size {size}")
        if size > options.max_msg_size_bytes:
            raise Refusal("E_BAD_MESSAGE", f"MPUB message too big {size} > {options.max_msg_size_bytes}")
        position += _SIZE.size
        if len(body) - position < size:
            raise Refusal("E_BAD_MESSAGE", "MPUB failed to read message body")
        bodies.append(body[position : position + size])
        position += size
    return bodies


def _within(what: str, asked: int, lowest: int, highest: int) -> int:
    if not lowest <= asked <= highest:
        raise Refusal("E_BAD_BODY", f"IDENTIFY {what} ({asked}) is invalid")
    return asked


def _base10(text: str, what: str) -> int:
    """nsqd's own: digits only, and nothing at all is 0. (It also takes more than an int64 holds, and wraps around.)"""
    if text and not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise Refusal("E_INVALID", f"{what} {text}")
    return int(text or "0")


def _message_id(text: str) -> bytes:
    message_id = text.encode()
    if len(message_id) != _ID_BYTES:
        raise Refusal("E_INVALID", "invalid message ID")
    return message_id


class Session:
    """`identify` is the object of the client's last IDENTIFY."""

    def __init__(self, broker: Broker, remote_address: str, deliver: Callable[[Message], None]) -> None:
        self.state = State.INIT
        self.identify: dict[str, Any] = {}
        self.topic_name = ""
        self.channel: Channel | None = None
        self.subscriber: Subscriber | None = None
        self._broker = broker
        self._options = broker.options
        self._remote_address = remote_address
        self._deliver = deliver
        self._connected_at_s = int(time.time())
        self._identified: _Identify | None = None
        self._negotiated = _Negotiated(self._options.heartbeat_interval_ms, self._options.msg_timeout_ms)
        whole, one = self._options.max_body_size_bytes, self._options.max_msg_size_bytes
        # The parameters it needs, how large its body may be, nsqd's code for a bad one, what is checked before.
        self._with_body: dict[str, tuple[int, int, str, Callable[[str, Params], None]]] = {
            "IDENTIFY": (0, whole, "E_BAD_BODY", self._check_init),
            "AUTH": (0, whole, "E_BAD_BODY", self._check_auth),
            "PUB": (1, one, "E_BAD_MESSAGE", self._check_topic),
            "MPUB": (1, whole, "E_BAD_BODY", self._check_topic),
            "DPUB": (2, one, "E_BAD_MESSAGE", self._check_dpub),
        }
        self._handlers: dict[str, Callable[[Params, bytes], bytes | None]] = {
            "IDENTIFY": self._identify,
            "AUTH": self._auth,
            "SUB": self._sub,
            "RDY": self._rdy,
            "FIN": self._fin,
            "REQ": self._req,
            "TOUCH": self._touch,
            "CLS": self._cls,
            "NOP": self._nop,
            "PUB": self._pub,
            "MPUB": self._mpub,
            "DPUB": self._dpub,
        }

    @property
    def heartbeat_interval_s(self) -> float:
        return self._negotiated.heartbeat_interval_ms / 1000

    def has_body(self, name: str) -> bool:
        return name in self._with_body

    def check(self, name: str, params: Params, body_size_bytes: int | None) -> None:
        """Of a command that has a body, as soon as its line is there, and again when the size is known."""
        needed, limit_bytes, code, check = self._with_body[name]
        if len(params) < needed:
            raise Refusal("E_INVALID", f"{name} insufficient number of parameters")
        check(name, params)
        if body_size_bytes is None:
            return
        if body_size_bytes <= 0:
            raise Refusal(code, f"{name} invalid body size {body_size_bytes}")
        if body_size_bytes > limit_bytes:
            raise Refusal(code, f"{name} too big {body_size_bytes} > {limit_bytes}")

    def carry_out(self, name: str, params: Params, body: bytes) -> bytes | None:
        """What nsqd answers; most commands of a consumer have no answer."""
        handler = self._handlers.get(name)
        if handler is None:
            raise Refusal("E_INVALID", f"invalid command {name}")
        return handler(params, body)

    def dispatch(self) -> None:
        if self.channel is not None:
            self.channel.dispatch(self._broker.clock())

    def block(self, blocked: bool) -> None:
        """Holds messages back from a client that does not read, or of a server that is frozen."""
        if self.subscriber is not None:
            self.subscriber.blocked = blocked
            self.dispatch()

    def leave(self) -> None:
        if self.channel is not None and self.subscriber is not None:
            self._broker.leave(self.topic_name, self.channel, self.subscriber)

    # -- what is checked before a body is read

    def _check_init(self, name: str, params: Params) -> None:
        if self.state is not State.INIT:
            raise Refusal("E_INVALID", f"cannot {name} in current state")

    def _check_auth(self, name: str, params: Params) -> None:
        self._check_init(name, params)
        if params:
            raise Refusal("E_INVALID", "AUTH invalid number of parameters")

    def _check_topic(self, name: str, params: Params) -> None:
        if not valid_name(params[0]):
            raise Refusal("E_BAD_TOPIC", f'{name} topic name "{params[0]}" is not valid')

    def _check_dpub(self, name: str, params: Params) -> None:
        self._check_topic(name, params)
        delay_ms = _base10(params[1], "DPUB could not parse timeout")
        if delay_ms > self._options.max_req_timeout_ms:
            raise Refusal("E_INVALID", f"DPUB timeout {delay_ms} out of range 0-{self._options.max_req_timeout_ms}")

    # -- the commands

    def _identify(self, params: Params, body: bytes) -> bytes | None:
        try:
            self.identify = msgspec.json.decode(body, type=dict[str, Any])
            asked = msgspec.convert(self.identify, _Identify)
        except ValueError as error:
            raise Refusal("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from error
        self._negotiate(asked)
        self._identified = asked
        return self._capabilities() if asked.feature_negotiation else _OK

    def _negotiate(self, asked: _Identify) -> None:
        options = self._options
        have = self._negotiated
        if asked.heartbeat_interval == -1:
            have.heartbeat_interval_ms = 0
        elif asked.heartbeat_interval != 0:
            have.heartbeat_interval_ms = _within(
                "heartbeat interval", asked.heartbeat_interval, options.shortest_ms, options.max_heartbeat_interval_ms
            )
        if asked.output_buffer_timeout == -1:
            have.output_buffer_timeout_ms = 0
        elif asked.output_buffer_timeout != 0:
            have.output_buffer_timeout_ms = _within("output buffer timeout", asked.output_buffer_timeout, 25, 30_000)
        if asked.output_buffer_size == -1:
            have.output_buffer_size_bytes, have.output_buffer_timeout_ms = 1, 0
        elif asked.output_buffer_size != 0:
            have.output_buffer_size_bytes = _within("output buffer size", asked.output_buffer_size, 64, 64 * 1024)
        if options.is_unbuffered:
            have.output_buffer_timeout_ms = 0
        have.sample_rate = _within("sample rate", asked.sample_rate, 0, 99)
        if asked.msg_timeout != 0:
            have.msg_timeout_ms = _within(
                "msg timeout", asked.msg_timeout, options.shortest_ms, options.max_msg_timeout_ms
            )

    def _capabilities(self) -> bytes:
        have = self._negotiated
        return msgspec.json.encode(
            {
                "max_rdy_count": self._options.max_rdy_count,
                "version": VERSION,
                "max_msg_timeout": self._options.max_msg_timeout_ms,
                "msg_timeout": have.msg_timeout_ms,
                "tls_v1": False,
                "deflate": False,
                "deflate_level": 6,
                "max_deflate_level": 6,
                "snappy": False,
                "sample_rate": have.sample_rate,
                "auth_required": False,
                "output_buffer_size": have.output_buffer_size_bytes,
                "output_buffer_timeout": have.output_buffer_timeout_ms,
            }
        )

    def _auth(self, params: Params, body: bytes) -> bytes | None:
        raise Refusal("E_AUTH_DISABLED", "AUTH disabled")

    def _sub(self, params: Params, body: bytes) -> bytes | None:
        self._check_init("SUB", params)
        if self._negotiated.heartbeat_interval_ms == 0:
            raise Refusal("E_INVALID", "cannot SUB with heartbeats disabled")
        if len(params) < 2:
            raise Refusal("E_INVALID", "SUB insufficient number of parameters")
        self._check_topic("SUB", params)
        self.topic_name, channel_name = params[:2]
        if not valid_name(channel_name):
            raise Refusal("E_BAD_CHANNEL", f'SUB channel name "{channel_name}" is not valid')
        unnamed = self._remote_address.rpartition(":")[0]
        who = self._identified or _Identify(client_id=unnamed, hostname=unnamed)
        self.subscriber = Subscriber(
            deliver=self._deliver,
            msg_timeout_s=self._negotiated.msg_timeout_ms / 1000,
            client_id=who.client_id,
            hostname=who.hostname,
            user_agent=who.user_agent,
            remote_address=self._remote_address,
            connect_ts_s=self._connected_at_s,
        )
        self.channel = self._broker.channel(self.topic_name, channel_name)
        self.channel.subscribers.append(self.subscriber)
        self.state = State.SUBSCRIBED
        return _OK

    def _subscribed(self, command: str) -> tuple[Channel, Subscriber]:
        if self.channel is None or self.subscriber is None:
            raise Refusal("E_INVALID", f"cannot {command} in current state")
        return self.channel, self.subscriber

    def _rdy(self, params: Params, body: bytes) -> bytes | None:
        _, subscriber = self._subscribed("RDY")
        if self.state is State.CLOSING:
            return None
        count = _base10(params[0], "RDY could not parse count") if params else 1
        if count > self._options.max_rdy_count:
            raise Refusal("E_INVALID", f"RDY count {count} out of range 0-{self._options.max_rdy_count}")
        subscriber.rdy = count
        return None

    def _fin(self, params: Params, body: bytes) -> bytes | None:
        channel, subscriber = self._subscribed("FIN")
        if len(params) < 1:
            raise Refusal("E_INVALID", "FIN insufficient number of params")
        channel.finish(subscriber, _message_id(params[0]))
        return None

    def _req(self, params: Params, body: bytes) -> bytes | None:
        channel, subscriber = self._subscribed("REQ")
        if len(params) < 2:
            raise Refusal("E_INVALID", "REQ insufficient number of params")
        message_id = _message_id(params[0])
        # Too long a delay is cut without an error, as by nsqd.
        delay_ms = min(_base10(params[1], "REQ could not parse timeout"), self._options.max_req_timeout_ms)
        channel.requeue(subscriber, message_id, delay_ms / 1000, self._broker.clock())
        return None

    def _touch(self, params: Params, body: bytes) -> bytes | None:
        channel, subscriber = self._subscribed("TOUCH")
        if len(params) < 1:
            raise Refusal("E_INVALID", "TOUCH insufficient number of params")
        channel.touch(subscriber, _message_id(params[0]), self._broker.clock())
        return None

    def _cls(self, params: Params, body: bytes) -> bytes | None:
        _, subscriber = self._subscribed("CLS")
        if self.state is State.CLOSING:
            raise Refusal("E_INVALID", "cannot CLS in current state")
        subscriber.rdy = 0
        subscriber.closing = True
        self.state = State.CLOSING
        return b"CLOSE_WAIT"

    def _nop(self, params: Params, body: bytes) -> bytes | None:
        return None

    def _pub(self, params: Params, body: bytes) -> bytes | None:
        self._broker.publish(params[0], [body])
        return _OK

    def _mpub(self, params: Params, body: bytes) -> bytes | None:
        self._broker.publish(params[0], split_mpub(body, self._options))
        return _OK

    def _dpub(self, params: Params, body: bytes) -> bytes | None:
        self._broker.publish(params[0], [body], delay_ms=_base10(params[1], "DPUB could not parse timeout"))
        return _OK
