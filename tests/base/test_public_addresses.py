"""public_addresses.py: which addresses a name from data may lead to."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.base.allowed_hosts import Allowed
from nsqdigest.base.http.public_addresses import is_public, refusal

pytestmark = pytest.mark.unit

PUBLIC = ["8.8.8.8", "1.1.1.1", "93.184.215.14", "223.255.255.254", "2606:4700::1111", "2a00:1450:4001::200e"]
NOT_PUBLIC = [
    "0.0.0.0", "10.0.0.1", "10.255.255.255", "127.0.0.1", "127.1.2.3", "169.254.169.254", "172.16.0.1",
    "172.31.255.255", "192.168.1.1", "100.64.0.1", "100.100.100.200", "192.0.0.192", "192.0.2.1", "198.18.0.1",
    "198.51.100.1", "203.0.113.1",
    "192.88.99.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "168.63.129.16",
    "::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::8.8.8.8", "::ffff:0:10.0.0.1", "64:ff9b::a9fe:a9fe",
    "64:ff9b::808:808", "64:ff9b:1::a9fe:a9fe", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001::1", "2001:0:a9fe:a9fe::",
    "2001:db8::1", "3fff::1", "fe80::1", "fe80::1%eth0", "febf::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1",
    "100::1", "5f00::1", "localhost", "", "8.8.8.8.8", "010.0.0.1", "2130706433", "0x7f.1",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    assert is_public(address)
    assert refusal("a.example.com", [address], Allowed()) == ""


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)
    assert address in refusal("a.example.com", [address], Allowed())


@given(st.ip_addresses())
def test_nothing_is_public_that_the_standard_library_takes_for_private(address: ipaddress.IPv4Address) -> None:
    if is_public(str(address)):
        assert address.is_global
        special = (address.is_multicast, address.is_reserved, address.is_link_local, address.is_unspecified)
        assert not any(special)


def test_one_address_that_is_not_public_refuses_the_name() -> None:
    assert refusal("a.example.com", ["8.8.8.8", "10.0.0.1"], Allowed()) == (
        "a.example.com has the address 10.0.0.1, which is not public; allow_hosts can allow it"
    )
    assert refusal("a.example.com", [], Allowed()) == "a.example.com has no address"


@pytest.mark.parametrize(
    ("entry", "host", "address"),
    [
        ("hooks.internal", "hooks.internal", "10.0.0.1"),
        ("Hooks.Internal.", "hooks.internal", "127.0.0.1"),
        ("*.svc.internal", "a.svc.internal", "10.0.0.1"),
        ("*.svc.internal", "a.b.svc.internal", "10.0.0.1"),
        ("10.0.0.0/8", "a.example.com", "10.1.2.3"),
        ("10.1.2.3", "a.example.com", "10.1.2.3"),
        ("fd00::/8", "a.example.com", "fd00::1"),
    ],
)
def test_the_file_allows_hosts_and_networks(entry: str, host: str, address: str) -> None:
    assert refusal(host, [address], Allowed()) != ""
    assert refusal(host, [address], Allowed([entry])) == ""


@pytest.mark.parametrize(
    ("entry", "host", "address"),
    [
        ("hooks.internal", "a.hooks.internal", "10.0.0.1"),
        ("*.svc.internal", "svc.internal", "10.0.0.1"),
        ("*.svc.internal", "asvc.internal", "10.0.0.1"),
        ("10.0.0.0/8", "a.example.com", "169.254.169.254"),
        ("10.0.0.0/8", "a.example.com", "::ffff:10.0.0.1"),
        ("10.0.0.0/8", "10.0.0.0/8", "11.0.0.1.x"),
    ],
)
def test_it_allows_no_more_than_it_says(entry: str, host: str, address: str) -> None:
    assert refusal(host, [address], Allowed([entry])) != ""
