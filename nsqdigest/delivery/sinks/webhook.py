"""The kind "webhook": POSTs digests to a URL, signed by the Standard Webhooks rules.

Invariants:
- One HTTP client per sink, with its own connections: a slow receiver starves no other.
- Redirects are not followed, and proxies from the environment are not used.
- Of an answer it reads the status, Retry-After and the first bytes.
- The path of a URL, a secret and the values of headers never get into a message, a log or a repr.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import nsqdigest
from nsqdigest.base.errors import Unreachable
from nsqdigest.base.findings import Finding, Reached, State, from_message
from nsqdigest.base.host_names import has_two_names, is_url_host
from nsqdigest.base.http.errors import NoHttp, Overdue, PostFailed, StaleConnection
from nsqdigest.base.reasons import Verdict
from nsqdigest.config import Secret, SinkSettings, rules, texts
from nsqdigest.config.model import MASK
from nsqdigest.config.options import REQUIRED, Option
from nsqdigest.config.problems import INVALID, Spot, Wrong
from nsqdigest.config.readers import HiddenText, Reader, Switch, take, text_of
from nsqdigest.delivery.bodies.base import JSON, Body
from nsqdigest.delivery.bodies.formats import DIGEST, FORMATS
from nsqdigest.delivery.sinks import webhook_body
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.sinks.kind import Posted, Reach, SinkContext, SinkKind
from nsqdigest.delivery.sinks.rendering import Rendering
from nsqdigest.delivery.sinks.template_files import TemplateFile

if TYPE_CHECKING:
    from nsqdigest.base.http.client import Client, Response

OUR_HEADERS = ("content-type", "nsqdigest-attempt")
FRAMING_HEADERS = ("connection", "content-length", "transfer-encoding")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_EXAMPLE = "https://example.com/hook"
_SECRET_REMEDY = (
    'write whsec_ and the base64 of 24 to 64 random bytes: echo "whsec_$(openssl rand -base64 32)" prints one'
)

_CONNECT_WITHIN_S = 5.0
_UNAVAILABLE = frozenset({401, 429, 502, 503, 504})
_AGAIN = frozenset({403, 404, 405, 408, 425})


# -- in the file


class Headers(Mapping[str, str]):
    """Their values may be credentials, so repr shows the names alone."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Headers({', '.join(f'{name}: {MASK}' for name in self._values)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSinkSettings(SinkSettings):
    url: str = field(repr=False)
    """Not in repr: the path of a webhook is often what keeps strangers out of it."""
    allow_http: bool
    secrets: tuple[Secret, ...]
    headers: Mapping[str, str]
    format: str = DIGEST
    template: TemplateFile | None = None
    content_type: str = JSON

    @property
    def shown_url(self) -> str:
        """For logs and messages: without the path."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"


def webhook_url(text: str) -> str:
    parts = texts.url_parts(text, _EXAMPLE)
    if "{" in text or "}" in text:
        raise Wrong("is a template, which is not available in this version", f"write a fixed URL like {_EXAMPLE}")
    if parts.scheme not in ("http", "https"):
        raise Wrong("is not the URL of a webhook", f"write one like {_EXAMPLE}")
    if not parts.hostname:
        raise Wrong("names no host", f"write one like {_EXAMPLE}")
    if has_two_names(unquote(parts.hostname)):
        raise Wrong("has a host with a letter for which there are two standards", "write its name as xn--…")
    if not is_url_host(parts.hostname):
        raise Wrong("has a host that is neither a name nor an IP address", f"write one like {_EXAMPLE}")
    if "@" in parts.netloc:
        raise Wrong("holds a user's name or password", 'leave it out; write headers = {authorization = "env:NAME"}')
    if parts.fragment:
        raise Wrong("has a #, which is never sent", "leave out what follows it")
    return text


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


def header_value(text: str) -> str:
    if texts.CONTROL.search(text):
        raise Wrong("has a line break or another control character", "leave it out")
    return text


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


@dataclass(frozen=True, slots=True)
class HeaderTable(Reader):
    override = "data"

    def __call__(self, value: Any, spot: Spot) -> Any:
        if not isinstance(value, dict):
            raise Wrong("is not a table", 'write one like {"x-team" = "shop"}')
        known: set[str] = set()
        taken: dict[str, Any] = {}
        for name, text in value.items():
            lower = name.lower()
            if lower in known:
                (spot / name).problem("is listed twice", "leave one of them out")
            elif lower.startswith("webhook-") or lower in OUR_HEADERS:
                (spot / name).problem("is a header that nsqdigest sets", "leave it out")
            elif lower in FRAMING_HEADERS:
                (spot / name).problem("is a header that HTTP itself needs", "leave it out")
            elif not _HEADER_NAME.fullmatch(name):
                (spot / name).problem("is not the name of a header", "write letters, digits and -")
            else:
                taken[name] = take(HiddenText(header_value), text, spot / name)
            known.add(lower)
        return INVALID if len(taken) < len(value) or INVALID in taken.values() else Headers(taken)


def signed_and_secret(values: dict[str, Any], spot: Spot) -> None:
    # Slack and Teams verify nothing.
    if values.get("secrets") == () and values.get("format") not in FORMATS:
        spot.first_written("secret").warning(
            "digests are not signed, so a receiver cannot know who sent them", 'write secret = "env:NAME"'
        )
    if "url" not in values or "allow_http" not in values:
        return
    parts = urlsplit(values["url"])
    if parts.scheme == "http" and not rules.is_loopback(parts.hostname or ""):
        if values["allow_http"]:
            (spot / "url").warning(f"digests go to {parts.hostname} in the clear")
        else:
            (spot / "url").problem(
                f"http:// would send digests to {parts.hostname} in the clear", "write https://, or allow_http = true"
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
    def __init__(self, settings: WebhookSinkSettings) -> None:
        self._settings = settings
        self._keys = [signing_key(secret.reveal()) for secret in settings.secrets]
        self._http: Client | None = None
        self._timeout_s = settings.timeout_ms / 1000
        body = _body(settings)
        shown_path = settings.template.path if settings.template else ""
        half_s = self._timeout_s / 2  # the post gets what is left
        self._rendering = Rendering(body, shown_path, half_s, settings.name) if body else None

    async def deliver(self, digest: OutgoingDigest) -> Outcome:
        until_s = time.monotonic() + self._timeout_s
        body = digest.body if self._rendering is None else await self._rendering.of(digest.body)
        if isinstance(body, Outcome):
            return body
        now_s = int(time.time())
        headers = {
            "webhook-id": digest.id,
            "webhook-timestamp": str(now_s),
            "nsqdigest-attempt": str(digest.attempt),
        }
        if self._keys:
            headers["webhook-signature"] = signature(self._keys, digest.id, now_s, body)
        try:
            answer = await self._post(body, headers, until_s)
        except Overdue:
            return Outcome(Verdict.UNAVAILABLE, f"no answer within {self._timeout_s:g} s")
        except NoHttp as error:
            return Outcome(Verdict.AGAIN, f"no HTTP: {error}", answer=error.beginning.decode("utf-8", "replace"))
        except PostFailed as error:
            return Outcome(Verdict.UNAVAILABLE, str(error))
        verdict = verdict_of(answer.status)
        if verdict is Verdict.DELIVERED:
            return Outcome(verdict, str(answer.status))
        wait_s = retry_after_s(answer.retry_after, now_s)
        return Outcome(verdict, status_line(answer.status), wait_s, answer.beginning.decode("utf-8", "replace"))

    async def _post(self, body: bytes, headers: Mapping[str, str], until_s: float) -> Response:
        """Once more where the receiver closed an idle connection just then: that says nothing about its health."""
        client = self._client()
        try:
            return await client.post(body, headers.items(), timeout_s=until_s - time.monotonic())
        except StaleConnection:
            left_s = until_s - time.monotonic()
            return await client.post(body, headers.items(), fresh=True, timeout_s=left_s)

    def _client(self) -> Client:
        if self._http is None:
            from nsqdigest.base.http.client import Client

            ours = {"content-type": self._settings.content_type, "user-agent": f"nsqdigest/{nsqdigest.__version__}"}
            theirs = {name: value for name, value in self._settings.headers.items() if name.lower() not in ours}
            self._http = Client(
                self._settings.url,
                connections=self._settings.concurrency,
                timeout_s=self._timeout_s,
                connect_timeout_s=_CONNECT_WITHIN_S,
                headers={**theirs, **ours},
            )
        return self._http

    async def close(self) -> None:
        if self._rendering is not None:
            self._rendering.close()
        if self._http is not None:
            await self._http.close()


# -- the doctor's look


async def look(sink: WebhookSinkSettings, reach: Reach) -> list[Finding]:
    parts = urlsplit(sink.url)
    is_tls = parts.scheme == "https"
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
    return Webhook(settings)


KIND = SinkKind(
    name="webhook",
    settings=WebhookSinkSettings,
    options=(
        Option("url", HiddenText(webhook_url), REQUIRED, "http:// only to this machine, or with allow_http", _EXAMPLE),
        Option("allow_http", Switch(), False, "digests in the clear over the network"),
        Option(
            "secret",
            WebhookSecrets(),
            "",
            '"env:HOOK_SECRET" with whsec_...; a list while rotating; "": not signed',
            attribute="secrets",
        ),
        Option("headers", HeaderTable(), {}, '{authorization = "env:HOOK_AUTHORIZATION"}'),
        *webhook_body.OPTIONS,
    ),
    rules=(signed_and_secret, webhook_body.one_body),
    rules_of_file=(webhook_body.templates,),
    example="hook",
    doc="posts each digest, signed as Standard Webhooks says",
    build=build,
    look=look,
    posted=posted,
)
