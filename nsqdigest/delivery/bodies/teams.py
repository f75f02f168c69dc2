"""A digest as a message of Teams: an Adaptive Card in the envelope that the webhooks of Workflows take (pure).

Invariants, whatever a publisher sends:
- It is smaller than the 28 KB that Teams takes.
- What a publisher sent stands in text runs alone, in which Teams reads no Markdown: no link, no image, no formatting.
  Nobody is mentioned: the card names no entities.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from nsqdigest.delivery.bodies.message import message_of
from nsqdigest.delivery.bodies.texts import utc

_SCHEMA = "http://adaptivecards.io/schemas/adaptive-card.json"
_VERSION = "1.2"
"""The first with text runs."""
_CARD = "application/vnd.microsoft.card.adaptive"
_BEGINS_DATE = re.compile(r"\{(?=\{)")
"""Two braces begin a date in a card: each that has one behind it."""


def teams(document: bytes) -> bytes:
    message = message_of(document)
    span = utc(message.first_ms // 1000)
    if message.last_ms // 1000 != message.first_ms // 1000:
        span += f" – {utc(message.last_ms // 1000)}"
    body = [
        _line(_run(message.title, size="Large", weight="Bolder")),
        _line(_run(f"{message.route} · {span}", isSubtle=True)),
        *(
            _line(_run(f"{group.records:,} × ", weight="Bolder"), _run(group.name), separated=not number)
            for number, group in enumerate(message.groups)
        ),
        *(
            _line(
                _run(f"{utc(each.timestamp_ms // 1000, '%H:%M:%S')}  ", isSubtle=True),
                _run(each.text, fontType="Monospace"),
                separated=not number,
            )
            for number, each in enumerate(message.examples)
        ),
        _own_text(" · ".join([*message.notes, f"next not before {_local(message.next_earliest_s)}"])),
    ]
    card = {
        "$schema": _SCHEMA, "type": "AdaptiveCard", "version": _VERSION, "msteams": {"width": "Full"}, "body": body,
    }  # fmt: skip
    attachment = {"contentType": _CARD, "contentUrl": None, "content": card}
    return msgspec.json.encode({"type": "message", "attachments": [attachment]})


def _run(text: str, **look: Any) -> dict[str, Any]:
    return {"type": "TextRun", "text": _BEGINS_DATE.sub("{\u2060", text), **look}


def _line(*runs: dict[str, Any], separated: bool = False) -> dict[str, Any]:
    return {"type": "RichTextBlock", "inlines": list(runs), "separator": separated}


def _own_text(text: str) -> dict[str, Any]:
    """Of our words and numbers alone: it may have Markdown and dates."""
    return {"type": "TextBlock", "text": text, "wrap": True, "isSubtle": True, "separator": True}


def _local(instant_s: int) -> str:
    """Teams writes it in the time zone of whoever reads it."""
    text = utc(instant_s, "%Y-%m-%dT%H:%M:%SZ")
    return f"{{{{DATE({text}, SHORT)}}}} {{{{TIME({text})}}}}"
