"""`python -m bench.mail.receiver`: a mail server, aiosmtpd, that takes every mail.

Prints its port, then for each line it reads the number of mails and of different Message-IDs since the line before.
"""

from __future__ import annotations

import asyncio
import re
import sys

from aiosmtpd.smtp import SMTP, Envelope, Session

HOST = "127.0.0.1"
_MESSAGE_ID = re.compile(rb"^Message-ID: (<[^>]*>)\r?$", re.MULTILINE)


class Counts:
    def __init__(self) -> None:
        self.mails = 0
        self.ids: set[bytes] = set()

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        content = envelope.original_content or b""
        found = _MESSAGE_ID.search(content)
        self.mails += 1
        self.ids.add(found[1] if found else b"")
        return "250 OK"

    def taken(self) -> str:
        text = f"{self.mails} {len(self.ids)}"
        self.mails = 0
        self.ids.clear()
        return text


async def serve() -> None:
    counts = Counts()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SMTP(counts, hostname="mail.example.com", loop=loop), HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(counts.taken(), flush=True)


if __name__ == "__main__":
    asyncio.run(serve())
