"""From a digest's JSON to a mail (pure): which bytes, and to whom.

Mails of one timeline of one day (UTC, by when the digest was opened) are a thread: mail programs show one entry for an
hour of many digests, and no thread goes on for years.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from nsqdigest.delivery.bodies.document import Digest, read
from nsqdigest.delivery.mail import addresses, mime
from nsqdigest.delivery.mail.addresses import Mailbox
from nsqdigest.delivery.mail.addressing import Addressed, Addressing, addressed
from nsqdigest.delivery.mail.content import content_of, opened_at
from nsqdigest.delivery.mail.html import html_of
from nsqdigest.delivery.mail.text import text_of

OwnPart = Callable[[bytes], bytes]
"""A template of the operator's: from a digest's JSON. Raises `BodyFailed`."""


class Letterhead(NamedTuple):
    """What the file says of a sink's mails."""

    sender: Mailbox
    addressing: Addressing
    reply_to: Sequence[Mailbox] = ()
    text: OwnPart | None = None
    html: OwnPart | None = None
    is_text_alone: bool = False


class Mail(NamedTuple):
    sender: str
    recipients: tuple[str, ...]
    content: bytes
    needs_utf8: bool
    """Whether an address has letters that only a server with SMTPUTF8 takes."""


class Composer:
    """Not for two threads at a time: a template of the operator's is not."""

    def __init__(self, letterhead: Letterhead) -> None:
        self._letterhead = letterhead

    def __call__(self, digest_json: bytes, texts: Mapping[str, str]) -> Mail:
        """`texts`: of the digest's target. Raises `BodyFailed` where a template of the operator's fails."""
        head = self._letterhead
        to = addressed(head.addressing, texts)
        everybody = [head.sender.address, *(each.address for each in (*to.to, *head.reply_to))]
        return Mail(
            head.sender.address,
            tuple(each.address for each in to.to),
            self._content(read(digest_json), digest_json, to),
            any(map(addresses.needs_utf8, everybody)),
        )

    def _content(self, digest: Digest, digest_json: bytes, to: Addressed) -> bytes:
        head, opened, data = self._letterhead, opened_at(digest), digest.data
        content = content_of(digest)._replace(unsubscribe=to.unsubscribe)
        if to.subject is not None:
            content = content._replace(subject=to.subject)
        parts = [mime.Part("plain", head.text(digest_json).decode() if head.text else text_of(content))]
        if head.html is not None:
            parts.append(mime.Part("html", head.html(digest_json).decode()))
        elif not head.is_text_alone:
            parts.append(mime.Part("html", html_of(content)))
        envelope = mime.Envelope(
            id=data.id, sender=head.sender, to=to.to, reply_to=head.reply_to, subject=content.subject, date=opened,
            thread=f"{data.route}\0{data.timeline}\0{opened:%Y-%m-%d}", unsubscribe=to.unsubscribe,
        )  # fmt: skip
        return mime.message(envelope, parts)
