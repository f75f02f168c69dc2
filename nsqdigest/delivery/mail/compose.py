"""From a digest's JSON to a mail (pure): to whom, and which bytes.

Mails of one timeline of one day (UTC, by when the digest was opened) are a thread: mail programs show one entry for an
hour of many digests, and no thread goes on for years.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import quote

from nsqdigest.base.templates import Template
from nsqdigest.delivery.bodies.document import Digest, read
from nsqdigest.delivery.bodies.texts import one_line
from nsqdigest.delivery.mail import addresses, mime
from nsqdigest.delivery.mail.addresses import AddressError, Mailbox
from nsqdigest.delivery.mail.content import content_of, opened_at
from nsqdigest.delivery.mail.filling import Fields, NoField
from nsqdigest.delivery.mail.html import html_of
from nsqdigest.delivery.mail.text import text_of

LONGEST_SUBJECT = 200
LONGEST_URL = 900
"""A line of a mail has less than a thousand characters."""
_SAMPLE_DOMAIN = "example.com"

Recipient = Mailbox | Template
"""Of the file: fixed, or a template for one address."""
OwnPart = Callable[[bytes], bytes]
"""A template of the operator's: from a digest's JSON. Raises `BodyFailed`."""


class Letterhead(NamedTuple):
    """What the file says of a sink's mails."""

    sender: Mailbox
    to: Sequence[Recipient]
    reply_to: Sequence[Mailbox] = ()
    subject: Template | None = None
    """None: what happened."""
    unsubscribe: Template | None = None
    text: OwnPart | None = None
    html: OwnPart | None = None
    is_text_alone: bool = False


class Mail(NamedTuple):
    sender: str
    recipients: tuple[str, ...]
    content: bytes
    needs_utf8: bool
    """Whether an address has letters that only a server with SMTPUTF8 takes."""


class Unaddressed(NamedTuple):
    """A digest that cannot be a mail: its newest record names nobody."""

    problem: str
    """It quotes nothing of an event; `quoting` does."""
    quoting: str = ""


class Composer:
    """Not for two threads at a time: a template of the operator's is not."""

    def __init__(self, letterhead: Letterhead, *, is_sample: bool = False) -> None:
        self._letterhead = letterhead
        self._is_sample = is_sample

    def __call__(self, digest_json: bytes) -> Mail | Unaddressed:
        """Raises `BodyFailed` where a template of the operator's fails."""
        head, digest = self._letterhead, read(digest_json)
        fields = Fields(digest.data, is_sample=self._is_sample)
        recipients: list[Mailbox] = []
        try:
            for each in head.to:
                found = each if isinstance(each, Mailbox) else self._addressed(each, fields)
                if isinstance(found, Unaddressed):
                    return found
                if found.address not in [known.address for known in recipients]:
                    recipients.append(found)
            subject = None if head.subject is None else one_line(fields.fill(head.subject), LONGEST_SUBJECT)
            unsubscribe = "" if head.unsubscribe is None else fields.fill(head.unsubscribe, _quoted)
        except NoField as error:
            return Unaddressed(str(error))
        if len(unsubscribe) > LONGEST_URL:
            return Unaddressed(f"its list_unsubscribe is longer than {LONGEST_URL} characters")
        everybody = [head.sender.address, *(each.address for each in (*recipients, *head.reply_to))]
        return Mail(
            head.sender.address,
            tuple(each.address for each in recipients),
            self._content(digest, digest_json, recipients, subject, unsubscribe),
            any(map(addresses.needs_utf8, everybody)),
        )

    def _addressed(self, template: Template, fields: Fields) -> Mailbox | Unaddressed:
        text = fields.fill(template)
        try:
            return Mailbox(addresses.address(text))
        except AddressError as error:
            if self._is_sample:
                return Mailbox(f"someone@{_SAMPLE_DOMAIN}")
            return Unaddressed(f'what "{template.text}" stands for {error}', text)

    def _content(
        self, digest: Digest, digest_json: bytes, recipients: Sequence[Mailbox], subject: str | None, unsubscribe: str
    ) -> bytes:
        head, opened = self._letterhead, opened_at(digest)
        content = content_of(digest)._replace(unsubscribe=unsubscribe)
        if subject is not None:
            content = content._replace(subject=subject)
        parts = [mime.Part("plain", head.text(digest_json).decode() if head.text else text_of(content))]
        if head.html is not None:
            parts.append(mime.Part("html", head.html(digest_json).decode()))
        elif not head.is_text_alone:
            parts.append(mime.Part("html", html_of(content)))
        data = digest.data
        envelope = mime.Envelope(
            id=data.id, sender=head.sender, to=recipients, reply_to=head.reply_to, subject=content.subject, date=opened,
            thread=f"{data.route}\0{data.timeline}\0{opened:%Y-%m-%d}", unsubscribe=unsubscribe,
        )  # fmt: skip
        return mime.message(envelope, parts)


def _quoted(text: str) -> str:
    return quote(text.encode("utf-8", "replace"), safe="")
