"""Clients that do nothing but post one body COUNT times, so many at a time, each post with an id of its own.

`aiohttp` is what one would write with it. `protocol` is the least that an asyncio program can do: a connection that
writes the next request when the answer to the last one is there. It is a floor, no client: no TLS, no time-out.
Afterwards the process waits for TERM, so that its counters can be read.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp


def headers(number: int) -> dict[str, str]:
    return {
        "content-type": "application/json",
        "user-agent": "bare/1",
        "webhook-id": f"bare-{number:032d}",
        "webhook-timestamp": str(int(time.time())),
        "nsqdigest-attempt": "1",
    }


async def with_aiohttp(url: str, body: bytes, numbers: Iterator[int], concurrency: int) -> None:
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=concurrency), timeout=aiohttp.ClientTimeout(total=15)
    ) as session:

        async def work() -> None:
            for number in numbers:
                async with session.post(url, data=body, headers=headers(number), allow_redirects=False) as answer:
                    answer.raise_for_status()

        await asyncio.gather(*(work() for _ in range(concurrency)))


class Posting(asyncio.Protocol):
    def __init__(self, path: str, body: bytes, numbers: Iterator[int], done: asyncio.Future[None]) -> None:
        self._path, self._body, self._numbers, self._done = path, body, numbers, done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._next()

    def data_received(self, data: bytes) -> None:
        assert data.endswith(b"\r\n\r\n")
        self._next()

    def _next(self) -> None:
        number = next(self._numbers, None)
        if number is None:
            self._done.set_result(None)
            return
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers(number).items())
        head = f"POST {self._path} HTTP/1.1\r\nhost: here\r\n{lines}content-length: {len(self._body)}\r\n\r\n"
        self._transport.write(head.encode() + self._body)


async def with_protocol(url: str, body: bytes, numbers: Iterator[int], concurrency: int) -> None:
    loop, target = asyncio.get_running_loop(), urlsplit(url)
    ended: list[asyncio.Future[None]] = [loop.create_future() for _ in range(concurrency)]
    for done in ended:
        connect = partial(Posting, target.path, body, numbers, done)
        await loop.create_connection(connect, str(target.hostname), target.port or 80)
    await asyncio.gather(*ended)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("client", choices=("aiohttp", "protocol"))
    options.add_argument("--url", required=True)
    options.add_argument("--body", type=Path, required=True)
    options.add_argument("--count", type=int, required=True)
    options.add_argument("--concurrency", type=int, default=8)
    given = options.parse_args()
    post = with_aiohttp if given.client == "aiohttp" else with_protocol
    asyncio.run(post(given.url, given.body.read_bytes(), iter(range(given.count)), given.concurrency))
    signal.pause()


if __name__ == "__main__":
    main()
