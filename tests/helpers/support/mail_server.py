"""A mail server: aiosmtpd, a real one, in a thread of its own, which notes each mail and answers as a test wants.

`with MailServer() as server:`. `say` lines up answers for the next commands of a kind ("MAIL", "RCPT", "NOOP", "RSET",
"CONTENT": what follows the final dot); `refuse` answers always so to a recipient. A mail that it took is read back with
the rules of the standard library.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import Counter, defaultdict, deque
from concurrent.futures import Future
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, NamedTuple, Self

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from support.certificates import Pair
from support.ports import HOST, free_port
from support.waiting import PATIENCE_S

HANG_UP = "hang up"


class Received(NamedTuple):
    sender: str
    recipients: list[str]
    content: bytes
    options: list[str]
    """Of MAIL FROM."""
    tls: bool
    peer: Any
    """The same for mails of one connection."""
    accepted: bool

    @property
    def message(self) -> EmailMessage:
        message: EmailMessage = message_from_bytes(self.content, policy=policy.default)
        return message

    def part(self, subtype: str) -> str:
        part = self.message.get_body((subtype,))
        assert part is not None
        text: str = part.get_content().replace("\r\n", "\n")
        return text


class MailServer:
    def __init__(
        self,
        pair: Pair | None = None,
        *,
        implicit: bool = False,
        login: tuple[str, str] | None = None,
        size_limit: int = 1 << 25,
        utf8: bool = True,
        port: int = 0,
    ) -> None:
        """`pair`: with it STARTTLS is offered and required, or TLS begins at once."""
        self.port = port or free_port()
        self._context = None
        if pair is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(pair.cert_file, pair.key_file)
        self._implicit = implicit
        self._login = login
        self._size_limit = size_limit
        self._utf8 = utf8
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"mail server {self.port}", daemon=True)
        self._lock = threading.Lock()
        self._received: list[Received] = []
        self._says: dict[str, deque[str]] = defaultdict(deque)
        self._refused: dict[str, str] = {}
        self._protocols: list[SMTP] = []
        self._server: asyncio.Server | None = None
        self.commands: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    # -- how it behaves

    def say(self, command: str, *answers: str) -> None:
        with self._lock:
            self._says[command].extend(answers)

    def refuse(self, address: str, answer: str) -> None:
        self._refused[address] = answer

    def accept(self, address: str) -> None:
        del self._refused[address]

    def up(self) -> None:
        self._do(self._open())

    def down(self) -> None:
        """Stops listening and hangs up on everyone."""
        self._do(self._close())

    def hang_up(self) -> None:
        self._do(self._hang_up())

    # -- what it was sent

    @property
    def received(self) -> list[Received]:
        with self._lock:
            return self._received.copy()

    @property
    def accepted(self) -> list[Received]:
        return [each for each in self.received if each.accepted]

    @property
    def connections(self) -> int:
        return self.commands["connection"]

    # -- in its thread

    def _do(self, work: Any) -> None:
        done: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        done.result(PATIENCE_S)

    async def _open(self) -> None:
        context = self._context if self._implicit else None
        self._server = await self._loop.create_server(self._protocol, HOST, self.port, ssl=context, backlog=512)

    def _protocol(self) -> SMTP:
        self.commands["connection"] += 1
        starttls = self._context if self._context is not None and not self._implicit else None
        protocol = SMTP(
            _Handler(self), data_size_limit=self._size_limit, enable_SMTPUTF8=self._utf8, hostname="mail.example.com",
            tls_context=starttls, require_starttls=starttls is not None, timeout=30, loop=self._loop,
            auth_require_tls=self._login is None or (self._context is not None and not self._implicit),
            authenticator=self._authenticate if self._login is not None else None,
        )  # fmt: skip
        self._protocols.append(protocol)
        return protocol

    def _authenticate(
        self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any
    ) -> AuthResult:
        self.commands["AUTH"] += 1
        given = (data.login.decode(), data.password.decode()) if isinstance(data, LoginPassword) else None
        return AuthResult(success=given == self._login, handled=False)

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._hang_up()

    async def _hang_up(self) -> None:
        for protocol in self._protocols:
            _cut(protocol)
            if protocol._handler_coroutine is not None and not protocol._handler_coroutine.done():
                protocol._handler_coroutine.cancel()
                await asyncio.gather(protocol._handler_coroutine, return_exceptions=True)
        self._protocols.clear()

    def answer_to(self, command: str, otherwise: str, protocol: SMTP) -> str:
        self.commands[command] += 1
        with self._lock:
            said = self._says[command].popleft() if self._says[command] else otherwise
        if said == HANG_UP:
            _cut(protocol)
        return said

    def note(self, session: Session, envelope: Envelope, accepted: bool) -> None:
        assert isinstance(envelope.original_content, bytes)
        with self._lock:
            self._received.append(Received(
                str(envelope.mail_from), [*envelope.rcpt_tos], envelope.original_content, [*envelope.mail_options],
                session.ssl is not None or self._implicit, session.peer, accepted,
            ))  # fmt: skip


def _cut(protocol: SMTP) -> None:
    if isinstance(protocol.transport, asyncio.WriteTransport):
        protocol.transport.abort()


class _Handler:
    def __init__(self, server: MailServer) -> None:
        self._server = server

    async def handle_MAIL(
        self, protocol: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        knows = self._server._login is None or session.authenticated
        answer = self._server.answer_to("MAIL", "250 OK" if knows else "530 5.7.0 log in", protocol)
        if answer.startswith("250"):
            envelope.mail_from = address
            envelope.mail_options.extend(options)
        return answer

    async def handle_RCPT(
        self, protocol: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        answer = self._server.answer_to("RCPT", self._server._refused.get(address, "250 OK"), protocol)
        if answer.startswith("250"):
            envelope.rcpt_tos.append(address)
        return answer

    async def handle_DATA(self, protocol: SMTP, session: Session, envelope: Envelope) -> str:
        answer = self._server.answer_to("CONTENT", "250 OK", protocol)
        self._server.note(session, envelope, answer.startswith("250"))
        return answer

    async def handle_NOOP(self, protocol: SMTP, session: Session, envelope: Envelope, argument: str) -> str:
        return self._server.answer_to("NOOP", "250 OK", protocol)

    async def handle_RSET(self, protocol: SMTP, session: Session, envelope: Envelope) -> str:
        return self._server.answer_to("RSET", "250 OK", protocol)
