"""POSTs digests to a URL, signed by the Standard Webhooks rules.

One HTTP client per sink, with its own connections: a slow receiver starves no other. Redirects are not followed,
proxies from the environment are not used, and of an answer only the status, Retry-After and its first bytes are looked
at.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import time
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

import aiohttp

import nsqdigest
from nsqdigest.base.reasons import Verdict
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest

if TYPE_CHECKING:
    from nsqdigest.config import WebhookSink

_SHOWN_OF_ANSWER_BYTES = 256
_CONNECT_WITHIN_S = 5.0
_BODY_WITHIN_S = 1.0
_UNAVAILABLE = frozenset({401, 429, 502, 503, 504})
_AGAIN = frozenset({403, 404, 405, 408, 425})


def signing_key(secret: str) -> bytes:
    return base64.b64decode(secret.removeprefix("whsec_"))


def signature(keys: Sequence[bytes], identity: str, timestamp_s: int, body: bytes) -> str:
    """One signature for each key, so that a receiver may know the old or the new secret while it rotates."""
    signed = b"%s.%d.%s" % (identity.encode(), timestamp_s, body)
    return " ".join("v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode() for key in keys)


def verdict_of(status: int) -> Verdict:
    if 200 <= status < 300:
        return Verdict.DELIVERED
    if status == 410:
        return Verdict.GONE
    if status in _UNAVAILABLE:
        return Verdict.UNAVAILABLE
    if status in _AGAIN or status >= 500 or status < 400:
        return Verdict.AGAIN
    return Verdict.REFUSED


def retry_after_s(header: str | None, now_s: float) -> float:
    """Seconds, or a date; 0 where it is neither."""
    if not header:
        return 0.0
    if header.isascii() and header.strip().isdigit():
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - now_s)
    except (ValueError, TypeError, OverflowError):
        return 0.0


def status_line(status: int) -> str:
    """With the phrase that the standard has for it: the receiver's own may be any text."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


class Webhook:
    def __init__(self, settings: WebhookSink) -> None:
        self._settings = settings
        self._keys = [signing_key(secret.reveal()) for secret in settings.secrets]
        self._session: aiohttp.ClientSession | None = None

    async def deliver(self, digest: OutgoingDigest) -> Outcome:
        now_s = int(time.time())
        headers = {
            **self._settings.headers,
            "content-type": "application/json",
            "user-agent": f"nsqdigest/{nsqdigest.__version__}",
            "webhook-id": digest.id,
            "webhook-timestamp": str(now_s),
            "nsqdigest-attempt": str(digest.attempt),
        }
        if self._keys:
            headers["webhook-signature"] = signature(self._keys, digest.id, now_s, digest.body)
        try:
            async with self._client().post(
                self._settings.url, data=digest.body, headers=headers, allow_redirects=False
            ) as answer:
                verdict = verdict_of(answer.status)
                if verdict is Verdict.DELIVERED:
                    return Outcome(verdict, str(answer.status))
                wait_s = retry_after_s(answer.headers.get("retry-after"), now_s)
                return Outcome(verdict, status_line(answer.status), wait_s, await _beginning_of(answer))
        except TimeoutError:
            return Outcome(Verdict.UNAVAILABLE, f"no answer within {self._settings.timeout_ms / 1000:g} s")
        except aiohttp.ClientConnectionError as error:
            return Outcome(Verdict.UNAVAILABLE, str(error) or type(error).__name__)
        except aiohttp.ClientError as error:
            # Its text quotes what came, and may hold the URL, whose path is often a secret.
            answer_text = error.message if isinstance(error, aiohttp.ClientResponseError) else ""
            return Outcome(
                Verdict.AGAIN, f"no HTTP: {type(error).__name__}", answer=answer_text[:_SHOWN_OF_ANSWER_BYTES]
            )

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._settings.concurrency),
                timeout=aiohttp.ClientTimeout(total=self._settings.timeout_ms / 1000, sock_connect=_CONNECT_WITHIN_S),
                auto_decompress=False,
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


async def _beginning_of(answer: aiohttp.ClientResponse) -> str:
    """For the dead store and the log at debug. A body that stalls or breaks off changes nothing about its status."""
    try:
        async with asyncio.timeout(_BODY_WITHIN_S):
            return (await answer.content.read(_SHOWN_OF_ANSWER_BYTES)).decode("utf-8", "replace")
    except (TimeoutError, aiohttp.ClientError):
        return ""
