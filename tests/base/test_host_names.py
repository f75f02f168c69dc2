"""What can be the host of an address."""

from __future__ import annotations

import pytest

from nsqdigest.base.host_names import has_two_names, is_host, is_name, is_url_host

pytestmark = pytest.mark.unit

LABEL = "x" * 63


@pytest.mark.parametrize(
    "text", ["nsqd", "nsqd-1.internal.", "a_b.c", LABEL, f"{LABEL}.{LABEL}", "10.0.0.1", "::1", "fe80::1%eth0"]
)
def test_names_and_ip_addresses_are_hosts(text: str) -> None:
    assert is_host(text)
    assert is_url_host(text)


@pytest.mark.parametrize(
    "text",
    ["", ".", "a..b", ".a", "a..", LABEL + "x", f"a.{LABEL}x.b", ".".join([LABEL] * 4), "two words", "-x", "a:b"],
)
def test_what_the_resolver_cannot_encode_is_no_host(text: str) -> None:
    assert not is_host(text)
    assert not is_url_host(text)


@pytest.mark.parametrize("scope", ["", "\0", "eth 0", "eth0\n", "a/b"])
def test_the_scope_of_an_ipv6_address_names_an_interface(scope: str) -> None:
    assert not is_host(f"fe80::1%{scope}")


def test_an_ipv4_address_has_no_scope() -> None:
    assert not is_host("10.0.0.1%eth0")


@pytest.mark.parametrize(("name", "has_two"), [("stra\u00dfe", True), ("a\u200cb", True), ("b\u00fccher", False)])
def test_of_some_letters_two_standards_make_different_names(name: str, has_two: bool) -> None:
    assert has_two_names(name) is has_two


def test_a_url_may_have_letters_of_any_language() -> None:
    assert is_url_host("bücher.example")
    assert not is_name("bücher.example")
    assert not is_url_host("ü" * 64)
