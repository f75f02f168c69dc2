"""allowed_hosts.py: the hosts and networks that the file allows."""

from __future__ import annotations

import pytest

from nsqdigest.base.allowed_hosts import Allowed

pytestmark = pytest.mark.unit

LISTED = Allowed(["nsqd-1", "*.nsq.internal", "10.0.0.0/8", "fd00::/8"])


@pytest.mark.parametrize("host", ["nsqd-1", "a.nsq.internal", "a.b.nsq.internal", "10.1.2.3", "fd00::1"])
def test_a_listed_host_passes_as_it_is_written(host: str) -> None:
    assert LISTED.as_written(host)


@pytest.mark.parametrize(
    "host",
    [
        "nsqd-2", "nsq.internal", "ansq.internal", "a.nsq.internal.evil.example", "11.0.0.1", "::ffff:10.0.0.1",
        "fe80::1%eth0", "0x0a000001", "167772161", "10.1", "localhost",
    ],
)  # fmt: skip
def test_others_do_not_and_no_name_is_looked_up(host: str) -> None:
    assert not LISTED.as_written(host)


def test_an_ending_is_none_of_an_address() -> None:
    assert not Allowed(["*.2.3"]).as_written("10.1.2.3")


@pytest.mark.parametrize(
    "entry", ["", "*", "*.", "10.0.0.1/8", "10.0.0.0/33", "http://a", "a b", "a/b", "*.10.0.0.0/8", "a:80"]
)
def test_an_entry_that_is_neither_a_host_nor_a_network(entry: str) -> None:
    with pytest.raises(ValueError, match=r"is neither|does not appear|has host bits|prefix"):
        Allowed([entry])
