"""How an error of the driver reads that kept a connection from being made."""

from __future__ import annotations

import socket

import pytest
from redis import exceptions as redis_errors

from nsqdigest.base.errors import Applied
from nsqdigest.store.servers.translation import Place, translate_unconnected

pytestmark = pytest.mark.unit

HERE = Place("h:6379", "h", is_encrypted=False, has_certificate=False)
BOTH = "Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0), [Errno 111] Connect call failed ('h', 1)"


@pytest.mark.parametrize(
    ("cause", "reads"),
    [
        (ConnectionRefusedError(111, "Connect call failed"), "cannot connect to h:6379: Connection refused"),
        (OSError(BOTH), "cannot connect to h:6379: Connection refused"),
        (socket.gaierror(-2, "Name or service not known"), "cannot connect to h:6379: Name or service not known"),
        (None, "cannot connect to h:6379: Connection closed by server."),
    ],
)
def test_the_cause_is_told_in_the_systems_words(cause: OSError | None, reads: str) -> None:
    error = redis_errors.ConnectionError("Connection closed by server.")
    error.__cause__ = cause
    translated = translate_unconnected(error, HERE, 2.0)
    assert (translated.what, translated.applied) == (f"redis-connection: {reads}", Applied.NO)


@pytest.mark.parametrize(
    ("is_encrypted", "reads", "remedy"),
    [
        (False, "no connection to h:6379 within 2 s", ""),
        (True, "no TLS handshake with h:6379 within 2 s", "see that it runs; if it has no TLS, write redis:// for"),
    ],
)
def test_a_time_out_names_the_limit_and_tls(is_encrypted: bool, reads: str, remedy: str) -> None:
    place = HERE._replace(is_encrypted=is_encrypted)
    translated = translate_unconnected(redis_errors.TimeoutError("Timeout connecting to server"), place, 2.0)
    assert translated.what == f"redis-timeout: {reads}"
    assert translated.remedy.startswith(remedy)
    assert bool(translated.remedy) is is_encrypted
