"""The receiver of every posting lane, a process of its own: it accepts each POST with 204 and counts.

It counts posts and distinct `webhook-id`s. A body that holds `"at_ns":N` (CLOCK_MONOTONIC, the same clock in all
processes of a machine) also gives the time from N until the request was complete. GET /stats returns the counts, GET
/waits those times. It parses no more of HTTP than its clients here send: no chunked requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time

ACCEPTED = b"HTTP/1.1 204 No Content\r\n\r\n"
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
IDENTITY = re.compile(rb"\r\nwebhook-id: *([^\r]+)", re.IGNORECASE)
PUBLISHED = re.compile(rb'"at_ns":(\d+)')


class Counts:
    def __init__(self) -> None:
        self.posts = 0
        self.ids: set[bytes] = set()
        self.waits_us: list[int] = []

    def accept(self, head: bytes, body: bytes) -> None:
        self.posts += 1
        if identity := IDENTITY.search(head):
            self.ids.add(identity[1])
        if published := PUBLISHED.search(body):
            self.waits_us.append((time.monotonic_ns() - int(published[1])) // 1000)


class Connection(asyncio.Protocol):
    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._pending += data
        while (end := self._pending.find(b"\r\n\r\n")) >= 0:
            head = self._pending[:end]
            length = LENGTH.search(head)
            whole = end + 4 + (int(length[1]) if length else 0)
            if len(self._pending) < whole:
                return
            body, self._pending = self._pending[end + 4 : whole], self._pending[whole:]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"POST"):
            self._counts.accept(head, body)
            self._transport.write(ACCEPTED)
            return
        counts = self._counts
        facts = counts.waits_us if b" /waits " in head else {"posts": counts.posts, "ids": len(counts.ids)}
        answer = json.dumps(facts).encode()
        self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(answer), answer))


async def serve(port: int) -> None:
    counts = Counts()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(counts), "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, required=True)
    asyncio.run(serve(options.parse_args().port))
