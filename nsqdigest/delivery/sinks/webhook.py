"""POSTs digests to a URL, signed by the Standard Webhooks rules.

One HTTP client per sink, with its own connections: a slow receiver starves no other. Redirects are not followed,
proxies from the environment are not used, and of an answer only the status, Retry-After and its first bytes are read.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

import nsqdigest
from nsqdigest.base.http.client import Client, Response
from nsqdigest.base.http.errors import NoHttp, Overdue, PostFailed, StaleConnection
from nsqdigest.base.reasons import Verdict
from nsqdigest.delivery.sinks.base import Outcome, Parcel

if TYPE_CHECKING:
    from nsqdigest.config import WebhookSink

_CONNECT_WITHIN_S = 5.0
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
        self._http: Client | None = None

    async def deliver(self, parcel: Parcel) -> Outcome:
        now_s = int(time.time())
        headers = {
            "webhook-id": parcel.id,
            "webhook-timestamp": str(now_s),
            "nsqdigest-attempt": str(parcel.attempt),
        }
        if self._keys:
            headers["webhook-signature"] = signature(self._keys, parcel.id, now_s, parcel.body)
        try:
            answer = await self._post(parcel.body, headers)
        except Overdue:
            return Outcome(Verdict.UNAVAILABLE, f"no answer within {self._settings.timeout_ms / 1000:g} s")
        except NoHttp as error:
            return Outcome(Verdict.AGAIN, f"no HTTP: {error}", answer=error.beginning.decode("utf-8", "replace"))
        except PostFailed as error:
            return Outcome(Verdict.UNAVAILABLE, str(error))
        verdict = verdict_of(answer.status)
        if verdict is Verdict.DELIVERED:
            return Outcome(verdict, str(answer.status))
        wait_s = retry_after_s(answer.retry_after, now_s)
        return Outcome(verdict, status_line(answer.status), wait_s, answer.beginning.decode("utf-8", "replace"))

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> Response:
        """Once more where the receiver closed an idle connection just then: that says nothing about its health."""
        client = self._client()
        until_s = time.monotonic() + self._settings.timeout_ms / 1000
        try:
            return await client.post(body, headers.items())
        except StaleConnection:
            left_s = until_s - time.monotonic()
            return await client.post(body, headers.items(), fresh=True, timeout_s=left_s)

    def _client(self) -> Client:
        if self._http is None:
            ours = {"content-type": "application/json", "user-agent": f"nsqdigest/{nsqdigest.__version__}"}
            theirs = {name: value for name, value in self._settings.headers.items() if name.lower() not in ours}
            self._http = Client(
                self._settings.url,
                connections=self._settings.concurrency,
                timeout_s=self._settings.timeout_ms / 1000,
                connect_timeout_s=_CONNECT_WITHIN_S,
                headers={**theirs, **ours},
            )
        return self._http

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
