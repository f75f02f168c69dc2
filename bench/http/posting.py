"""`python -m bench.http.posting CLIENT URL POSTS [CA]`: posts, and prints the seconds and the CPU seconds that it took.

Every client sends the same body and the same headers, `AT_ONCE` posts at a time, and looks at each answer's status.
What it needs once (connections, TLS handshakes, code that is loaded late) is done before the clock starts.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any

BODY_BYTES = 1_941
BODY = (json.dumps({"type": "digest", "data": "x" * BODY_BYTES})[: BODY_BYTES - 2] + '"}').encode()
AT_ONCE = 8
TIMEOUT_S, CONNECT_TIMEOUT_S = 15.0, 5.0
STEADY = {"content-type": "application/json", "user-agent": "nsqdigest/bench"}
WARM_UP = 0.05

Post = Callable[[dict[str, str]], Awaitable[int]]


def own_headers(number: int) -> dict[str, str]:
    """Of one post."""
    return {
        "webhook-id": f"0193a1b2-0000-7000-8000-{number:012d}",
        "webhook-timestamp": "1700000000",
        "nsqdigest-attempt": "1",
        "webhook-signature": "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=",
    }


class Clock:
    """Of what comes behind the warm-up."""

    def __init__(self) -> None:
        self._began = (time.perf_counter(), time.process_time())

    def restart(self) -> None:
        self._began = (time.perf_counter(), time.process_time())

    def print(self) -> None:
        wall_s, cpu_s = self._began
        print(json.dumps({"seconds": time.perf_counter() - wall_s, "cpu_s": time.process_time() - cpu_s}))


async def _all_posts(post: Post, posts: int, clock: Clock) -> None:
    async def work(numbers: Iterator[int], last: int) -> None:
        while (number := next(numbers)) < last:
            status = await post(own_headers(number))
            assert status == 200

    numbers = count()
    warm = int(posts * WARM_UP)
    await asyncio.gather(*(work(numbers, warm) for _ in range(AT_ONCE)))
    clock.restart()
    rest = count(warm)
    await asyncio.gather(*(work(rest, posts) for _ in range(AT_ONCE)))
    clock.print()


async def by_aiohttp(url: str, posts: int, tls: ssl.SSLContext | None) -> None:
    import aiohttp

    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=AT_ONCE, ssl=tls if tls is not None else True),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S),
        auto_decompress=False,
        trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    )

    async def post(headers: dict[str, str]) -> int:
        async with session.post(url, data=BODY, headers={**STEADY, **headers}, allow_redirects=False) as answer:
            return answer.status

    async with session:
        await _all_posts(post, posts, Clock())


async def by_ours(url: str, posts: int, tls: ssl.SSLContext | None) -> None:
    from nsqdigest.base.http.client import Client

    client = Client(
        url,
        connections=AT_ONCE,
        timeout_s=TIMEOUT_S,
        connect_timeout_s=CONNECT_TIMEOUT_S,
        headers=STEADY,
        ssl_context=tls,
    )

    async def post(headers: dict[str, str]) -> int:
        return (await client.post(BODY, headers.items())).status

    await _all_posts(post, posts, Clock())
    await client.close()


def curl_handle(url: str, ca_file: str) -> Any:
    import pycurl

    handle = pycurl.Curl()
    handle.setopt(pycurl.URL, url)
    handle.setopt(pycurl.POSTFIELDS, BODY)
    handle.setopt(pycurl.WRITEFUNCTION, len)
    handle.setopt(pycurl.TIMEOUT_MS, int(TIMEOUT_S * 1000))
    handle.setopt(pycurl.CONNECTTIMEOUT_MS, int(CONNECT_TIMEOUT_S * 1000))
    handle.setopt(pycurl.NOSIGNAL, 1)
    handle.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
    if ca_file:
        handle.setopt(pycurl.CAINFO, ca_file)
    return handle


def curl_lines(headers: dict[str, str]) -> list[str]:
    return [*(f"{name}: {value}" for name, value in {**STEADY, **headers}.items()), "Expect:"]


class CurlInAsyncio:
    """libcurl tells which sockets and which timer to wait for; asyncio waits, and tells libcurl."""

    def __init__(self, url: str, ca_file: str) -> None:
        import pycurl

        self._curl = pycurl
        self._loop = asyncio.get_running_loop()
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._on_socket)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._on_timer)
        self._free = [curl_handle(url, ca_file) for _ in range(AT_ONCE)]
        self._under_way: dict[Any, asyncio.Future[int]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def post(self, headers: dict[str, str]) -> int:
        handle = self._free.pop()
        handle.setopt(self._curl.HTTPHEADER, curl_lines(headers))
        answer: asyncio.Future[int] = self._loop.create_future()
        self._under_way[handle] = answer
        self._multi.add_handle(handle)
        try:
            return await answer
        finally:
            self._free.append(handle)

    def _on_socket(self, event: int, descriptor: int, *_: object) -> None:
        self._loop.remove_reader(descriptor)
        self._loop.remove_writer(descriptor)
        if event in (self._curl.POLL_IN, self._curl.POLL_INOUT):
            self._loop.add_reader(descriptor, self._act, descriptor, self._curl.CSELECT_IN)
        if event in (self._curl.POLL_OUT, self._curl.POLL_INOUT):
            self._loop.add_writer(descriptor, self._act, descriptor, self._curl.CSELECT_OUT)

    def _on_timer(self, after_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if after_ms >= 0:
            self._timer = self._loop.call_later(after_ms / 1000, self._act, self._curl.SOCKET_TIMEOUT, 0)

    def _act(self, descriptor: int, event: int) -> None:
        self._multi.socket_action(descriptor, event)
        _, good, bad = self._multi.info_read()
        assert not bad
        for handle in good:
            self._multi.remove_handle(handle)
            self._under_way.pop(handle).set_result(handle.getinfo(self._curl.RESPONSE_CODE))


async def by_pycurl(url: str, posts: int, ca_file: str) -> None:
    await _all_posts(CurlInAsyncio(url, ca_file).post, posts, Clock())


def by_bare_pycurl(url: str, posts: int, ca_file: str) -> None:
    """Its multi interface and its own wait for sockets: the least that it can cost."""
    import pycurl

    multi = pycurl.CurlMulti()
    numbers = count()

    def begin(handle: Any) -> None:
        handle.setopt(pycurl.HTTPHEADER, curl_lines(own_headers(next(numbers))))
        multi.add_handle(handle)

    def run(posts: int) -> None:
        begun = ended = 0
        idle = list(handles)
        while ended < posts:
            while idle and begun < posts:
                begin(idle.pop())
                begun += 1
            multi.perform()
            _, good, bad = multi.info_read()
            assert not bad
            for handle in good:
                assert handle.getinfo(pycurl.RESPONSE_CODE) == 200
                multi.remove_handle(handle)
                idle.append(handle)
                ended += 1
            if not good:
                multi.select(1.0)

    handles = [curl_handle(url, ca_file) for _ in range(AT_ONCE)]
    warm = int(posts * WARM_UP)
    run(warm)
    clock = Clock()
    run(posts - warm)
    clock.print()


def main() -> None:
    client, url, posts, *rest = sys.argv[1:]
    ca_file = rest[0] if rest else ""
    if client == "bare":
        by_bare_pycurl(url, int(posts), ca_file)
        return
    if client == "pycurl":
        asyncio.run(by_pycurl(url, int(posts), ca_file))
        return
    tls = ssl.create_default_context(cafile=ca_file) if ca_file else None
    asyncio.run({"aiohttp": by_aiohttp, "ours": by_ours}[client](url, int(posts), tls))


if __name__ == "__main__":
    main()
