"""One connection to a mail server, from its greeting to its end.

Invariants:
- Certificate and host name are checked, with TLS 1.2 or newer; without STARTTLS from the server the
  session fails. A password goes over TLS, or to this machine.
- Whatever the server does becomes a `Failed` with an outcome. A server may send 32 KiB in an answer, no more.
- Who cancels a call closes the connection: an answer that comes later belongs to nothing.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

import aiosmtplib
from aiosmtplib import SMTP, SMTPResponseException

from nsqdigest.base.host_names import is_name
from nsqdigest.base.reasons import Verdict
from nsqdigest.base.tls import failure
from nsqdigest.config.model import MASK, Address, Secret
from nsqdigest.delivery.mail.answers import LONGEST_ANSWER, Refusal, Stage, outcome_of
from nsqdigest.delivery.sinks.base import Outcome

T = TypeVar("T")
TlsMode = Literal["starttls", "implicit", "none"]

_NO_CODE = -1
"""aiosmtplib's, of bytes that are no answer of SMTP."""
_ERRNO = re.compile(r"\[Errno (\d+)\]")


class Server(NamedTuple):
    host: str
    port: int
    tls: TlsMode
    context: ssl.SSLContext | None
    user: str
    password: Secret | None

    def __str__(self) -> str:
        return str(Address(self.host, self.port))


class Failed(Exception):
    """`outcome` has what happened. The connection is of no use any more, unless `refusal` is there."""

    def __init__(self, outcome: Outcome, refusal: Refusal | None = None) -> None:
        super().__init__(outcome.cause)
        self.outcome = outcome
        self.refusal = refusal


class Session:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._smtp = SMTP(
            hostname=server.host, port=server.port, timeout=None, use_tls=server.tls == "implicit", start_tls=False,
            tls_context=server.context, local_hostname="localhost",
        )  # fmt: skip
        self.mails = 0
        self.used_at_s = 0.0

    # -- life

    async def open(self) -> None:
        """Greeting, EHLO, TLS, login."""
        try:
            await self._asked(Stage.GREETING, self._smtp.connect())
            await self._hello()
            if self._server.tls == "starttls":
                if not self._smtp.supports_extension("starttls"):
                    raise _unavailable(
                        f"{self._server} offers no STARTTLS; nothing goes there in the clear "
                        '(tls = "implicit" is for ports that begin with TLS)'
                    )
                await self._asked(Stage.TLS, self._smtp.starttls())
                await self._hello()
            await self._log_in()
        except BaseException:
            self.abort()
            raise

    async def _hello(self) -> None:
        await self._asked(Stage.HELLO, self._smtp.ehlo(hostname=own_name(self._known("sockname"))))

    async def _log_in(self) -> None:
        user, password = self._server.user, self._server.password
        if not user or password is None:
            return
        if not self._smtp.supports_extension("auth"):
            raise _unavailable(f"{self._server} offers no login (AUTH); leave out user and password, or see its TLS")
        ways = {"plain": self._smtp.auth_plain, "login": self._smtp.auth_login, "cram-md5": self._smtp.auth_crammd5}
        way = next((ask for name, ask in ways.items() if name in self._smtp.server_auth_methods), None)
        if way is None:
            raise _unavailable(f"{self._server} offers no way to log in that is known here (PLAIN, LOGIN, CRAM-MD5)")
        # One way, once: servers lock out who fails often.
        try:
            await self._asked(Stage.AUTH, way(user, password.reveal()))
        except Failed as failed:
            answer = _without(password.reveal(), user, failed.outcome.answer)
            raise Failed(failed.outcome._replace(answer=answer), failed.refusal) from None

    def close(self) -> None:
        """Of an idle one: says goodbye, and waits for no answer."""
        transport = self._smtp.transport
        if isinstance(transport, asyncio.WriteTransport) and not transport.is_closing():
            transport.write(b"QUIT\r\n")
        self._smtp.close()

    def abort(self) -> None:
        """At once: what is still unsent to a server that reads nothing would keep the connection."""
        transport = self._smtp.transport
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()
        self._smtp.close()

    @property
    def is_open(self) -> bool:
        return self._smtp.is_connected

    # -- what the server is like

    @property
    def tls_version(self) -> str:
        encrypted = self._known("ssl_object")
        return encrypted.version() or "TLS" if encrypted is not None else ""

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        return self._known("peercert") or None

    def _known(self, what: str) -> Any:
        """Of the connection; None where it ended meanwhile."""
        return self._smtp.transport.get_extra_info(what) if self._smtp.transport is not None else None

    @property
    def largest_bytes(self) -> int:
        """0: it does not say."""
        size = self._smtp.esmtp_extensions.get("size", "")
        return int(size) if size.isascii() and size.isdigit() and len(size) < 16 else 0

    @property
    def takes_utf8(self) -> bool:
        return self._smtp.supports_extension("smtputf8")

    # -- a mail

    async def noop(self) -> None:
        await self._asked(Stage.IDLE, self._smtp.noop())

    async def sender(self, address: str, size_bytes: int, *, utf8: bool) -> None:
        options = [f"SIZE={size_bytes}"] if self._smtp.supports_extension("size") else []
        if utf8:
            options += ["SMTPUTF8", "BODY=8BITMIME"]
        encoding = "utf-8" if utf8 else "ascii"
        await self._asked(Stage.SENDER, self._smtp.mail(address, options=options, encoding=encoding))

    async def recipient(self, address: str) -> None:
        await self._asked(Stage.RECIPIENT, self._smtp.rcpt(address, encoding="utf-8"))

    async def content(self, content: bytes) -> None:
        await self._asked(Stage.CONTENT, self._smtp.data(content))

    async def reset(self) -> None:
        await self._asked(Stage.IDLE, self._smtp.rset())

    async def _asked(self, stage: Stage, call: Awaitable[T]) -> T:
        try:
            return await call
        except SMTPResponseException as error:
            if error.code == _NO_CODE or not 200 <= error.code < 600:
                self.abort()
                raise Failed(Outcome(
                    Verdict.UNAVAILABLE, f"{self._server} answers what is no SMTP ({stage})",
                    answer=_text(error)[:LONGEST_ANSWER],
                )) from None  # fmt: skip
            refusal = Refusal(stage, error.code, _text(error))
            raise Failed(outcome_of(refusal), refusal) from None
        except (aiosmtplib.SMTPException, OSError, ValueError) as error:
            self.abort()
            raise _unavailable(f"{self._server}: {why(error, self._server.host)} ({stage})") from None


def _text(error: SMTPResponseException) -> str:
    """What the server wrote, which need not be UTF-8: text that can be stored."""
    return error.message.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _without(password: str, user: str, answer: str) -> str:
    """Some servers repeat the command that they do not take."""
    sent = (password, *(base64.b64encode(text.encode()).decode() for text in (password, f"\0{user}\0{password}")))
    for each in sorted(sent, key=len, reverse=True):
        answer = answer.replace(each, MASK)
    return answer


def _unavailable(cause: str) -> Failed:
    return Failed(Outcome(Verdict.UNAVAILABLE, cause))


def own_name(address: Any) -> str:
    """For EHLO: this machine's name where it has a domain, else the address of this end, which servers take, too."""
    name = socket.gethostname()
    if "." in name.strip(".") and is_name(name) and name.isascii():
        return name
    host = str(address[0]).partition("%")[0] if address else "127.0.0.1"
    return f"[IPv6:{host}]" if ":" in host else f"[{host}]"


def why(error: BaseException, host: str) -> str:
    """In plain words, with nothing that the server wrote."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {failure(cause, host).cause}"
        if isinstance(cause, socket.gaierror):
            return "its name cannot be looked up"
        if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
            return os.strerror(cause.errno)
        if numbers := dict.fromkeys(_ERRNO.findall(str(cause))):  # one of each of its addresses
            return ", ".join(os.strerror(int(number)) for number in numbers)
        cause = cause.__cause__
    return "the server closed the connection"
