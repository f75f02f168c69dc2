"""The state of the embedded nsqd: topics, channels, messages in flight. No sockets; the time is an argument.

- A topic keeps its messages until it has a channel. The first one gets them all; from then on each gets its own copy.
- A message of a channel is in exactly one place: queued, deferred, or in flight to one subscriber.
- RDY is a ceiling on what is in flight to a subscriber, and is not used up.
- A message belongs to who it was delivered to, also when that one is gone: it comes back by its timeout, never by a
  disconnect.

Instants are seconds of one monotonic clock.
"""

from __future__ import annotations

import heapq
import itertools
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nsqdigest.base.errors import NsqdigestError
from nsqdigest.nsq.frames import Message

EPHEMERAL = "#ephemeral"
NOT_FATAL = frozenset({"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"})

_NAME = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?")
_LONGEST_NAME = 64
_MOST_ATTEMPTS = 0xFFFF  # two bytes on the wire; nsqd's count starts again after them, and so does ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """nsqd's own flags and their defaults, and two that it has not."""

    max_rdy_count: int = 2_500
    max_msg_size_bytes: int = 1 << 20
    max_body_size_bytes: int = 5 << 20
    msg_timeout_ms: int = 60_000
    max_msg_timeout_ms: int = 900_000
    max_req_timeout_ms: int = 3_600_000
    heartbeat_interval_ms: int = 30_000
    max_heartbeat_interval_ms: int = 60_000
    shortest_ms: int = 1_000
    """How short a heartbeat or message timeout may be."""
    is_unbuffered: bool = False
    """Answers IDENTIFY with an `output_buffer_timeout` of 0, whatever it asks for: it holds no message back."""


class Refusal(NsqdigestError):
    """An error frame. `code` is nsqd's own; only the failures of FIN, REQ and TOUCH leave the connection open."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"{code} {detail}" if detail else code)
        self.code = code

    @property
    def fatal(self) -> bool:
        return self.code not in NOT_FATAL


def valid_name(name: str) -> bool:
    """Of a topic or channel."""
    return len(name) <= _LONGEST_NAME and _NAME.fullmatch(name) is not None


@dataclass(slots=True, kw_only=True, eq=False)
class Subscriber:
    """One connection as its channel sees it, with the counters that /stats shows."""

    deliver: Callable[[Message], None]
    msg_timeout_s: float
    client_id: str
    hostname: str
    user_agent: str
    remote_address: str
    connect_ts_s: int
    rdy: int = 0
    closing: bool = False
    blocked: bool = False
    """It does not read what it was sent already."""
    in_flight: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0

    @property
    def ready(self) -> bool:
        return self.in_flight < self.rdy and not self.blocked

    def stats(self) -> dict[str, Any]:
        return {
            "client_id": self.client_id,
            "hostname": self.hostname,
            "version": "V2",
            "remote_address": self.remote_address,
            "state": 4 if self.closing else 3,
            "ready_count": self.rdy,
            "in_flight_count": self.in_flight,
            "message_count": self.message_count,
            "finish_count": self.finish_count,
            "requeue_count": self.requeue_count,
            "connect_ts": self.connect_ts_s,
            "user_agent": self.user_agent,
        }


@dataclass(slots=True)
class _InFlight:
    message: Message
    owner: Subscriber
    delivered_at: float
    deadline: float


@dataclass(slots=True)
class Channel:
    name: str
    max_msg_timeout_s: float
    paused: bool = False
    queue: deque[Message] = field(default_factory=deque)
    subscribers: deque[Subscriber] = field(default_factory=deque)
    """In turn: the first one was served last."""
    message_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    _in_flight: dict[bytes, _InFlight] = field(default_factory=dict)
    _deferred: list[tuple[float, int, Message]] = field(default_factory=list)
    _sequence: itertools.count[int] = field(default_factory=itertools.count)

    def put(self, message: Message) -> None:
        self.message_count += 1
        self.queue.append(message)

    def put_deferred(self, message: Message, due: float) -> None:
        self.message_count += 1
        self._defer(message, due)

    def _defer(self, message: Message, due: float) -> None:
        heapq.heappush(self._deferred, (due, next(self._sequence), message))

    def dispatch(self, now: float) -> None:
        """Hands out what may be in flight, one message each in turn."""
        while self.queue and not self.paused:
            subscriber = self._next_ready()
            if subscriber is None:
                return
            message = self.queue.popleft()
            message.attempts = (message.attempts + 1) & _MOST_ATTEMPTS
            self._in_flight[message.id] = _InFlight(message, subscriber, now, now + subscriber.msg_timeout_s)
            subscriber.in_flight += 1
            subscriber.message_count += 1
            subscriber.deliver(message)

    def _next_ready(self) -> Subscriber | None:
        for _ in range(len(self.subscribers)):
            self.subscribers.rotate(-1)
            if self.subscribers[0].ready:
                return self.subscribers[0]
        return None

    def finish(self, owner: Subscriber, message_id: bytes) -> None:
        self._take("FIN", owner, message_id)
        owner.finish_count += 1

    def requeue(self, owner: Subscriber, message_id: bytes, delay_s: float, now: float) -> None:
        message = self._take("REQ", owner, message_id)
        owner.requeue_count += 1
        self.requeue_count += 1
        if delay_s > 0:
            self._defer(message, now + delay_s)
        else:
            self.queue.append(message)

    def touch(self, owner: Subscriber, message_id: bytes, now: float) -> None:
        held = self._held("TOUCH", owner, message_id)
        held.deadline = min(now + owner.msg_timeout_s, held.delivered_at + self.max_msg_timeout_s)

    def _take(self, command: str, owner: Subscriber, message_id: bytes) -> Message:
        held = self._held(command, owner, message_id)
        del self._in_flight[message_id]
        owner.in_flight -= 1
        return held.message

    def _held(self, command: str, owner: Subscriber, message_id: bytes) -> _InFlight:
        held = self._in_flight.get(message_id)
        if held is not None and held.owner is owner:
            return held
        why = "ID not in flight" if held is None else "client does not own message"
        raise Refusal(f"E_{command}_FAILED", f"{command} {message_id.decode('ascii', 'backslashreplace')} failed {why}")

    def expire(self, now: float) -> bool:
        """Queues what was in flight for too long and what is due. True when there was any."""
        late = [held for held in self._in_flight.values() if held.deadline <= now]
        for held in late:
            self.timeout_count += 1
            self._give_back(held)
        due = 0
        while self._deferred and self._deferred[0][0] <= now:
            self.queue.append(heapq.heappop(self._deferred)[2])
            due += 1
        return bool(late or due)

    def give_all_back(self) -> None:
        """As at a clean end of nsqd: in flight and deferred are queued, to be there when it starts again."""
        for held in list(self._in_flight.values()):
            self._give_back(held)
        self.queue.extend(message for _, _, message in sorted(self._deferred))
        self._deferred.clear()

    def _give_back(self, held: _InFlight) -> None:
        del self._in_flight[held.message.id]
        held.owner.in_flight -= 1
        self.queue.append(held.message)

    def stats(self, include_clients: bool) -> dict[str, Any]:
        return {
            "channel_name": self.name,
            "depth": len(self.queue),
            "backend_depth": 0,
            "in_flight_count": len(self._in_flight),
            "deferred_count": len(self._deferred),
            "message_count": self.message_count,
            "requeue_count": self.requeue_count,
            "timeout_count": self.timeout_count,
            "client_count": len(self.subscribers),
            "clients": [subscriber.stats() for subscriber in self.subscribers] if include_clients else None,
            "paused": self.paused,
        }


@dataclass(slots=True)
class Topic:
    name: str
    max_msg_timeout_s: float
    channels: dict[str, Channel] = field(default_factory=dict)
    backlog: deque[tuple[Message, float]] = field(default_factory=deque)
    """With the delay in seconds, which begins when a channel takes the message."""
    message_count: int = 0
    message_bytes: int = 0

    def channel(self, name: str, now: float) -> Channel:
        """Made at its first use."""
        if name not in self.channels:
            self.channels[name] = Channel(name, self.max_msg_timeout_s)
            while self.backlog:
                self._pass_on(*self.backlog.popleft(), now)
        return self.channels[name]

    def put(self, message: Message, delay_s: float, now: float) -> None:
        self.message_count += 1
        self.message_bytes += len(message.body)
        if self.channels:
            self._pass_on(message, delay_s, now)
        else:
            self.backlog.append((message, delay_s))

    def _pass_on(self, message: Message, delay_s: float, now: float) -> None:
        for channel in self.channels.values():
            own = Message(message.id, message.timestamp_ns, 0, message.body)
            if delay_s > 0:
                channel.put_deferred(own, now + delay_s)
            else:
                channel.put(own)

    def stats(self, channel_name: str, include_clients: bool) -> dict[str, Any]:
        shown = [self.channels[name] for name in sorted(self.channels) if channel_name in ("", name)]
        return {
            "topic_name": self.name,
            "channels": [channel.stats(include_clients) for channel in shown],
            "depth": len(self.backlog),
            "backend_depth": 0,
            "message_count": self.message_count,
            "message_bytes": self.message_bytes,
            "paused": False,
        }


class Broker:
    """All topics. Whatever may have made a message deliverable ends in `dispatch`."""

    def __init__(self, options: Options, clock: Callable[[], float]) -> None:
        self.options = options
        self.clock = clock
        self.topics: dict[str, Topic] = {}
        # From the time of the start, so that those of a later run do not begin where these did.
        self._ids = itertools.count(time.time_ns())

    def topic(self, name: str) -> Topic:
        """Made at its first use."""
        if name not in self.topics:
            self.topics[name] = Topic(name, self.options.max_msg_timeout_ms / 1000)
        return self.topics[name]

    def publish(self, topic_name: str, bodies: list[bytes], delay_ms: int = 0) -> list[Message]:
        topic = self.topic(topic_name)
        now = self.clock()
        messages = [Message(b"%016x" % next(self._ids), time.time_ns(), 0, body) for body in bodies]
        for message in messages:
            topic.put(message, delay_ms / 1000, now)
        for channel in topic.channels.values():
            channel.dispatch(now)
        return messages

    def channel(self, topic_name: str, channel_name: str) -> Channel:
        return self.topic(topic_name).channel(channel_name, self.clock())

    def leave(self, topic_name: str, channel: Channel, subscriber: Subscriber) -> None:
        """What it has in flight stays so until its timeout. The last one out of something ephemeral ends that."""
        channel.subscribers.remove(subscriber)
        topic = self.topics.get(topic_name)
        if topic is None or channel.subscribers or not channel.name.endswith(EPHEMERAL):
            return
        topic.channels.pop(channel.name, None)
        if not topic.channels and topic.name.endswith(EPHEMERAL):
            del self.topics[topic.name]

    def expire(self) -> bool:
        now = self.clock()
        moved = [
            channel for topic in self.topics.values() for channel in topic.channels.values() if channel.expire(now)
        ]
        for channel in moved:
            channel.dispatch(now)
        return bool(moved)

    def give_all_back(self) -> None:
        for topic in self.topics.values():
            for channel in topic.channels.values():
                channel.give_all_back()

    def stats(self, topic_name: str = "", channel_name: str = "", include_clients: bool = True) -> dict[str, Any]:
        shown = [self.topics[name] for name in sorted(self.topics) if topic_name in ("", name)]
        with_channel = [topic for topic in shown if channel_name == "" or channel_name in topic.channels]
        return {"topics": [topic.stats(channel_name, include_clients) for topic in with_channel]}
