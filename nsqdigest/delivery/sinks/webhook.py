"""The kind "webhook": POSTs digests to a URL, signed by the Standard Webhooks rules.

Invariants:
- One HTTP client per sink, with its own connections: a slow receiver starves no other.
- Redirects are not followed, and proxies from the environment are not used.
- A host that comes from events is connected to only at public addresses, or at those that the file allows; one that
  fails keeps nothing from the others (`webhook_hosts`).
- Of an answer it reads the status, Retry-After and the first bytes.
- The path of a URL, a secret and the values of headers never get into a message, a log or a repr.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import random
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import nsqdigest
from nsqdigest.base.allowed_hosts import Allowed
from nsqdigest.base.errors import Unreachable
from nsqdigest.base.findings import Finding, Reached, State, from_message
from nsqdigest.base.http.errors import NoHttp, Overdue, PostFailed, StaleConnection
from nsqdigest.base.http.target import header_line
from nsqdigest.base.reasons import Verdict
from nsqdigest.base.tls import client_context
from nsqdigest.config import Secret, SinkSettings, rules, texts
from nsqdigest.config.options import REQUIRED, Option
from nsqdigest.config.problems import INVALID, Spot, Wrong
from nsqdigest.config.readers import HiddenTemplate, HiddenText, ListOf, Reader, Switch, Text, take, text_of
from nsqdigest.delivery import targets
from nsqdigest.delivery.bodies.base import JSON, Body
from nsqdigest.delivery.bodies.formats import DIGEST, FORMATS, SPACING_S
from nsqdigest.delivery.hosts import Hosts, held_of
from nsqdigest.delivery.sinks import webhook_body, webhook_url
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.sinks.kind import DEFAULT_CURVE, Posted, Reach, SinkContext, SinkKind, Uses
from nsqdigest.delivery.sinks.rate import Rate
from nsqdigest.delivery.sinks.rendering import Rendering
from nsqdigest.delivery.sinks.template_files import TemplateFile
from nsqdigest.delivery.sinks.webhook_headers import HeaderTable

if TYPE_CHECKING:
    from nsqdigest.backoff import Curve
    from nsqdigest.base.http.client import Client
    from nsqdigest.delivery.sinks.webhook_hosts import ManyHosts
    from nsqdigest.delivery.targets import Aim

_SECRET_REMEDY = (
    'write whsec_ and the base64 of 24 to 64 random bytes: echo "whsec_$(openssl rand -base64 32)" prints one'
)

_CONNECT_WITHIN_S = 5.0
_UNAVAILABLE = frozenset({401, 429, 502, 503, 504})
_AGAIN = frozenset({403, 404, 405, 408, 425})
_OF_THE_PLACE = frozenset({403, 404, 405, 410})
"""Of a URL that is a template: they say something of this place, and nothing of the others."""


# -- in the file


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSinkSettings(SinkSettings):
    url: str = field(repr=False)
    """Not in repr: the path of a webhook is often what keeps strangers out of it."""
    allow_http: bool
    allow_hosts: tuple[str, ...] = ()
    secrets: tuple[Secret, ...]
    headers: Mapping[str, str]
    format: str = DIGEST
    template: TemplateFile | None = None
    content_type: str = JSON
    own_spacing_s: float | None = None
    """None: what its format needs."""

    @property
    def spacing_s(self) -> float:
        return SPACING_S.get(self.format, 0.0) if self.own_spacing_s is None else self.own_spacing_s

    @property
    def shown_url(self) -> str:
        """For logs and messages: without the path."""
        return webhook_url.shown_origin(self.url)

    @property
    def has_many_hosts(self) -> bool:
        """Whether the host comes from the digest."""
        return webhook_url.has_host_fields(self.url)


def webhook_secret(text: str) -> Secret:
    try:
        if not text.startswith("whsec_"):
            raise ValueError
        length_bytes = len(base64.b64decode(text.removeprefix("whsec_"), validate=True))
    except (ValueError, binascii.Error):
        raise Wrong("is not a webhook secret", _SECRET_REMEDY) from None
    if not 24 <= length_bytes <= 64:
        raise Wrong(f"holds {length_bytes} bytes", _SECRET_REMEDY)
    return Secret(text)


@dataclass(frozen=True, slots=True)
class WebhookSecrets(Reader):
    """One secret, a list of them while rotating, or "" for none."""

    override = "text or list"
    hidden = True

    def __call__(self, value: Any, spot: Spot) -> Any:
        if value == "":
            return ()
        if isinstance(value, list):
            taken = [take(HiddenText(webhook_secret), each, spot / index) for index, each in enumerate(value)]
            return INVALID if INVALID in taken else tuple(taken)
        return (webhook_secret(text_of(value)),)


def signed_and_secret(values: dict[str, Any], spot: Spot) -> None:
    # Slack and Teams verify nothing.
    if values.get("secrets") == () and values.get("format") not in FORMATS:
        spot.first_written("secret").warning(
            "digests are not signed, so a receiver cannot know who sent them", 'write secret = "env:NAME"'
        )
    if "url" not in values or "allow_http" not in values:
        return
    url = values["url"]
    if urlsplit(url).scheme == "http" and not rules.is_loopback(urlsplit(webhook_url.fixed_parts(url)).hostname or ""):
        host = webhook_url.shown_origin(url).removeprefix("http://").partition(":")[0]
        if values["allow_http"]:
            (spot / "url").warning(f"digests go to {host} in the clear")
        else:
            (spot / "url").problem(
                f"http:// would send digests to {host} in the clear", "write https://, or allow_http = true"
            )


def hosts_of_template(values: dict[str, Any], spot: Spot) -> None:
    if values.get("allow_hosts") and "url" in values and not webhook_url.has_host_fields(values["url"]):
        (spot / "allow_hosts").warning(
            "has no use: the url has no field in its host, and the file may name any host", "leave it out"
        )


# -- delivery


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


_ACCEPTED = {status: Outcome(verdict_of(status), str(status), status) for status in range(200, 300)}
"""Made once: nearly all posts have one of them."""


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


def _body(settings: WebhookSinkSettings, *, is_sample: bool = False) -> Body | None:
    chosen, template, kind = settings.format, settings.template, settings.content_type
    return webhook_body.body_of(chosen, template, kind, settings.max_body_bytes, is_sample=is_sample)


def posted(settings: WebhookSinkSettings, is_sample: bool) -> Posted:
    return Posted(settings.content_type, _body(settings, is_sample=is_sample))


class Webhook:
    def __init__(self, settings: WebhookSinkSettings, curve: Curve = DEFAULT_CURVE, *, is_sample: bool = False) -> None:
        """`curve`: by which it backs off from one of many hosts."""
        self._settings = settings
        self._curve = curve
        self._has_many_hosts = settings.has_many_hosts
        self._hosts: ManyHosts | None = None
        self._keys = [signing_key(secret.reveal()) for secret in settings.secrets]
        self._http: Client | None = None
        self._timeout_s = settings.timeout_ms / 1000
        body = _body(settings, is_sample=is_sample)
        shown_path = settings.template.path if settings.template else ""
        half_s = self._timeout_s / 2  # the post gets what is left
        self._rendering = Rendering(body, shown_path, half_s, settings.name) if body else None

    def deliver(self, digest: OutgoingDigest) -> Coroutine[Any, Any, Outcome]:
        until_s = time.monotonic() + self._timeout_s
        if self._has_many_hosts:
            return self._many_hosts().deliver(digest, until_s)
        return self._send(self._http or self._client(), digest, until_s)

    async def _send(self, client: Client, digest: OutgoingDigest, until_s: float) -> Outcome:
        body = digest.body if self._rendering is None else await self._rendering.of(digest.body)
        if isinstance(body, Outcome):
            return body
        now_s = int(time.time())
        numbers = f"webhook-timestamp: {now_s}\r\nnsqdigest-attempt: {digest.attempt}\r\n"
        lines = header_line("webhook-id", digest.id) + numbers
        if self._keys:
            lines += header_line("webhook-signature", signature(self._keys, digest.id, now_s, body))
        path = digest.target.texts["path"] if digest.target is not None else None
        try:
            try:
                answer = await client.post_until(until_s, body, lines, path)
            except StaleConnection:
                # The receiver closed an idle connection just then: that says nothing about its health.
                answer = await client.post_until(until_s, body, lines, path, fresh=True)
        except Overdue:
            return Outcome(Verdict.UNAVAILABLE, f"no answer within {self._timeout_s:g} s")
        except NoHttp as error:
            return Outcome(Verdict.AGAIN, f"no HTTP: {error}", answer=error.beginning.decode("utf-8", "replace"))
        except PostFailed as error:
            return Outcome(Verdict.UNAVAILABLE, str(error))
        if accepted := _ACCEPTED.get(answer.status):
            return accepted
        return Outcome(
            verdict_of(answer.status),
            status_line(answer.status),
            answer.status,
            retry_after_s(answer.retry_after, now_s),
            answer.beginning.decode("utf-8", "replace"),
            is_of_sink=digest.target is None or answer.status not in _OF_THE_PLACE,
        )

    def _client(self) -> Client:
        if self._http is None:
            self._http = self._client_to(webhook_url.fixed_parts(self._settings.url))
        return self._http

    def _client_to(self, url: str, **how: Any) -> Client:
        from nsqdigest.base.http.client import Client

        ours = {"content-type": self._settings.content_type, "user-agent": f"nsqdigest/{nsqdigest.__version__}"}
        theirs = {name: value for name, value in self._settings.headers.items() if name.lower() not in ours}
        return Client(
            url,
            connections=self._settings.concurrency,
            timeout_s=self._timeout_s,
            connect_timeout_s=_CONNECT_WITHIN_S,
            headers={**theirs, **ours},
            **how,
        )

    def _many_hosts(self) -> ManyHosts:
        if self._hosts is None:
            from nsqdigest.base.http.guarded import resolver_of
            from nsqdigest.delivery.sinks.webhook_hosts import ManyHosts

            settings = self._settings
            resolve = resolver_of(Allowed(settings.allow_hosts))
            client_to = partial(self._client_to, ssl_context=client_context(), resolve=resolve)
            hosts = Hosts(settings.concurrency, self._curve, random.uniform, settings.retry_after_max_ms)
            self._hosts = ManyHosts(settings.name, hosts, client_to, self._send)
        return self._hosts

    async def close(self) -> None:
        if self._rendering is not None:
            self._rendering.close()
        if self._http is not None:
            await self._http.close()
        if self._hosts is not None:
            await self._hosts.close()


# -- the doctor's look


async def look(sink: WebhookSinkSettings, reach: Reach) -> list[Finding]:
    parts = urlsplit(webhook_url.fixed_parts(sink.url))
    is_tls = parts.scheme == "https"
    if sink.has_many_hosts:
        detail = f"{sink.shown_url}: its hosts come from events, so none was connected to"
        return [Finding(sink.name, State.NOTE, detail, "nsqdigest test-sink sends to the host of one event")]
    try:
        reached = await reach.server(parts.hostname or "", parts.port or (443 if is_tls else 80), tls=is_tls)
    except Unreachable as error:
        return [unreached(sink.name, sink.shown_url, str(error))]
    return judged(sink.name, sink.shown_url, reached)


def judged(what: str, shown_url: str, reached: Reached) -> list[Finding]:
    detail = f"{shown_url} is reached; {reached.how}; nothing was sent, so its answer to a digest is not known"
    return [Finding(what, State.OK, detail), *(doubt.of(what) for doubt in reached.doubts)]


def unreached(what: str, shown_url: str, message: str) -> Finding:
    otherwise = f"see that it runs, and the url of this sink ({shown_url})"
    finding = from_message(what, State.FAIL, message, otherwise)
    return finding._replace(detail=f"{shown_url}: {finding.detail}")


def build(settings: WebhookSinkSettings, context: SinkContext) -> Webhook:
    return Webhook(settings, context.curve, is_sample=context.is_sample)


def aim(settings: WebhookSinkSettings) -> Aim | None:
    return webhook_url.aim_of(settings.url)


def senders(settings: WebhookSinkSettings) -> int:
    return held_of(settings.concurrency) if settings.has_many_hosts else settings.concurrency


KIND = SinkKind(
    name="webhook",
    settings=WebhookSinkSettings,
    options=(
        Option(
            "url",
            HiddenTemplate(webhook_url.webhook_url),
            REQUIRED,
            "http:// only to this machine, or with allow_http; https://{tenant}.example.com/{user.id}",
            webhook_url.EXAMPLE,
        ),
        Option("allow_http", Switch(), False, "digests in the clear over the network"),
        Option(
            "allow_hosts",
            ListOf(Text(texts.allowed_host), '"hooks.internal", "10.0.0.0/8"', unique=True),
            [],
            'beside public ones, where the host is a template: ["hooks.internal", "10.0.0.0/8"]',
        ),
        Option(
            "secret",
            WebhookSecrets(),
            "",
            '"env:HOOK_SECRET" with whsec_...; a list while rotating; "": not signed',
            attribute="secrets",
        ),
        Option("headers", HeaderTable(), {}, '{authorization = "env:HOOK_AUTHORIZATION"}'),
        *webhook_body.OPTIONS,
        Option(
            "rate",
            Rate(),
            "",
            '"30/m": posts of one daemon, at most; "": "1/s" for "slack", else "none"',
            attribute="own_spacing_s",
        ),
    ),
    rules=(signed_and_secret, hosts_of_template, webhook_body.one_body),
    rules_of_file=(webhook_body.templates, targets.not_dropped("url"), targets.in_the_timeline("url")),
    example="hook",
    doc="posts each digest, signed as Standard Webhooks says",
    build=build,
    look=look,
    posted=posted,
    aim=aim,
    uses=lambda settings: (Uses.CURVE,) if settings.has_many_hosts else (),
    senders=senders,
)
