"""A webhook receiver: a real HTTP server in a thread of its own, which notes each post before it answers.

How it answers can be changed at any time: an `Answer` for all, or some for the next posts in their order. While it is
`down` nobody listens on its port, and connections are refused. What it accepted is what it answered 2xx to; a post that
it took and gave no answer to counts as a post, not as accepted.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple, NoReturn, Self

import msgspec
from aiohttp import web

from support.ports import HOST, free_port
from support.waiting import PATIENCE_S


class Kind(Enum):
    ANSWER = auto()
    HANG = auto()
    """Takes the post and never answers."""
    DROP = auto()
    """Takes the post and hangs up."""
    GARBAGE = auto()
    """Takes the post and answers what is no HTTP."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    after_s: float = 0.0
    kind: Kind = Kind.ANSWER
    text: str = ""

    @property
    def accepts(self) -> bool:
        return self.kind is Kind.ANSWER and 200 <= self.status < 300


OK = Answer()
HANG = Answer(kind=Kind.HANG)
DROP = Answer(kind=Kind.DROP)
GARBAGE = Answer(kind=Kind.GARBAGE)


class Post(NamedTuple):
    id: str
    attempt: int
    body: bytes
    headers: Mapping[str, str]
    at_s: float
    answer: Answer
    path: str = "/hook"
    """As it was sent, with the query."""
    host: str = ""
    peer: tuple[str, int] = ("", 0)
    """Of the connection that it came over."""


class Receiver:
    """`with Receiver() as receiver:`. All of it may be asked and told from any thread."""

    def __init__(self) -> None:
        self.port = free_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"receiver {self.port}", daemon=True)
        self._lock = threading.Lock()
        self._posts: list[Post] = []
        self._next: deque[Answer] = deque()
        self._answer = OK
        self.judge: Callable[[bytes], Answer] | None = None
        """Where it is set it answers each post by its body."""
        self._changed = asyncio.Event()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/hook"

    def __enter__(self) -> Self:
        self._thread.start()
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    # -- how it behaves

    def answer(self, answer: Answer, *first: Answer) -> None:
        """`answer` from now on, after each of `first` was given to one post. Those that hang are let go unanswered."""
        with self._lock:
            self._answer = answer
            self._next = deque(first)
        self._loop.call_soon_threadsafe(self._let_go)

    def up(self) -> None:
        self._do(self._open())

    def down(self) -> None:
        """Stops listening and hangs up on everyone."""
        self._loop.call_soon_threadsafe(self._let_go)
        self._do(self._close())

    # -- what it was sent

    @property
    def posts(self) -> list[Post]:
        with self._lock:
            return self._posts.copy()

    def accepted(self) -> list[Post]:
        return [post for post in self.posts if post.answer.accepts]

    def digests(self) -> list[dict[str, Any]]:
        """`data` of each accepted digest, once for each id."""
        return [parsed(body)["data"] for body in {post.id: post.body for post in self.accepted()}.values()]

    def values(self) -> list[Any]:
        """The events in accepted digests, once for each digest they are in."""
        return [record["value"] for data in self.digests() for record in records_of(data)]

    def accepted_more_than_once(self) -> dict[str, int]:
        return {identity: times for identity, times in Counter(p.id for p in self.accepted()).items() if times > 1}

    def ids_with_two_bodies(self) -> list[str]:
        """Over all posts, whatever was answered."""
        bodies: dict[str, set[bytes]] = {}
        for post in self.posts:
            bodies.setdefault(post.id, set()).add(post.body)
        return [identity for identity, different in bodies.items() if len(different) > 1]

    # -- in its thread

    def _do(self, work: Any) -> None:
        done: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        done.result(PATIENCE_S)

    def _let_go(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _open(self) -> None:
        if self._runner is not None:
            return
        application = web.Application(client_max_size=64 << 20)
        application.router.add_post("/hook{rest:.*}", self._take)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, self.port, backlog=1024).start()

    async def _close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _take(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        with self._lock:
            answer = self._next.popleft() if self._next else self._answer
            if self.judge is not None:
                answer = self.judge(body)
            self._posts.append(
                Post(
                    request.headers.get("webhook-id", ""),
                    int(request.headers.get("nsqdigest-attempt", "0")),
                    body,
                    {name.lower(): value for name, value in request.headers.items()},
                    time.monotonic(),
                    answer,
                    request.raw_path,
                    request.host.partition(":")[0],
                    request.transport.get_extra_info("peername")[:2] if request.transport is not None else ("", 0),
                )
            )
        if answer.kind is Kind.HANG:
            await self._changed.wait()
        elif answer.after_s:
            await asyncio.sleep(answer.after_s)
        if answer.kind is Kind.GARBAGE and request.transport is not None:
            request.transport.write(f"220 {answer.text or 'this is no HTTP'}\r\n\r\n".encode())
            request.transport.close()
        elif answer.kind is not Kind.ANSWER and request.transport is not None:
            request.transport.abort()
        return web.Response(
            status=answer.status, headers=answer.headers, text=answer.text or f"answered {answer.status}"
        )


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def parsed(body: bytes) -> dict[str, Any]:
    """The body as a strict receiver sees it, with two parsers. Raises where one of them cannot read it."""
    msgspec.json.decode(body)
    document: dict[str, Any] = json.loads(body.decode("utf-8", "strict"), parse_constant=_refuse)
    # Half a character gets through both on its way in; nobody could write it on.
    json.dumps(document, ensure_ascii=False).encode("utf-8", "strict")
    return document


def records_of(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "groups" in data:
        return [record for group in data["groups"] for record in group["records"]]
    records: list[dict[str, Any]] = data["records"]
    return records
