"""To whom a mail goes, its subject and how its reader leaves: fixed, or of a digest and its newest record (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote

from nsqdigest.base.templates import Template
from nsqdigest.delivery import targets
from nsqdigest.delivery.bodies.texts import one_line
from nsqdigest.delivery.mail import addresses
from nsqdigest.delivery.mail.addresses import AddressError, Mailbox
from nsqdigest.delivery.targets import Aim, Filler, NoTarget, Source, Target

LONGEST_SUBJECT = 200
LONGEST_URL = 900
"""A line of a mail has less than a thousand characters."""
_SOMEONE = "someone@example.com"

Recipient = Mailbox | Template
"""Of the file: fixed, or a template for one address."""


class Addressing(NamedTuple):
    """What the file says."""

    to: Sequence[Recipient]
    subject: Template | None = None
    """None: what happened."""
    unsubscribe: Template | None = None

    def key_of(self, number: int) -> str:
        """As the file has it, mostly."""
        return f"to[{number}]" if len(self.to) > 1 else "to"


class Addressed(NamedTuple):
    """Of one mail."""

    to: list[Mailbox]
    """Nobody twice."""
    subject: str | None
    unsubscribe: str


def addressed(addressing: Addressing, texts: Mapping[str, str]) -> Addressed:
    """`texts`: of the digest's target, which `aim` made; none where nothing is a template."""
    found: dict[str, Mailbox] = {}
    for number, each in enumerate(addressing.to):
        mailbox = each if isinstance(each, Mailbox) else Mailbox(texts[addressing.key_of(number)])
        found.setdefault(mailbox.address, mailbox)
    return Addressed([*found.values()], texts.get("subject"), texts.get("list_unsubscribe", ""))


def aim(addressing: Addressing) -> Aim | None:
    """None: every mail has the same recipients, and no text of its digest beside them."""
    to = {addressing.key_of(number): each for number, each in enumerate(addressing.to) if isinstance(each, Template)}
    templates = [*to.values(), *filter(None, (addressing.subject, addressing.unsubscribe))]
    if not templates:
        return None
    recipients = {key: Filler(key, template, lambda _: str) for key, template in to.items()}
    subject = Filler("subject", addressing.subject, lambda _: str) if addressing.subject else None
    unsubscribe = (
        Filler("list_unsubscribe", addressing.unsubscribe, lambda _: _quoted) if addressing.unsubscribe else None
    )

    def aimed(source: Source) -> Target:
        texts = {key: _address(key, filler.text(source)) for key, filler in recipients.items()}
        if subject is not None:
            texts["subject"] = one_line(subject.text(source), LONGEST_SUBJECT)
        if unsubscribe is not None:
            texts["list_unsubscribe"] = _url(unsubscribe.text(source))
        return Target(texts, ", ".join(each.address for each in addressed(addressing, texts).to))

    paths = dict.fromkeys(path for each in templates for path in targets.event_paths(each))
    alone = [each for each in to.values() if not makes_an_address(each, "x")]
    return Aim(aimed, tuple(paths), {path: _SOMEONE for each in alone for path in targets.event_paths(each)})


def makes_an_address(template: Template, value: str) -> bool:
    """With this in place of each field."""
    try:
        addresses.address("".join(part if isinstance(part, str) else value for part in template.parts))
    except AddressError:
        return False
    return True


def _address(key: str, text: str) -> str:
    try:
        return addresses.address(text)
    except AddressError as error:
        raise NoTarget(f"{key}: the address {error}", text) from None


def _quoted(text: str) -> str:
    return quote(text.encode("utf-8", "replace"), safe="")


def _url(text: str) -> str:
    if len(text) > LONGEST_URL:
        raise NoTarget(f"list_unsubscribe: it would have {len(text):,} characters; {LONGEST_URL} fit into a mail", text)
    return text
