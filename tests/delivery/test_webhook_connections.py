"""A receiver that closes an idle connection just as a digest is posted: once more, at once, within one time-out."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from nsqdigest.base.reasons import Verdict
from nsqdigest.delivery.sinks.base import OutgoingDigest
from nsqdigest.delivery.sinks.webhook import Webhook, WebhookSinkSettings
from support.raw_server import Peer, RawServer

pytestmark = pytest.mark.integration

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
PARCEL = OutgoingDigest(id="1", route="events", timeline="user:42", attempt=1, records=1, body=b"{}")
TIMEOUT_MS = 5_000


@pytest.fixture
async def webhooks() -> AsyncIterator[list[Webhook]]:
    made: list[Webhook] = []
    yield made
    for each in made:
        await each.close()


def webhook_to(url: str, made: list[Webhook], timeout_ms: int = TIMEOUT_MS) -> Webhook:
    settings = WebhookSinkSettings(
        name="out", type="webhook", url=url, allow_http=True, secrets=(), headers={}, concurrency=1,
        timeout_ms=timeout_ms, max_attempts=0, max_age_ms=3_600_000, retry_base_ms=1_000, retry_cap_ms=900_000,
        retry_after_max_ms=3_600_000, max_body_bytes=256 * 1024,
    )  # fmt: skip
    made.append(Webhook(settings))
    return made[-1]


async def test_it_is_posted_again_at_once_on_a_new_connection(webhooks: list[Webhook]) -> None:
    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.write(OK)
        await peer.request()  # read, and the connection closed without an answer

    async with RawServer(once) as server:
        webhook = webhook_to(server.url, webhooks)
        verdicts = [(await webhook.deliver(PARCEL)).verdict for _ in range(4)]
        await webhook.close()
        assert verdicts == [Verdict.DELIVERED] * 4
        assert server.connections == 4


async def test_a_new_connection_that_ends_is_a_failure(webhooks: list[Webhook]) -> None:
    async def never_again(peer: Peer) -> None:
        await peer.request()
        if peer.number == 1:
            await peer.write(OK)
            await peer.request()

    async with RawServer(never_again) as server:
        webhook = webhook_to(server.url, webhooks)
        assert (await webhook.deliver(PARCEL)).verdict is Verdict.DELIVERED
        outcome = await webhook.deliver(PARCEL)
        assert outcome.verdict is Verdict.UNAVAILABLE
        assert outcome.cause.endswith("closed the connection before it answered")
        assert server.connections == 2


async def test_both_together_have_the_time_out_of_one(webhooks: list[Webhook]) -> None:
    async def late(peer: Peer) -> None:
        await peer.request()
        if peer.number == 1:
            await peer.write(OK)
            await peer.request()
            return
        await peer.hung_up()

    async with RawServer(late) as server:
        webhook = webhook_to(server.url, webhooks, timeout_ms=1_000)
        assert (await webhook.deliver(PARCEL)).verdict is Verdict.DELIVERED
        began_s = time.monotonic()
        outcome = await webhook.deliver(PARCEL)
        assert (outcome.verdict, outcome.cause) == (Verdict.UNAVAILABLE, "no answer within 1 s")
        assert time.monotonic() - began_s >= 1.0
