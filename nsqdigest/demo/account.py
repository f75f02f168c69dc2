"""Whether each event arrived (pure). It trusts no counter of the daemon: only arrival at a receiver counts.

A good event has arrived when a digest that the receiver accepted shows it; a broken one when its dead letter, with the
same bytes, has come. A published event that has not arrived is open; one that is open in the end is lost.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from typing import Any, NamedTuple

import msgspec

from nsqdigest.base.words import counted, listed


class Account:
    def __init__(self) -> None:
        self.published = 0
        self.delivered = 0
        self.repeated = 0
        """Shown once more in another digest."""
        self.digests: dict[str, bytes] = {}
        """By id, the hash of the body."""
        self.came_again = 0
        """Digests, with the same id and the same bytes."""
        self.dead_letters = 0
        self.broken = 0
        self.complaints: list[str] = []
        """Things that happened and never should."""
        self._open: set[int] = set()
        self._open_broken: Counter[bytes] = Counter()

    @property
    def open(self) -> int:
        return len(self._open) + self._open_broken.total()

    @property
    def is_right(self) -> bool:
        return not self.open and not self.complaints

    def published_event(self, number: int) -> None:
        self.published += 1
        self._open.add(number)

    def published_broken(self, body: bytes) -> None:
        self.published += 1
        self.broken += 1
        self._open_broken[body] += 1

    def accepted(self, body: bytes) -> dict[str, Any] | None:
        """To be called with a digest whose signature is right. Returns its data; None for one that came before."""
        digest: dict[str, Any] = msgspec.json.decode(body)["data"]
        identity, print_of_body = digest["id"], hashlib.sha256(body).digest()
        if identity in self.digests:
            if self.digests[identity] != print_of_body:
                self.complaints.append(f"digest {identity} came with two bodies")
            else:
                self.came_again += 1
            return None
        self.digests[identity] = print_of_body
        if digest["shown"] != digest["total"]:
            self.complaints.append(f"digest {identity} shows {digest['shown']} of {digest['total']} events")
        for record in records_of(digest):
            number = record["value"]["id"]
            if number in self._open:
                self._open.remove(number)
                self.delivered += 1
            else:
                self.repeated += 1
        return digest

    def dead_lettered(self, letter: dict[str, Any]) -> bytes:
        """Returns the body of the message that died."""
        body = base64.b64decode(letter["body"])
        self.dead_letters += 1
        if self._open_broken[body]:
            self._open_broken[body] -= 1
        else:
            self.complaints.append(f"a dead letter that nobody expected: {letter['reason']}")
        return body


class Troubles(NamedTuple):
    """What was done to the parts on the way."""

    redis_away_s: float = 0.0
    kills: int = 0


def in_one_sentence(account: Account, troubles: Troubles) -> str:
    """What became of all of it: events, messages, troubles, losses."""
    digests = len(account.digests)
    ratio = account.delivered / digests if digests else 0
    fewer = f": {ratio:.0f} times fewer interruptions" if ratio >= 1.5 else ""
    said = [f"{counted(account.delivered, 'event')} became {counted(digests, 'message')}{fewer}."]
    happened = []
    if troubles.redis_away_s:
        away_s = f"{troubles.redis_away_s:.1f}".removesuffix(".0")
        happened.append(f"Redis was away for {away_s} s")
    if troubles.kills:
        who = "the daemon was" if troubles.kills == 1 else f"{troubles.kills} daemons were"
        happened.append(f"{who} killed with kill -9")
    if happened:
        text = listed(happened)
        said.append(f"{text[0].upper()}{text[1:]}.")
    return " ".join([*said, f"Lost: {account.open:,}."])


def records_of(digest: dict[str, Any]) -> list[dict[str, Any]]:
    """Newest first; of a grouped digest group by group."""
    if "groups" in digest:
        return [record for group in digest["groups"] for record in group["records"]]
    found: list[dict[str, Any]] = digest["records"]
    return found
