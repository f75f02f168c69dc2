"""What Slack and Teams refuse, as far as a message of ours can meet it, and a Slack that answers by it.

The rules are those of their documentation; where it leaves something open, the stricter reading counts here.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from support.receiver import OK, Answer

MOST_BLOCKS = 50
TEAMS_BYTES = 28 * 1024

_DATE = re.compile(r"<!date\^\d{1,12}\^[a-z_{} ]+\|[0-9:UTC -]+>")
_CODE = re.compile(r"`[^`\n]+`")
_OWN_WORDS = re.compile(r"[0-9a-zA-Z ,:*·×–\n]*")
_OF_BLOCK = {"header": {"type", "text"}, "section": {"type", "text"}, "context": {"type", "elements"}}
_OF_TEXT = {"plain_text": {"type", "text", "emoji"}, "mrkdwn": {"type", "text", "verbatim"}}


class Refused(Exception):
    pass


def characters(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def _expect(is_so: object, refusal: str) -> None:
    if not is_so:
        raise Refused(refusal)


# -- Slack


def slack_takes(body: bytes) -> None:
    """Raises Refused with Slack's word, or with what would be worse than a refusal."""
    message = json.loads(body)
    _expect(isinstance(message.get("text"), str) and message["text"].strip(), "no_text")
    _expect(characters(message["text"]) <= 40_000, "msg_too_long")
    _check_entities(message["text"])
    _expect(not re.search("@(channel|here|everyone)", message["text"]), "the text names everybody")
    blocks = message["blocks"]
    _expect(isinstance(blocks, list) and 0 < len(blocks) <= MOST_BLOCKS, "invalid_blocks: number")
    for block in blocks:
        _expect(_OF_BLOCK.get(block.get("type")) == set(block), "invalid_blocks: fields")
        if block["type"] == "context":
            _expect(1 <= len(block["elements"]) <= 10, "invalid_blocks: elements")
        for text in block.get("elements", [block.get("text")]):
            _check_slack_text(text, "plain_text" if block["type"] == "header" else "mrkdwn")


def _check_slack_text(text: Mapping[str, Any], kind: str) -> None:
    _expect(text.get("type") == kind and set(text) == _OF_TEXT[kind], "invalid_blocks: text object")
    written = text["text"]
    limit = 150 if kind == "plain_text" else 3_000
    _expect(1 <= characters(written) <= limit and written.strip(), "invalid_blocks: length of a text")
    if kind == "plain_text":
        _check_entities(written)
        _expect(text["emoji"] is False, "a name could show an emoji")
        return
    _expect(text["verbatim"] is True, "a bare address could become a link")
    _check_entities(_DATE.sub("", written))
    # What is left outside of dates and code is what Slack marks up: only our own words may stand there.
    _expect(_OWN_WORDS.fullmatch(_DATE.sub("", _CODE.sub("", written))), f"marked up: {written}")


def _check_entities(text: str) -> None:
    _expect("<" not in text and ">" not in text, f"a link or a mention: {text}")
    _expect("&" not in re.sub("&(amp|lt|gt);", "", text), f"an unescaped &: {text}")


def slack(per_s: float = 1.0, burst: int = 1) -> Callable[[bytes], Answer]:
    """So many messages a second, and so many at once after a rest: 1 is stricter than Slack itself."""
    owed_at_s = [0.0]

    def judge(body: bytes) -> Answer:
        now_s = time.monotonic()
        owed_s = max(owed_at_s[0], now_s) + 1 / per_s
        if owed_s > now_s + burst / per_s + 1e-6:
            return Answer(429, {"retry-after": "1"}, text="rate_limited")
        try:
            slack_takes(body)
        except (Refused, ValueError, KeyError, TypeError) as error:
            return Answer(400, text=str(error))
        owed_at_s[0] = owed_s
        return OK

    return judge


# -- Teams


def teams_takes(body: bytes) -> None:
    _expect(len(body) <= TEAMS_BYTES and len(body.decode().encode("utf-16-le")) <= TEAMS_BYTES, "too large")
    message = json.loads(body)
    _expect(set(message) == {"type", "attachments"} and message["type"] == "message", "envelope")
    (attachment,) = message["attachments"]
    _expect(attachment["contentType"] == "application/vnd.microsoft.card.adaptive", "contentType")
    card = attachment["content"]
    _expect((card["type"], card["version"]) == ("AdaptiveCard", "1.2"), "card")
    _expect("entities" not in card["msteams"], "a mention")
    _expect(len(card["body"]) >= 3, "body")
    for element in card["body"]:
        if element["type"] == "TextBlock":
            own = re.sub(r"\{\{(DATE|TIME)\([0-9TZ:-]+(, SHORT)?\)\}\}", "", element["text"])
            _expect(_OWN_WORDS.fullmatch(own), f"Markdown: {own}")
        else:
            _expect(element["type"] == "RichTextBlock" and element["inlines"], "element")
            for run in element["inlines"]:
                _expect(run["type"] == "TextRun" and run["text"], "run")
                _expect("{{" not in run["text"], "a date that somebody else wrote")


def runs_of(body: bytes) -> Iterator[str]:
    for element in json.loads(body)["attachments"][0]["content"]["body"]:
        yield "".join(run["text"] for run in element.get("inlines", [])) or element["text"]
