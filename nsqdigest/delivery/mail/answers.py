"""What an answer of a mail server means for a digest (pure).

    2xx                              accepted
    421, 432, 454, 5.4.5             the server as a whole can take nothing now
    4xx                              again; after 450 and 451 later, as servers that greylist want it
    refused at the start, at TLS,    a matter between the server and the file, whatever the digest: again, like a
      at AUTH, or the sender           webhook's 401
    5xx to a recipient, or to        refused: three attempts, then dead
      the content

Invariants: `cause` is in our words, with the server's codes alone; the server's text stands in `answer`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from nsqdigest.base.reasons import Verdict
from nsqdigest.delivery.sinks.base import Outcome

GREYLISTED_S = 300.0
"""Servers that greylist take a mail after some minutes, mostly five; an attempt before that begins anew."""
LONGEST_ANSWER = 2_000
_ENHANCED = re.compile(r"[245]\.\d{1,3}\.\d{1,3}(?=\s|$)")
_LATER = frozenset({450, 451})
_SERVER_IS_UNWELL = frozenset({421, 432, 454})
_OVER_QUOTA = "5.4.5"
_WORDS = {
    421: "the server takes nothing now", 432: "too many connections", 450: "mailbox not available now",
    451: "error of the server", 452: "no room", 454: "not available now", 500: "command not known",
    501: "argument not accepted", 502: "command not implemented", 503: "not in this order",
    504: "argument not implemented", 521: "takes no mail", 523: "larger than the server allows",
    530: "login required", 534: "this way to log in is not enough", 535: "user or password wrong",
    538: "login needs TLS", 550: "not accepted", 551: "not here", 552: "over its limit",
    553: "address not accepted", 554: "refused", 555: "argument not known", 556: "domain takes no mail",
}  # fmt: skip


class Stage(StrEnum):
    """The step of a conversation that an answer belongs to, as operators know it."""

    GREETING = "greeting"
    HELLO = "EHLO"
    TLS = "STARTTLS"
    AUTH = "AUTH"
    SENDER = "MAIL FROM"
    RECIPIENT = "RCPT TO"
    CONTENT = "content"
    """DATA, and after the final dot."""
    IDLE = "NOOP"


_ABOUT_THE_SERVER = frozenset({Stage.GREETING, Stage.HELLO, Stage.TLS, Stage.AUTH, Stage.IDLE})
_TOO_LARGE = frozenset({523, 552})


class Refusal(NamedTuple):
    stage: Stage
    code: int
    text: str
    """The server's."""

    @property
    def enhanced(self) -> str:
        found = _ENHANCED.match(self.text)
        return found[0] if found else ""

    @property
    def is_for_good(self) -> bool:
        """Of a recipient. Old servers say 552 where 452 is meant."""
        return self.code >= 500 and self.code != 552 and self.enhanced != _OVER_QUOTA


def shown(refusal: Refusal) -> str:
    words = _WORDS.get(refusal.code, "later" if refusal.code < 500 else "refused")
    codes = f"{refusal.code} {refusal.enhanced}".rstrip()
    return f"{codes}: {words} ({refusal.stage})"


def verdict_of(refusal: Refusal) -> Verdict:
    code, stage = refusal.code, refusal.stage
    if code in _SERVER_IS_UNWELL or stage in _ABOUT_THE_SERVER or refusal.enhanced == _OVER_QUOTA or code == 530:
        return Verdict.UNAVAILABLE
    if stage is Stage.RECIPIENT:
        return Verdict.REFUSED if refusal.is_for_good else Verdict.AGAIN
    if code < 500:
        return Verdict.AGAIN
    if stage is Stage.SENDER and code not in _TOO_LARGE:
        return Verdict.UNAVAILABLE
    return Verdict.REFUSED


def outcome_of(refusal: Refusal, others: str = "") -> Outcome:
    """`others`: the end of the cause."""
    verdict = verdict_of(refusal)
    wait_s = GREYLISTED_S if verdict is Verdict.AGAIN and refusal.code in _LATER else 0.0
    return Outcome(verdict, shown(refusal) + others, refusal.code, wait_s, refusal.text[:LONGEST_ANSWER])


def of_recipients(refused: list[tuple[str, Refusal]], of: int) -> Outcome:
    """Of a mail that nobody took, or that not everybody took yet: the hopeful one decides."""
    worst = min(refused, key=lambda each: (each[1].is_for_good, verdict_of(each[1]) is not Verdict.UNAVAILABLE))
    count = f", {len(refused)} of {of} recipients" if of > 1 else ""
    return outcome_of(worst[1], count)
