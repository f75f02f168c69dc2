"""`python -m bench.mail.sending CLIENT PORT MAILS`: one client, alone in its process; prints what it took as JSON.

- sink: the email sink as the daemon drives it, from the digest's JSON to the server's answer
- bare: aiosmtplib in a loop, a connection for each sender, with mails that were made before
- compose: mails are made and none is sent
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator

from aiosmtplib import SMTP

from nsqdigest.delivery.bodies.sample import digest_json
from nsqdigest.delivery.digest import Names
from nsqdigest.delivery.mail.addresses import Mailbox
from nsqdigest.delivery.sinks.base import OutgoingDigest
from nsqdigest.delivery.sinks.email import Email, EmailSinkSettings, composer_of

HOST = "127.0.0.1"
AT_ONCE = 8
EVENTS = 17
_EVENTS = [{"kind": ("TimeoutError", "CardDeclined")[n % 3 == 0], "message": f"event {n}"} for n in range(EVENTS)]
_BODY = digest_json(_EVENTS, Names("events", "payments", "mail"), ("kind",))
_ID = json.loads(_BODY)["data"]["id"]


def digest(number: int) -> OutgoingDigest:
    identity = f"{_ID[:-8]}{number:08x}"
    return OutgoingDigest(identity, "events", "payments", 1, EVENTS, _BODY.replace(_ID.encode(), identity.encode()))


def settings(port: int) -> EmailSinkSettings:
    return EmailSinkSettings(
        name="mail", type="email", concurrency=AT_ONCE, timeout_ms=60_000, max_attempts=0, max_age_ms=0,
        retry_base_ms=1000, retry_cap_ms=1000, retry_after_max_ms=1000, max_body_bytes=262_144, host=HOST, port=port,
        tls="none", ca_file="", user="", password=None, sender=Mailbox("a@example.com"), to=(Mailbox("b@example.com"),),
        reply_to=None, subject=None, text=None, html=None, list_unsubscribe=None,
    )  # fmt: skip


async def by_sink(port: int, mails: int) -> None:
    sink = Email(settings(port))

    async def deliver(numbers: Iterator[int]) -> None:
        for number in numbers:
            outcome = await sink.deliver(digest(number))
            assert outcome.verdict == "delivered", outcome

    await _at_once(deliver, mails)
    await sink.close()


async def by_aiosmtplib(port: int, mails: int) -> None:
    composer = composer_of(settings(port))
    made = composer(digest(0).body, {}).content

    async def send(numbers: Iterator[int]) -> None:
        async with SMTP(hostname=HOST, port=port, start_tls=False, local_hostname="localhost") as client:
            for number in numbers:
                content = made.replace(digest(0).id.encode(), digest(number).id.encode())
                await client.sendmail("a@example.com", ["b@example.com"], content)

    await _at_once(send, mails)


async def composed(port: int, mails: int) -> None:
    composer = composer_of(settings(port))
    for number in range(mails):
        composer(digest(number).body, {})


async def _at_once(work: Callable[[Iterator[int]], Awaitable[None]], mails: int) -> None:
    numbers = iter(range(mails))
    await asyncio.gather(*(work(numbers) for _ in range(AT_ONCE)))


CLIENTS = {"sink": by_sink, "bare": by_aiosmtplib, "compose": composed}


def main() -> None:
    client, port, mails = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    began_s, before = time.monotonic(), os.times()
    asyncio.run(CLIENTS[client](port, mails))
    after = os.times()
    cpu_s = after.user + after.system - before.user - before.system
    print(json.dumps({"seconds": time.monotonic() - began_s, "cpu_s": cpu_s}))


if __name__ == "__main__":
    main()
