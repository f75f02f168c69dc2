"""Mail addresses (pure): of the file, and of events, where they are data.

Invariants:
- An address that passed is one mailbox: no line break, no control, no blank, no comma, no quotation marks or comments,
  nothing that reorders text, and nothing that old servers take for a route (`%`, `!`). It can neither end a header or a
  command nor name a second recipient.
- Its domain is ASCII; its local part is ASCII, or letters of other languages, for a server that has SMTPUTF8.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import NamedTuple

from nsqdigest.base.host_names import has_two_names, is_name

LONGEST_BYTES = 254
LONGEST_LOCAL_BYTES = 64
LONGEST_NAME = 100
_LONGEST_GIVEN = 4 * LONGEST_BYTES
"""Characters: an address may become shorter by its normal form."""
_ATOM = re.compile(r"[A-Za-z0-9#$&'*+/=?^_`{|}~-]+")
_ENCODED_WORD = "=?"
_UNQUOTED = re.compile(r'(?P<name>[^"\\<>]*[^"\\<>\s])\s*<(?P<address>[^<>]*)>')
_NAMED = re.compile(r'(?:"(?P<quoted>[^"\\<>]*)"|(?P<plain>[^"<>,;:@\\()]*?))\s*<(?P<address>[^<>]*)>')


class AddressError(ValueError):
    """The message tells the problem and quotes nothing of the address.

    `remedy` is "" unless the text shows one. It holds the text.
    """

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.remedy = remedy


class Mailbox(NamedTuple):
    address: str
    name: str = ""


def address(text: str) -> str:
    """As it goes to a server and into headers."""
    if len(text) > _LONGEST_GIVEN:  # what follows takes seconds for the longest texts that an event can hold
        raise AddressError(f"is longer than the {LONGEST_BYTES} bytes of an address")
    local, at, domain = unicodedata.normalize("NFC", text).rpartition("@")
    if not at or not local or not domain:
        raise AddressError("is not an address")
    _check_local(local)
    found = f"{local}@{_ascii_domain(domain)}"
    if len(found.encode()) > LONGEST_BYTES:
        raise AddressError(f"is longer than the {LONGEST_BYTES} bytes of an address")
    return found


def _check_local(local: str) -> None:
    try:
        length_bytes = len(local.encode())
    except UnicodeEncodeError:
        raise AddressError("holds half a character") from None
    if length_bytes > LONGEST_LOCAL_BYTES:
        raise AddressError(f"has more than {LONGEST_LOCAL_BYTES} bytes before the @")
    if _ENCODED_WORD in local or local.startswith("-"):
        raise AddressError('has "=?", or begins with "-", which servers may take for something else')
    for atom in local.split("."):
        if not atom:
            raise AddressError("has a dot with nothing beside it before the @")
        if not _ATOM.fullmatch("".join(each for each in atom if each.isascii()) or "a"):
            raise AddressError("has a character before the @ that is not allowed there")
        if any(unicodedata.category(each)[0] not in "LMN" for each in atom if not each.isascii()):
            raise AddressError("has a character before the @ that is no letter")


def _ascii_domain(domain: str) -> str:
    if has_two_names(domain):
        raise AddressError("has a domain with a letter for which there are two standards")
    try:
        found = domain if domain.isascii() else domain.encode("idna").decode()
    except UnicodeError:
        found = ""
    if not is_name(found) or found.endswith("."):
        raise AddressError("has no domain name behind the @")
    return found


def mailbox(text: str) -> Mailbox:
    """`Name <address>`, or the address alone: of the file."""
    named = _NAMED.fullmatch(text.strip())
    if named is None:
        _check_quoted(text.strip())
        return Mailbox(address(text.strip()))
    name = " ".join((named["quoted"] or named["plain"] or "").split())
    if not name.isprintable() or len(name) > LONGEST_NAME:
        raise AddressError("has a name that cannot stand in a mail")
    return Mailbox(address(named["address"].strip()), name)


def _check_quoted(text: str) -> None:
    """Refuse a name that has a comma, a colon or the like without quotation marks, and print the value with them."""
    unquoted = _UNQUOTED.fullmatch(text)
    if unquoted is not None and text.isprintable():
        found = address(unquoted["address"].strip())
        value = f'"{unquoted["name"]}" <{found}>'
        in_toml = json.dumps(value, ensure_ascii=False) if "'" in value else f"'{value}'"
        raise AddressError("has a name that needs quotation marks", f"write {in_toml}")


def needs_utf8(found: str) -> bool:
    """Whether the server has to take letters of other languages (SMTPUTF8)."""
    return not found.isascii()


def domain_of(found: str) -> str:
    return found.rpartition("@")[2]
