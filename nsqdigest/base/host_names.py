"""What can be the host of an address: a name that a resolver accepts, or an IP address (pure).

A name that breaks the rules of DNS does not fail like one that nobody knows: Python's resolver raises UnicodeError
for a label that is empty or longer than 63 characters. Such a name is refused where it enters: in the file, and in a
nsqlookupd's answer.
"""

from __future__ import annotations

import ipaddress
import re

LONGEST_NAME = 253
LONGEST_LABEL = 63

_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_TWO_IDNAS = re.compile("[ßς\u200c\u200d]")
_SCOPE = re.compile(r"[A-Za-z0-9_.-]+")


def is_host(text: str) -> bool:
    """Whether it is a name or an IP address; IPv6 without brackets."""
    return is_name(text) or is_ip(text)


def is_url_host(text: str) -> bool:
    """The same for the host of a URL, which may hold letters of any language."""
    try:
        return is_host(text.encode("idna").decode())
    except UnicodeError:
        return False


def has_two_names(text: str) -> bool:
    """Whether the two standards for letters of other languages, IDNA 2003 and 2008, make different names of it."""
    return _TWO_IDNAS.search(text) is not None


def is_name(text: str) -> bool:
    """Labels of letters, digits, `_` and `-`; a dot at the end is allowed."""
    return _NAME.fullmatch(text.removesuffix(".")) is not None and not has_bad_length(text)


def has_bad_length(text: str) -> bool:
    """Whether the name, or a label of it, is too long, or a label is empty."""
    name = text.removesuffix(".")
    return len(name) > LONGEST_NAME or not all(1 <= len(label) <= LONGEST_LABEL for label in name.split("."))


def is_ip(text: str) -> bool:
    return ip_version(text) is not None


def ip_version(text: str) -> int | None:
    """4, 6, or None. The standard library takes any scope of an IPv6 address; here a scope names an interface."""
    address, percent, scope = text.partition("%")
    if percent and not _SCOPE.fullmatch(scope):
        return None
    try:
        return ipaddress.ip_address(address).version if not percent else ipaddress.IPv6Address(text).version
    except ValueError:
        return None
