"""A mail as bytes (pure): headers and parts.

Invariants:
- The bytes are a function of what goes in: no clock, no randomness, nothing of this machine.
- They are 7 bits wide and have lines of at most 78 characters, so that no server has to convert them; only a long
  address makes its line longer, and one with letters of other languages its header wider.
- A header is one header, whatever text it is made of: `header` refuses line breaks and other controls.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from email.utils import format_datetime
from typing import NamedTuple

from nsqdigest.delivery.mail.addresses import Mailbox, domain_of

LINE_CHARACTERS = 76
_WORD_BYTES = 42
"""Of UTF-8, in one encoded word: 75 characters with its frame."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9 ]+")
_BEYOND_ASCII = bytes(range(128, 256))
_MOSTLY_ASCII = 6
"""Where less than every sixth byte is beyond ASCII, quoted-printable is shorter, and people can read it."""


class Part(NamedTuple):
    subtype: str
    """Of text/."""
    text: str


class Envelope(NamedTuple):
    """What stands in the headers of a mail."""

    id: str
    """Of the digest."""
    sender: Mailbox
    to: Sequence[Mailbox]
    reply_to: Sequence[Mailbox]
    subject: str
    date: datetime
    thread: str
    """What the mails of one thread have in common."""
    unsubscribe: str
    """A URL, or ""."""


def message(envelope: Envelope, parts: Sequence[Part]) -> bytes:
    """With CRLF, ready to be sent. Several parts are alternatives, the best one last."""
    lines = [*_headers(envelope), "MIME-Version: 1.0"]
    if len(parts) == 1:
        return "\r\n".join([*lines, *_part(parts[0])]).encode()
    # No encoded part has a "=" before a "_".
    boundary = f"=_nsqdigest_{envelope.id}"
    lines += [f'Content-Type: multipart/alternative;\r\n boundary="{boundary}"', ""]
    for part in parts:
        lines += [f"--{boundary}", *_part(part)]
    return "\r\n".join([*lines, f"--{boundary}--", ""]).encode()


# -- headers


def header(name: str, value: str) -> str:
    """`value`: ready, with its folds."""
    if _CONTROL.search(value.replace("\r\n ", " ")):
        raise ValueError(f"a control character in {name}")
    return f"{name}: {value}"


def _headers(envelope: Envelope) -> Iterator[str]:
    domain = domain_of(envelope.sender.address)
    thread = f"<{_thread_id(envelope.thread)}@{domain}>"
    yield header("From", named(envelope.sender))
    yield header("To", ",\r\n ".join(map(named, envelope.to)))
    if envelope.reply_to:
        yield header("Reply-To", ",\r\n ".join(map(named, envelope.reply_to)))
    yield header("Subject", unstructured(envelope.subject, len("Subject: ")))
    yield header("Date", format_datetime(envelope.date.replace(microsecond=0)))
    yield header("Message-ID", f"<{envelope.id}@{domain}>")
    yield header("In-Reply-To", thread)
    yield header("References", thread)
    yield header("Auto-Submitted", "auto-generated")
    yield header("Precedence", "bulk")
    if envelope.unsubscribe:
        yield header("List-Unsubscribe", f"<{envelope.unsubscribe}>")
        if envelope.unsubscribe.startswith("https://"):
            yield header("List-Unsubscribe-Post", "List-Unsubscribe=One-Click")
    yield header("X-Nsqdigest-Id", envelope.id)


def _thread_id(thread: str) -> str:
    return "thread-" + hashlib.sha256(thread.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def named(mailbox: Mailbox) -> str:
    if not mailbox.name:
        return mailbox.address
    if mailbox.name.isascii() and "=?" not in mailbox.name:
        name = mailbox.name if _PLAIN_NAME.fullmatch(mailbox.name) else f'"{mailbox.name}"'
        return f"{name} <{mailbox.address}>"
    return f"{_encoded_words(mailbox.name)}\r\n <{mailbox.address}>"


def unstructured(text: str, column: int) -> str:
    """A text of any characters, behind so many of its header. Line breaks have to be gone by now."""
    if text.isascii() and "=?" not in text and not _CONTROL.search(text):
        folded = _folded(text, column)
        if folded is not None:
            return folded
    return ("\r\n " if column + len("=?utf-8?B??=") + 4 > LINE_CHARACTERS else "") + _encoded_words(text)


def _folded(text: str, column: int) -> str | None:
    """None where that would change it, or make a line too long."""
    words = text.split(" ")
    if not all(words):
        return None
    lines = [""]
    for word in words:
        if len(word) >= LINE_CHARACTERS - column:
            return None
        room = LINE_CHARACTERS - (column if len(lines) == 1 else 1)
        if not lines[-1]:
            lines[-1] = word
        elif len(lines[-1]) + 1 + len(word) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "\r\n ".join(lines)


def _encoded_words(text: str) -> str:
    words, piece = [], b""
    for character in text:
        encoded = character.encode("utf-8", "replace")
        if len(piece) + len(encoded) > _WORD_BYTES:
            words.append(piece)
            piece = b""
        piece += encoded
    return "\r\n ".join(f"=?utf-8?B?{base64.b64encode(word).decode()}?=" for word in [*words, piece])


# -- parts


def _part(part: Part) -> list[str]:
    raw = part.text.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8", "replace")
    if not raw.endswith(b"\n"):
        raw += b"\n"
    wide_bytes = len(raw) - len(raw.translate(None, _BEYOND_ASCII))
    if wide_bytes * _MOSTLY_ASCII <= len(raw):
        encoding, body = "quoted-printable", binascii.b2a_qp(raw, istext=True)
    else:
        encoding, body = "base64", base64.encodebytes(raw.replace(b"\n", b"\r\n"))
    return [
        f"Content-Type: text/{part.subtype}; charset=utf-8",
        f"Content-Transfer-Encoding: {encoding}",
        "",
        body.decode().replace("\n", "\r\n"),
    ]
