"""A digest as a message of Slack: Block Kit, with a text for notifications (pure).

Invariants, whatever a publisher sends:
- Slack takes it: there is always a text, a header has at most 150 characters, another text 3,000, counted after
  escaping as Slack counts them, and there are far fewer than 50 blocks.
- What a publisher sent stands as plain text, or in code whose end it cannot write; `&`, `<` and `>` are escaped. So it
  makes no link, no mention and no formatting, and pings nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from nsqdigest.delivery.bodies.message import Message, message_of
from nsqdigest.delivery.bodies.texts import UNKNOWN_TIME, is_date, utc, utf16_length

HEADER_CHARACTERS = 150
TEXT_CHARACTERS = 3_000
FALLBACK_CHARACTERS = 300
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_NO_BACKTICK = str.maketrans("`", "\u02cb")


def slack(document: bytes) -> bytes:
    message = message_of(document)
    blocks = [{"type": "header", "text": _plain(message.title)}, _context(f"{_code(message.route)} · {_span(message)}")]
    blocks += _sections(f"*{group.records:,} ×* {_code(group.name)}" for group in message.groups)
    blocks += _sections(
        f"{_date(each.timestamp_ms // 1000, '{time_secs}')}  {_code(each.text)}" for each in message.examples
    )
    next_at = f"next not before {_date(message.next_earliest_s, '{date_short_pretty} {time}')}"
    blocks.append(_context(" · ".join([*message.notes, next_at])))
    # Not marked up, and with nothing in it that names everybody: a notification shows it as it stands.
    fallback = escaped(message.title, FALLBACK_CHARACTERS).replace("@", "@\u2060")
    return msgspec.json.encode({"text": fallback, "mrkdwn": False, "blocks": blocks})


def escaped(text: str, limit: int) -> str:
    """As much of it as makes at most `limit` characters."""
    whole = "".join([_ESCAPES.get(each, each) for each in text])
    if utf16_length(whole) <= limit:
        return whole
    kept, length = [], 1
    for each in text:
        piece = _ESCAPES.get(each, each)
        length += utf16_length(piece)
        if length > limit:
            break
        kept.append(piece)
    return "".join(kept) + "…"


def _plain(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": escaped(text, HEADER_CHARACTERS), "emoji": False}


def _code(text: str) -> str:
    return f"`{escaped(text.translate(_NO_BACKTICK), TEXT_CHARACTERS // 2)}`"


def _marked_up(text: str) -> dict[str, Any]:
    """Text that is escaped already. Verbatim: no bare address or name in it becomes a link."""
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def _context(text: str) -> dict[str, Any]:
    return {"type": "context", "elements": [_marked_up(text)]}


def _sections(lines: Iterable[str]) -> list[dict[str, Any]]:
    """As few as the lines fit into."""
    texts: list[str] = []
    for line in lines:
        if texts and utf16_length(texts[-1]) + 1 + utf16_length(line) <= TEXT_CHARACTERS:
            texts[-1] += f"\n{line}"
        else:
            texts.append(line)
    return [{"type": "section", "text": _marked_up(text)} for text in texts]


def _span(message: Message) -> str:
    """In the time zone of whoever reads it."""
    first_s, last_s = message.first_ms // 1000, message.last_ms // 1000
    first = _date(first_s, "{date_short_pretty} {time_secs}")
    return first if first_s == last_s else f"{first} – {_date(last_s, '{date_short_pretty} {time_secs}')}"


def _date(instant_s: int, form: str) -> str:
    """Slack writes it in the reader's time zone; a client that cannot shows UTC."""
    return f"<!date^{instant_s}^{form}|{utc(instant_s)}>" if is_date(instant_s) else UNKNOWN_TIME
