"""`python -m bench.http.receiver [CERT KEY]`: answers every POST with 200, as cheaply as asyncio can.

Prints its port, then for each line it reads the number of posts and of different webhook-ids since the line before.
"""

from __future__ import annotations

import asyncio
import ssl
import sys

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok"
HOST = "127.0.0.1"


class Counts:
    def __init__(self) -> None:
        self.posts = 0
        self.ids: set[bytes] = set()

    def taken(self) -> str:
        text = f"{self.posts} {len(self.ids)}"
        self.posts = 0
        self.ids.clear()
        return text


class Receiver(asyncio.Protocol):
    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._transport: asyncio.Transport | None = None
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        head_end = self._read.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = self._read[: head_end + 2].lower()
        if len(self._read) < head_end + 4 + int(_value(head, b"content-length")):
            return
        self._counts.posts += 1
        self._counts.ids.add(_value(head, b"webhook-id"))
        self._read = b""
        assert self._transport is not None
        self._transport.write(ANSWER)


def _value(head: bytes, name: bytes) -> bytes:
    start = head.index(b"\r\n" + name + b":") + len(name) + 3
    return head[start : head.index(b"\r\n", start)].strip()


async def serve(tls: ssl.SSLContext | None) -> None:
    counts = Counts()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Receiver(counts), HOST, 0, ssl=tls)
    print(server.sockets[0].getsockname()[1], flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(counts.taken(), flush=True)


def main() -> None:
    tls = None
    if sys.argv[1:]:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(*sys.argv[1:3])
    asyncio.run(serve(tls))


if __name__ == "__main__":
    main()
