"""How an error of the driver reads."""

from __future__ import annotations

import pytest
from redis import exceptions as redis_errors

from nsqdigest.store.servers.translation import translate

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("raised", "reads"),
    [
        (
            "Error 111 connecting to 127.0.0.1:6379. Connect call failed ('127.0.0.1', 6379).",
            "redis-connection: cannot connect to 127.0.0.1:6379: Connection refused",
        ),
        (
            "Error Multiple exceptions: [Errno 111] Connect call failed ('::1', 6379, 0, 0), [Errno 111] Connect call "
            "failed ('127.0.0.1', 6379) connecting to localhost:6379.",
            "redis-connection: cannot connect to localhost:6379: Connection refused",
        ),
        (
            "Error -2 connecting to nowhere.invalid:6379. Name or service not known.",
            "redis-connection: Error -2 connecting to nowhere.invalid:6379. Name or service not known.",
        ),
        ("Connection closed by server.", "redis-connection: Connection closed by server."),
    ],
)
def test_a_connection_that_failed_is_told_in_the_systems_words(raised: str, reads: str) -> None:
    assert str(translate(redis_errors.ConnectionError(raised))) == reads
