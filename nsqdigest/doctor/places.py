"""Looks at where digests go and at where the daemon will listen. Sends no digest, writes no file, keeps no port."""

from __future__ import annotations

import errno
import http.client
import os
import socket
import ssl
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from nsqdigest.admin.client import own_host
from nsqdigest.base.errors import Unreachable
from nsqdigest.config import LogSink, NsqSink, WebhookSink
from nsqdigest.doctor import judgements, running
from nsqdigest.doctor.findings import Finding
from nsqdigest.doctor.reach import connect, in_a_thread, leave, peer_of, resolve, why

if TYPE_CHECKING:
    from nsqdigest.config import Address, Sink
    from nsqdigest.doctor.nsq import NsqExaminer

_ANSWER_WITHIN_S = 2.0
_ANSWER_LIMIT_BYTES = 64 * 1024
_BELIEVED = "renew or correct the certificate there; it has to be of an authority that this machine believes"


async def look_at_sink(sink: Sink, nsq: NsqExaminer) -> list[Finding]:
    what = sink.name
    if isinstance(sink, NsqSink):
        return await nsq.look_at_sink(sink)
    if isinstance(sink, WebhookSink):
        return await _webhook(what, sink)
    assert isinstance(sink, LogSink)
    problem, remedy = await in_a_thread(lambda: unwritable(sink.path))
    return [judgements.of_log_file(what, sink.path, problem, remedy)]


async def _webhook(what: str, sink: WebhookSink) -> list[Finding]:
    parts = urlsplit(sink.url)
    assert parts.hostname is not None
    context = ssl.create_default_context() if parts.scheme == "https" else None
    try:
        await resolve(parts.hostname)
        tls, writer = await connect(parts.hostname, parts.port or (443 if context else 80), context)
    except ssl.SSLCertVerificationError as error:
        message = f"its certificate does not pass ({error.verify_message.rstrip('.')}); {_BELIEVED}"
        return [judgements.of_failed_webhook(what, sink.shown_url, message)]
    except ssl.SSLError as error:
        message = f"TLS failed ({error.reason or error}); look at what listens there"
        return [judgements.of_failed_webhook(what, sink.shown_url, message)]
    except (OSError, Unreachable) as error:
        return [judgements.of_failed_webhook(what, sink.shown_url, why(error))]
    try:
        version, certificate = (tls.version() or "TLS", tls.getpeercert()) if tls else ("", None)
        return judgements.of_webhook(what, sink.shown_url, version, peer_of(certificate), time.time())
    finally:
        await leave(writer)


def unwritable(path: str) -> tuple[str, str]:
    """Why this user cannot write a log there, and the remedy; "" where it can."""
    if path == "-":
        return "", ""
    if os.path.isdir(path):
        return "is a folder", "name a file in it"
    if os.path.exists(path):
        if os.access(path, os.W_OK):
            return "", ""
        return "cannot be written by this user", "give the daemon's user the right to, or name another file"
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        return f"cannot be made: there is no folder {folder}", "make the folder, for the daemon's user"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"cannot be made: {folder} cannot be written by this user", "give the daemon's user the right to"
    return "", ""


async def look_at_admin(listen: Address | None) -> list[Finding]:
    if listen is None:
        return [judgements.of_no_admin()]
    try:
        await resolve(listen.host)
    except Unreachable as error:
        return [judgements.of_unusable_admin(str(listen), str(error))]
    problem = await in_a_thread(lambda: _bind(listen))
    if problem is None:
        return [judgements.of_free_admin(str(listen))]
    if problem.errno != errno.EADDRINUSE:
        return [judgements.of_unusable_admin(str(listen), problem.strerror or str(problem))]
    return running.of_used_admin(str(listen), await in_a_thread(lambda: _readyz(listen)))


def _bind(listen: Address) -> OSError | None:
    """As the daemon would; listens to nobody, so that no client meets it."""
    family, kind, protocol, _, address = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            return error
    return None


def _readyz(listen: Address) -> str:
    connection = http.client.HTTPConnection(own_host(listen), listen.port, timeout=_ANSWER_WITHIN_S)
    try:
        connection.request("GET", "/readyz?verbose")
        return connection.getresponse().read(_ANSWER_LIMIT_BYTES).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()
