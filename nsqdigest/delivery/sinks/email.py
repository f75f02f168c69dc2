"""The kind "email": a mail for each digest, over SMTP.

Invariants:
- The same bytes at each attempt, under one Message-ID. `delivery/mail` makes them, and knows how they are sent.
- A password goes over checked TLS, or to this machine; it gets into no message, log or repr.
- No more connections than `concurrency`; they are kept and used again.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from nsqdigest.base import log
from nsqdigest.base.errors import Unreachable
from nsqdigest.base.findings import Finding, Reached, State, from_message
from nsqdigest.base.host_names import is_host
from nsqdigest.base.reasons import Verdict
from nsqdigest.base.templates import Template, TemplateError
from nsqdigest.config import Secret, SinkSettings, rules, texts
from nsqdigest.config.model import Address, Tls
from nsqdigest.config.options import REQUIRED, Option, Tables
from nsqdigest.config.problems import INVALID, Spot, Wrong, show
from nsqdigest.config.readers import Choice, FilePath, HiddenText, Reader, Text, Unresolved, Whole, take, text_of
from nsqdigest.delivery import targets
from nsqdigest.delivery.bodies.base import MAIL, Body, BodyFailed
from nsqdigest.delivery.bodies.document import read
from nsqdigest.delivery.mail import addresses, addressing
from nsqdigest.delivery.mail.addresses import AddressError, Mailbox
from nsqdigest.delivery.mail.addressing import Addressing, makes_an_address
from nsqdigest.delivery.mail.answers import Refusal, shown
from nsqdigest.delivery.sinks import template_files
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.sinks.kind import Greeted, Posted, Reach, SinkContext, SinkKind
from nsqdigest.delivery.sinks.rendering import Rendering, place_of
from nsqdigest.delivery.sinks.template_files import TemplateFile, TemplateOption
from nsqdigest.delivery.targets import Aim, Source

if TYPE_CHECKING:
    from collections.abc import Collection

    from nsqdigest.base.metrics import Metrics
    from nsqdigest.delivery.mail.compose import Composer
    from nsqdigest.delivery.mail.connections import Connections
    from nsqdigest.delivery.mail.session import Server

_log = log.get("scheduler")

_TEXT_ALONE = "none"
_MOST_RECIPIENTS = 100
"""So many every server takes of one mail."""
_PORTS = {"starttls": 587, "implicit": 465, "none": 25}
_LIKE_ADDRESS = 'write one like "alerts@example.com" or "Alerts <alerts@example.com>"'
_LIKE_TO = 'write one like "ops@example.com" or "{user.email}"'
_LIKE_UNSUBSCRIBE = 'write one like "https://example.com/unsubscribe?user={user.id}" or "mailto:stop@example.com"'
_UNSUBSCRIBE = re.compile(r"https?://[A-Za-z0-9.-]+(?::[0-9]+)?(?:[/?][!#-;=?-~]*)?|mailto:[!#-;=?-~]+@[!#-;=?-~]+")
_PARTS = (("text", "text/plain"), ("html", "text/html"))


# -- in the file


@dataclass(frozen=True, slots=True, kw_only=True)
class EmailSinkSettings(SinkSettings):
    host: str
    port: int
    tls: Literal["starttls", "implicit", "none"]
    ca_file: str
    user: str
    password: Secret | None
    sender: Mailbox
    to: tuple[Mailbox | Template, ...]
    reply_to: Mailbox | None
    subject: Template | None
    text: TemplateFile | None
    html: TemplateFile | str | None
    """`_TEXT_ALONE`: the mail has no HTML."""
    list_unsubscribe: Template | None

    @property
    def whole_port(self) -> int:
        return self.port or _PORTS[self.tls]

    @property
    def place(self) -> str:
        return str(Address(self.host, self.whole_port))


def mail_host(text: str) -> str:
    if is_host(text):
        return text
    bare = text.partition("://")[2] or text
    host, _, port = bare.rstrip("/").rpartition(":")
    if port.isdigit() and is_host(host):
        raise Wrong("is more than a host", f'write host = "{host}" and port = {port}')
    raise Wrong("is neither a name nor an IP address", 'write one like "smtp.example.com"')


def mailbox(text: str) -> Mailbox:
    if "{" in text or "}" in text:
        raise Wrong("is a template, and all mails of a sink have the same one", _LIKE_ADDRESS)
    try:
        return addresses.mailbox(text)
    except AddressError as error:
        raise Wrong(str(error), error.remedy or _LIKE_ADDRESS) from None


def optional_mailbox(text: str) -> Mailbox | None:
    return mailbox(text) if text else None


def recipient(text: str) -> Mailbox | Template:
    if not targets.is_template(text):
        try:
            return addresses.mailbox(text)
        except AddressError as error:
            parts = [each.strip() for each in text.split(",") if each.strip()]
            if error.remedy and not all("@" in each for each in parts):
                raise Wrong(str(error), error.remedy) from None
            listed = ", ".join(f'"{each}"' for each in parts)
            remedy = f"write a list: [{listed}]" if "," in text and text.isprintable() else _LIKE_TO
            raise Wrong(str(error), remedy) from None
    template = template_of(text)
    # What its fields may stand for.
    if any(makes_an_address(template, value) for value in ("x", "x@example.com", "example.com")):
        return template
    raise Wrong("makes no address, whatever its fields hold", _LIKE_TO)


def template_of(text: str) -> Template:
    try:
        return targets.parse(text)
    except TemplateError as error:
        raise Wrong(error.problem, error.remedy) from None


def optional_template(text: str) -> Template | None:
    return template_of(text) if text else None


def unsubscribe(text: str) -> Template | None:
    if not text:
        return None
    template = template_of(text)
    if not _UNSUBSCRIBE.fullmatch("".join(part if isinstance(part, str) else "x" for part in template.parts)):
        raise Wrong("is not a URL that programs can call to unsubscribe", _LIKE_UNSUBSCRIBE)
    return template


@dataclass(frozen=True, slots=True)
class Recipients(Reader):
    """One, or a list."""

    override = "text or list"
    resolves = False

    def __call__(self, value: Any, spot: Spot) -> Any:
        if not isinstance(value, list):
            return (recipient(text_of(value)),)
        if not value:
            raise Wrong("has nobody in it", _LIKE_TO)
        if len(value) > _MOST_RECIPIENTS:
            raise Wrong(f"has more than {_MOST_RECIPIENTS} recipients", "write the address of a mailing list")
        taken = [take(Unresolved(recipient), each, spot / index) for index, each in enumerate(value)]
        return INVALID if INVALID in taken else tuple(taken)


@dataclass(frozen=True, slots=True)
class HtmlOption(Reader):
    resolves = False

    def __call__(self, value: Any, spot: Spot) -> TemplateFile | str | None:
        return _TEXT_ALONE if value == _TEXT_ALONE else TemplateOption("mail.html.j2")(value, spot)


def login(values: dict[str, Any], spot: Spot) -> None:
    if "user" in values and "password" in values and bool(values["user"]) != (values["password"] is not None):
        missing = "password" if values["user"] else "user"
        remedy = 'write password = "env:MAIL_PASSWORD"' if values["user"] else "write the user that it is of"
        spot.first_written("user", "password").problem(f"there is no {missing}", remedy)
    if not {"host", "tls", "user"} <= values.keys() or values["tls"] != "none":
        return
    host = values["host"]
    if not rules.is_loopback(host):
        if values["user"]:
            spot.first_written("tls", "user").problem(
                f'tls = "none" would send user and password to {host} in the clear',
                'write tls = "starttls" or "implicit"',
            )
        else:
            spot.first_written("tls").warning(f"digests go to {host} in the clear", 'write tls = "starttls"')


def encryption(values: dict[str, Any], spot: Spot) -> None:
    tls, port = values.get("tls"), values.get("port")
    if tls == "starttls" and port == _PORTS["implicit"]:
        spot.first_written("port", "tls").warning("465 is a port where TLS begins at once", 'write tls = "implicit"')
    if tls == "implicit" and port in (_PORTS["starttls"], _PORTS["none"]):
        spot.first_written("port", "tls").warning(
            f"{port} is a port where TLS begins with STARTTLS", 'write tls = "starttls"'
        )
    if tls is None or not values.get("ca_file"):
        return
    if tls == "none":
        spot.first_written("ca_file").problem('is not used with tls = "none"', "leave it out")
        return
    rules.tls_files(_tls(values["ca_file"]), spot)


def templates(tables: Tables, root: Spot) -> None:
    for name, sink in tables.sinks.items():
        for key, content_type in _PARTS:
            file, most = sink.get(key), sink.get("max_body_bytes")
            if isinstance(file, TemplateFile) and most is not None:
                template_files.check(file, content_type, most, tables.routes, root / "sinks" / name / key)


def who_took_it(tables: Tables, root: Spot) -> None:
    """Who took a mail does not get it again, by its id. A merge has a new one, so those who can take mail would get the
    same events with each attempt to reach the one who cannot."""
    for name, sink in tables.sinks.items():
        policies = {route.get("policy", "") for route in tables.routes if route.get("sink") == name}
        merging = sorted(each for each in policies if tables.policies.get(each, {}).get("on_retry") == "merge")
        if len(sink.get("to", ())) > 1 and merging:
            (root / "policies" / merging[0] / "on_retry").problem(
                f'is "merge", and sink {show(name)} has several recipients: those who took a mail would get its events '
                "again while another cannot take it",
                'write "frozen", or a sink for each recipient',
            )


# -- delivery


def _context(name: str, ca_file: str) -> ssl.SSLContext:
    from nsqdigest.config.tls_files import client

    return client(_tls(ca_file), f"sinks.{name}").context


def _tls(ca_file: str) -> Tls:
    return Tls(ca_file=ca_file, cert_file="", key_file="", insecure=False)


def server_of(settings: EmailSinkSettings) -> Server:
    from nsqdigest.delivery.mail.session import Server

    context = _context(settings.name, settings.ca_file) if settings.tls != "none" else None
    return Server(settings.host, settings.whole_port, settings.tls, context, settings.user, settings.password)


def files(settings: EmailSinkSettings) -> Collection[str]:
    return (settings.ca_file,) if settings.ca_file else ()


def addressing_of(settings: EmailSinkSettings) -> Addressing:
    return Addressing(settings.to, settings.subject, settings.list_unsubscribe)


def aim(settings: EmailSinkSettings) -> Aim | None:
    return addressing.aim(addressing_of(settings))


def composer_of(settings: EmailSinkSettings, *, is_sample: bool = False) -> Composer:
    from nsqdigest.delivery.mail.compose import Composer, Letterhead

    own = {
        key: _own_part(file, content_type, settings.max_body_bytes, is_sample=is_sample)
        for key, (file, content_type) in _own_parts(settings).items()
    }
    return Composer(Letterhead(
        sender=settings.sender,
        addressing=addressing_of(settings),
        reply_to=(settings.reply_to,) if settings.reply_to else (),
        text=own.get("text"),
        html=own.get("html"),
        is_text_alone=settings.html == _TEXT_ALONE or (settings.text is not None and settings.html is None),
    ))  # fmt: skip


def _own_parts(settings: EmailSinkSettings) -> dict[str, tuple[TemplateFile, str]]:
    """The templates of the file, each with its content type."""
    return {
        key: (file, content_type)
        for key, content_type in _PARTS
        if isinstance(file := getattr(settings, key), TemplateFile)
    }


def _own_part(file: TemplateFile, content_type: str, max_body_bytes: int, *, is_sample: bool) -> Body:
    template = template_files.compiled(file, content_type, max_body_bytes, is_sample=is_sample)

    def part(digest_json: bytes) -> bytes:
        try:
            return template(digest_json)
        except BodyFailed as failure:
            # A mail may have two templates.
            problem = place_of(file.path, failure).removesuffix(f"; {failure.remedy}")
            raise BodyFailed(problem, failure.remedy, quoting=failure.quoting) from None

    return part


def posted(settings: EmailSinkSettings, is_sample: bool) -> Posted:
    composer, aimed = composer_of(settings, is_sample=is_sample), aim(settings)

    def mail(digest_json: bytes) -> bytes:
        data = read(digest_json).data
        newest = bytes(data.newest[0].value) if data.newest else b"{}"
        texts = aimed.of(Source(data.route, data.timeline, newest)).texts if aimed is not None else {}
        return composer(digest_json, texts).content

    return Posted(MAIL, mail)


class Email:
    def __init__(self, settings: EmailSinkSettings, metrics: Metrics | None = None) -> None:
        self._settings = settings
        self._metrics = metrics
        self._timeout_s = settings.timeout_ms / 1000
        half_s = self._timeout_s / 2  # the server gets what is left
        composer = composer_of(settings)
        has_templates = bool(_own_parts(settings))
        self._rendering = Rendering(composer.__call__, "", half_s, settings.name, has_templates=has_templates)
        self._connections: Connections | None = None

    async def deliver(self, digest: OutgoingDigest) -> Outcome:
        until_s = time.monotonic() + self._timeout_s
        texts = digest.target.texts if digest.target is not None else {}
        mail = await self._rendering.of(digest.body, texts)
        if isinstance(mail, Outcome):
            return mail
        try:
            async with asyncio.timeout(until_s - time.monotonic()):
                return await self._open_connections().send(digest.id, mail)
        except TimeoutError:
            return Outcome(Verdict.UNAVAILABLE, f"no answer within {self._timeout_s:g} s")

    def _open_connections(self) -> Connections:
        if self._connections is None:
            from nsqdigest.delivery.mail.connections import Connections

            have_others = any(isinstance(each, Template) for each in self._settings.to)
            self._connections = Connections(
                server_of(self._settings), self._note_refused, other_digests_have_others=have_others
            )
        return self._connections

    def _note_refused(self, digest_id: str, address: str, refusal: Refusal) -> None:
        """Others got the mail, and this one never will."""
        sink = self._settings.name
        if self._metrics is not None:
            self._metrics.add("mail_recipients_refused_total", sink=sink)
        _log.counted(
            "error",
            "scheduler.recipient.refused",
            by=("sink",),
            sink=sink,
            digest=digest_id,
            recipient=address,
            detail=shown(refusal),
            hint="the others got the mail; correct the address, or leave it out",
        )

    async def close(self) -> None:
        self._rendering.close()
        if self._connections is not None:
            self._connections.close()


# -- the doctor's look


async def look(sink: EmailSinkSettings, reach: Reach) -> list[Finding]:
    try:
        reached = await reach.client(sink.host, partial(_greet, sink))
    except Unreachable as error:
        return [unreached(sink.name, sink.place, str(error))]
    return judged(sink.name, sink.place, reached)


async def _greet(sink: EmailSinkSettings) -> Greeted:
    from nsqdigest.delivery.mail.session import Failed, Session

    session = Session(server_of(sink))
    try:
        await session.open()
        login = f"logged in as {sink.user}" if sink.user else "no login"
        size = f"takes {session.largest_bytes:,} bytes" if session.largest_bytes else "names no largest size"
        return Greeted(session.tls_version, session.certificate, (login, size))
    except Failed as failed:
        detail = failed.outcome.cause.removeprefix(f"{sink.place}: ").removeprefix(f"{sink.place} ")
        raise Unreachable(detail) from None
    finally:
        session.close()


def judged(what: str, place: str, reached: Reached) -> list[Finding]:
    detail = f"{place}: {reached.how}; no mail was sent, so whether sender and recipients are accepted is not known"
    return [Finding(what, State.OK, detail), *(doubt.of(what) for doubt in reached.doubts)]


def unreached(what: str, place: str, message: str) -> Finding:
    otherwise = "see that it runs, and host, port, tls, user and password of this sink"
    finding = from_message(what, State.FAIL, message, otherwise)
    return finding._replace(detail=f"{place}: {finding.detail}")


def build(settings: EmailSinkSettings, context: SinkContext) -> Email:
    return Email(settings, context.metrics)


KIND = SinkKind(
    name="email",
    settings=EmailSinkSettings,
    options=(
        Option("host", Text(mail_host), REQUIRED, "the server that takes the mails", "smtp.example.com"),
        Option("port", Whole(0, 65535), 0, '0: 587 with "starttls", 465 with "implicit", 25 with "none"'),
        Option("tls", Choice(("starttls", "implicit", "none")), "starttls", '"implicit": from the first byte; "none"'),
        Option(
            "ca_file", FilePath(), "", 'the authorities that may vouch for the server, in PEM form; "": the system\'s'
        ),
        Option("user", Text(str), "", '"": no login'),
        Option("password", HiddenText(texts.auth_secret), "", '"env:MAIL_PASSWORD"'),
        Option("from", Unresolved(mailbox), REQUIRED, "alone, or with a name", "Alerts <alerts@example.com>", "sender"),
        Option(
            "to",
            Recipients(),
            REQUIRED,
            'or a list; a template over the newest record: "{user.email}"',
            "ops@example.com",
        ),
        Option("reply_to", Unresolved(optional_mailbox), "", 'likewise, fixed; "": from'),
        Option("subject", Unresolved(optional_template), "", '"": what happened; "[{route}] {timeline}: {title}"'),
        Option("text", TemplateOption("mail.txt.j2"), "", '"file:mail.txt.j2": a Jinja2 template (docs/receivers.md)'),
        Option("html", HtmlOption(), "", '"file:mail.html.j2"; "none": plain text alone'),
        Option(
            "list_unsubscribe",
            Unresolved(unsubscribe),
            "",
            '"https://example.com/unsubscribe?user={user.id}", or mailto:',
        ),
    ),
    rules=(login, encryption),
    rules_of_file=(
        templates,
        who_took_it,
        targets.not_dropped("to", "subject", "list_unsubscribe"),
        targets.in_the_timeline("to"),
    ),
    example="mail",
    doc="sends each digest as a mail",
    build=build,
    look=look,
    posted=posted,
    aim=aim,
    files=files,
)
