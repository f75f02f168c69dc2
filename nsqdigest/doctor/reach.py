"""What examiners share: names to addresses, and work that may hang in a thread that nobody waits for.

Every name is resolved here first, so that a name that nobody knows is told from a server that does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from nsqdigest.base import threads
from nsqdigest.base.errors import Unreachable
from nsqdigest.doctor.judgements import Peer

T = TypeVar("T")

RESOLVED_WITHIN_S = 3.0
CONNECTED_WITHIN_S = 3.0
_GONE_WITHIN_S = 0.5

_ERRNO = re.compile(r"\[Errno (\d+)\]")
_COMMON_NAME, _ALTERNATIVES = "commonName", ("DNS", "IP Address")


async def in_a_thread(work: Callable[[], T]) -> T:
    """Its end is not waited for, neither by whoever gives up nor by the program."""
    return await asyncio.wrap_future(threads.start(work, "doctor"))


async def resolve(host: str) -> None:
    """Raises `Unreachable` where nobody knows the name."""
    try:
        async with asyncio.timeout(RESOLVED_WITHIN_S):
            await in_a_thread(lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except TimeoutError:
        raise Unreachable(
            f"no answer about the name {host} within {RESOLVED_WITHIN_S:g} s; look at the DNS of this machine"
        ) from None
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise Unreachable(f"nobody knows the name {host} ({why}); correct it, or the DNS of this machine") from None


async def connect(
    host: str, port: int, context: ssl.SSLContext | None = None
) -> tuple[ssl.SSLObject | None, asyncio.StreamWriter]:
    """Raises OSError, ssl.SSLError or TimeoutError as they come."""
    async with asyncio.timeout(CONNECTED_WITHIN_S):
        _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host if context else None)
    return writer.get_extra_info("ssl_object"), writer


async def try_to_reach(host: str, port: int) -> None:
    """Raises `Unreachable`, with the cause in plain words."""
    await resolve(host)
    try:
        _, writer = await connect(host, port)
    except OSError as error:
        raise Unreachable(why(error)) from None
    await leave(writer)


async def leave(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        async with asyncio.timeout(_GONE_WITHIN_S):
            await writer.wait_closed()


def why(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not error.args:
        return f"no answer within {CONNECTED_WITHIN_S:g} s"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)  # the loop's own words would name the address once more
    if numbers := dict.fromkeys(_ERRNO.findall(str(error))):  # one of each of its addresses
        return ", ".join(os.strerror(int(number)) for number in numbers)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def peer_of(certificate: Mapping[str, Any] | None) -> Peer | None:
    """None where it was not checked: then Python does not read it."""
    if not certificate:
        return None
    names = {name: value for part in certificate.get("subject", ()) for name, value in part}
    alternatives = [value for kind, value in certificate.get("subjectAltName", ()) if kind in _ALTERNATIVES]
    subject = names.get(_COMMON_NAME) or ", ".join(alternatives[:3]) or ", ".join(names.values()) or "nobody"
    return Peer(str(subject), ssl.cert_time_to_seconds(certificate["notAfter"]))
