"""The connections of one sink to its mail server, and how a mail goes over one of them.

A mail for several is one mail. Who took it is remembered until everybody did, so that a retry goes to the others alone:
in this process. After a restart it goes to all of them again, under the same Message-ID, by which mail systems know it.
A recipient that is refused for good, or for too long, does not hold the others up: the mail is delivered, and who was
refused is reported.

Invariants:
- A connection carries one mail at a time. There are never more than mails are sent at once; what is not needed for
  IDLE_S is closed, and after MOST_MAILS a new one is begun, as some servers want it.
- A connection that the server closed while it was idle says nothing of its health: the mail goes over a new one.
- Nothing is sent again of which it is not known whether it arrived, but with the same id.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from nsqdigest.base.reasons import Verdict
from nsqdigest.delivery.mail import answers
from nsqdigest.delivery.mail.answers import Refusal
from nsqdigest.delivery.mail.compose import Mail
from nsqdigest.delivery.mail.session import Failed, Server, Session
from nsqdigest.delivery.sinks.base import Outcome

IDLE_S = 30.0
CHECKED_AFTER_S = 3.0
"""An idle connection is asked whether it is still there."""
MOST_MAILS = 100
WAITED_FOR_S = 3600.0
"""Once somebody took a mail, those who cannot take it yet get no more time: the next digest of its timeline waits for
them, and so does everybody else."""
REMEMBERED = 10_000
"""Digests that some of their recipients have taken, at most."""

OnRefused = Callable[[str, str, Refusal], None]
"""A digest's id, a recipient who will not get it although others took the mail, and the server's refusal."""


class Taken(NamedTuple):
    since_s: float
    by: set[str]


class Connections:
    def __init__(self, server: Server, on_refused: OnRefused, *, other_digests_have_others: bool = False) -> None:
        """`other_digests_have_others`: recipients, so that a refusal of one says nothing of these digests."""
        self._server = server
        self._on_refused = on_refused
        self._other_digests_have_others = other_digests_have_others
        self._idle: list[Session] = []
        self._closing: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._taken_by: OrderedDict[str, Taken] = OrderedDict()
        """By digest, while others did not."""

    async def send(self, digest_id: str, mail: Mail) -> Outcome:
        """Raises TimeoutError where its caller's time-out ends it."""
        before = self._taken_by.get(digest_id)
        open_for = [each for each in mail.recipients if before is None or each not in before.by]
        if not open_for:
            return self._ended(digest_id, Outcome(Verdict.DELIVERED, "accepted before"))
        session = None
        try:
            session = await self._begun(mail)
            outcome = await self._exchange(session, digest_id, mail, open_for)
        except Failed as failed:
            outcome = failed.outcome
        except BaseException:
            if session is not None:
                session.abort()
            raise
        return outcome

    # -- one mail

    async def _begun(self, mail: Mail) -> Session:
        """A session that has taken the sender: only then it is known to be alive."""
        while True:
            session, is_fresh = self._take()
            try:
                if is_fresh:
                    await session.open()
                elif time.monotonic() - session.used_at_s > CHECKED_AFTER_S:
                    await session.noop()
                _check(session, mail)
                await session.sender(mail.sender, len(mail.content), utf8=mail.needs_utf8)
            except Failed as failed:
                if not is_fresh and _went_away(failed.refusal):
                    session.abort()
                    continue
                await self._after_refusal(session, failed)
                raise
            except BaseException:
                session.abort()
                raise
            return session

    async def _exchange(self, session: Session, digest_id: str, mail: Mail, open_for: Sequence[str]) -> Outcome:
        refused: list[tuple[str, Refusal]] = []
        try:
            for address in open_for:
                try:
                    await session.recipient(address)
                except Failed as failed:
                    if failed.refusal is None or not session.is_open:
                        raise
                    refused.append((address, failed.refusal))
            if len(refused) < len(open_for):
                await session.content(mail.content)
        except Failed as failed:
            await self._after_refusal(session, failed)
            raise
        if len(refused) < len(open_for):
            self._give_back(session)
        else:
            await self._go_on(session)
        names = {address for address, _ in refused}
        return self._concluded(digest_id, [each for each in open_for if each not in names], refused, len(open_for))

    async def _after_refusal(self, session: Session, failed: Failed) -> None:
        """The connection goes on where the server only refused this mail."""
        if failed.refusal is None or not session.is_open or failed.outcome.verdict is Verdict.UNAVAILABLE:
            session.abort()
        else:
            await self._go_on(session)

    async def _go_on(self, session: Session) -> None:
        try:
            await session.reset()
        except Failed:
            session.abort()
        except BaseException:
            session.abort()
            raise
        else:
            self._give_back(session)

    def _concluded(self, digest_id: str, taken: Sequence[str], refused: list[tuple[str, Refusal]], of: int) -> Outcome:
        if not refused:
            return self._ended(digest_id, Outcome(Verdict.DELIVERED, "250", 250))
        now_s = time.monotonic()
        if taken:
            self._taken_by.setdefault(digest_id, Taken(now_s, set())).by.update(taken)
            while len(self._taken_by) > REMEMBERED:
                self._taken_by.popitem(last=False)
        before = self._taken_by.get(digest_id)
        if before is None:
            outcome = answers.of_recipients(refused, of)
            is_of_sink = outcome.verdict is Verdict.UNAVAILABLE or not self._other_digests_have_others
            return outcome._replace(is_of_sink=is_of_sink)
        if now_s - before.since_s < WAITED_FOR_S and not all(refusal.is_for_good for _, refusal in refused):
            # The server is well: it takes the mail of others.
            return answers.of_recipients(refused, of)._replace(verdict=Verdict.AGAIN, is_of_sink=False)
        for address, refusal in refused:
            self._on_refused(digest_id, address, refusal)
        cause = f"250, refused for {len(refused)} of {of} recipients"
        return self._ended(digest_id, Outcome(Verdict.DELIVERED, cause, 250))

    def _ended(self, digest_id: str, outcome: Outcome) -> Outcome:
        self._taken_by.pop(digest_id, None)
        return outcome

    # -- connections

    def _take(self) -> tuple[Session, bool]:
        """The one used last; and whether it is new."""
        while self._idle:
            session = self._idle.pop()
            if session.is_open:
                return session, False
        return Session(self._server), True

    def _give_back(self, session: Session) -> None:
        session.mails += 1
        session.used_at_s = time.monotonic()
        if self._is_closed or session.mails >= MOST_MAILS or not session.is_open:
            session.close()
            return
        self._idle.append(session)
        if self._closing is None:
            self._closing = asyncio.get_running_loop().call_later(IDLE_S, self._close_idle)

    def _close_idle(self) -> None:
        self._closing = None
        oldest_s = time.monotonic() - IDLE_S
        for session in [each for each in self._idle if each.used_at_s <= oldest_s or not each.is_open]:
            self._idle.remove(session)
            session.close()
        if self._idle:
            self._closing = asyncio.get_running_loop().call_later(IDLE_S, self._close_idle)

    def close(self) -> None:
        self._is_closed = True
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        while self._idle:
            self._idle.pop().close()


def _went_away(refusal: Refusal | None) -> bool:
    """A server ends an idle connection in silence, or with 421."""
    return refusal is None or refusal.code == 421 or refusal.stage is answers.Stage.IDLE


def _check(session: Session, mail: Mail) -> None:
    """What the server would refuse is not sent."""
    largest = session.largest_bytes
    if largest and len(mail.content) > largest:
        cause = f"the mail has {len(mail.content):,} bytes, and the server takes {largest:,}; write a smaller max_body"
        raise Failed(Outcome(Verdict.REFUSED, cause), Refusal(answers.Stage.SENDER, 552, ""))
    if mail.needs_utf8 and not session.takes_utf8:
        cause = "an address has letters that this server does not take (it offers no SMTPUTF8)"
        raise Failed(Outcome(Verdict.REFUSED, cause), Refusal(answers.Stage.SENDER, 553, ""))
