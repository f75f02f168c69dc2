"""Reaches the places that digests go to, and looks at the address on which the daemon will listen.

It sends nothing and keeps no port. What to reach for a sink, and what the result means, is in the file of its kind.
"""

from __future__ import annotations

import asyncio
import errno
import http.client
import os
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from nsqdigest.admin import unix_socket
from nsqdigest.admin.client import connection_to
from nsqdigest.base.errors import Unreachable
from nsqdigest.base.findings import Finding, Reached
from nsqdigest.base.tls import client_context, failure
from nsqdigest.config import UnixSocket
from nsqdigest.doctor import judgements, running
from nsqdigest.doctor.reach import connect, in_a_thread, leave, peer_of, resolve, why

if TYPE_CHECKING:
    from nsqdigest.config import Address
    from nsqdigest.delivery.sinks.kind import Greeted
    from nsqdigest.doctor.nsq import NsqExaminer

_ANSWER_WITHIN_S = 2.0
_GREETED_WITHIN_S = 10.0
"""Some mail servers let strangers wait before they greet."""
_ANSWER_LIMIT_BYTES = 64 * 1024
_CERTIFICATE_REMEDY = "renew or correct the certificate there; it has to be of an authority that this machine trusts"


class SinkReach:
    """The argument of the look of every kind of sink: `delivery.sinks.kind.Reach`."""

    def __init__(self, nsq: NsqExaminer) -> None:
        self.nsqd = nsq.reach
        self.in_a_thread = in_a_thread

    async def server(self, host: str, port: int, *, tls: bool) -> Reached:
        context = client_context() if tls else None
        await resolve(host)
        try:
            encrypted, writer = await connect(host, port, context)
        except ssl.SSLError as error:
            is_certificate = isinstance(error, ssl.SSLCertVerificationError)
            remedy = _CERTIFICATE_REMEDY if is_certificate else "look at what listens there"
            raise Unreachable(f"TLS failed: {failure(error, host).cause}; {remedy}") from None
        except OSError as error:
            raise Unreachable(why(error)) from None
        try:
            version, certificate = (encrypted.version() or "TLS", encrypted.getpeercert()) if encrypted else ("", None)
            return judgements.reached_server(version, peer_of(certificate), time.time())
        finally:
            await leave(writer)

    async def client(self, host: str, greet: Callable[[], Awaitable[Greeted]]) -> Reached:
        await resolve(host)
        try:
            async with asyncio.timeout(_GREETED_WITHIN_S):
                greeted = await greet()
        except TimeoutError:
            raise Unreachable(f"no answer within {_GREETED_WITHIN_S:g} s") from None
        reached = judgements.reached_server(greeted.tls, peer_of(greeted.certificate), time.time())
        return reached._replace(how="; ".join([reached.how, *greeted.details]))


async def look_at_admin(
    listen: Address | UnixSocket | None, pids_here: Callable[[], Awaitable[Sequence[int]]]
) -> list[Finding]:
    """`pids_here`: the daemons of this machine, as far as Redis knows them."""
    if listen is None:
        return [judgements.of_no_admin()]
    if isinstance(listen, UnixSocket):
        return await _look_at_socket(listen, pids_here)
    try:
        await resolve(listen.host)
    except Unreachable as error:
        return [judgements.of_unusable_admin(str(listen), str(error))]
    problem = await in_a_thread(lambda: _bind(listen))
    if problem is None:
        return [judgements.of_free_admin(str(listen))]
    if problem.errno != errno.EADDRINUSE:
        return [judgements.of_unusable_admin(str(listen), problem.strerror or str(problem))]
    return await _look_at_used(listen, pids_here)


async def _look_at_socket(listen: UnixSocket, pids_here: Callable[[], Awaitable[Sequence[int]]]) -> list[Finding]:
    try:
        is_taken = await in_a_thread(lambda: unix_socket.is_taken(listen.path))
    except Unreachable as error:
        return [judgements.of_unusable_admin(str(listen), str(error))]
    if not is_taken:
        return [judgements.of_free_admin(str(listen))]
    return await _look_at_used(listen, pids_here)


async def _look_at_used(
    listen: Address | UnixSocket, pids_here: Callable[[], Awaitable[Sequence[int]]]
) -> list[Finding]:
    answer = await in_a_thread(lambda: _readyz(listen))
    if answer is not None:
        return running.of_used_admin(str(listen), answer)
    pids = [pid for pid in await pids_here() if _lives(pid)]
    return [running.of_silent_admin(str(listen), _ANSWER_WITHIN_S, pids)]


def _lives(pid: int) -> bool:
    """A daemon that was killed is in the registry for a minute."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _bind(listen: Address) -> OSError | None:
    """Binds as the daemon would, and does not listen, so that no client connects."""
    family, kind, protocol, _, address = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            return error
    return None


def _readyz(listen: Address | UnixSocket) -> str | None:
    """None: no answer."""
    connection = connection_to(listen, _ANSWER_WITHIN_S)
    try:
        connection.request("GET", "/readyz?verbose")
        return connection.getresponse().read(_ANSWER_LIMIT_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    except http.client.HTTPException:
        return ""
    finally:
        connection.close()
