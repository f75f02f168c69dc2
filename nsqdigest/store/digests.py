"""What delivery does in the store: claims timelines that are due, opens their digests, reads them, ends them.

One method for each script, and two that read. Whatever can be done of many digests is done of many in one call.

Invariants:
- Nothing here tries again, and no call is cancelled once it was sent: what fails is a `StoreError`, and the caller
  decides.
- Answers are per digest: one whose own keys are damaged is `DAMAGED`, and its neighbours are not concerned.
- An id is never used again, and its snapshot is frozen: records that were read between two looks at the same id are its
  records.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from nsqdigest.base.errors import Applied, StoreError
from nsqdigest.store.answers import Claim, Claimed, Ended, NotOpened
from nsqdigest.store.dead import revive
from nsqdigest.store.head import Head, zone_of
from nsqdigest.store.keys import Keys
from nsqdigest.store.namespace import Namespace
from nsqdigest.store.record import Columns, StoredRecord, shown_keys, timestamp_ms
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import EXEMPT_MS, Schedule, instant_ms
from nsqdigest.store.servers.resp import Arguments, Command, encode, packed, reader

_as_claim = tuple.__new__
"""Of a tuple: its own way of being made costs as much as all else of one."""

T = TypeVar("T")
K = TypeVar("K")

READ_WHOLE_RECORDS = 64
"""A digest of so many records is read in one piece; of a larger one nobody knows how large it is before."""


class Opening(NamedTuple):
    claim: Claim
    new_id: str
    """Of the digest, unless it was opened before."""


class End(StrEnum):
    """The word of lua/delivery/finish.lua."""

    CLOSE = "close"
    WAIT = "wait"
    BURY = "bury"


_as_ending = tuple.__new__


class Ending(NamedTuple):
    """What became of a digest. A claim without a digest can only wait again."""

    claim: Claim
    kind: End
    digest_id: str
    after: Schedule
    posts: int = 0
    details: bytes = b""

    @classmethod
    def close(cls, claim: Claim, digest_id: str, after: Schedule) -> Ending:
        """It was delivered."""
        return _as_ending(cls, (claim, End.CLOSE, digest_id, after, 0, b""))

    @classmethod
    def wait(cls, claim: Claim, until_ms: int, posts: int) -> Ending:
        """It is to be tried again; `posts` that ended without success count as attempts."""
        return cls(claim, End.WAIT, "", Schedule(until_ms, until_ms), posts)

    @classmethod
    def bury(cls, claim: Claim, digest_id: str, after: Schedule, details: bytes) -> Ending:
        """It cannot be delivered: it goes to the dead store."""
        return cls(claim, End.BURY, digest_id, after, 0, details)


class Digests:
    def __init__(self, namespace: Namespace, routes: Mapping[str, StoreRoute]) -> None:
        self._namespace = namespace
        self._routes = routes
        self._forgotten: Counter[str] = Counter()
        self.exempt_damage: dict[int, StoreError] = {}
        """By partition, why retries that are exempt from quiet hours wait until these end."""
        self.routes_changed()

    def routes_changed(self) -> None:
        self._zoned = frozenset(name for name, route in self._routes.items() if route.is_zoned)
        self._quiet = {name: route.quiet for name, route in self._routes.items() if route.quiet is not None}
        """Routes whose policy has quiet hours."""

    @property
    def partitions(self) -> int:
        return self._namespace.partitions

    def now_ms(self) -> int:
        """By Redis' clock."""
        return self._namespace.clock.now_ms()

    # -- which timelines

    async def agenda(self, partition: int, within_ms: int) -> dict[str, int]:
        """Of which routes something may be due by now or so soon, and when at the earliest. In quiet hours that is when
        they end, but for what is exempt from them."""
        tag = self._namespace.tags[partition]
        commands: list[Command] = [
            [b"TIME"],
            [b"ZRANGEBYSCORE", tag + b"agenda", b"-inf", self.now_ms() + within_ms, b"WITHSCORES"],
        ]
        looks = [self._namespace.send_together(partition, commands)]
        if self._quiet and self._quiet_now():
            first: Command = [b"ZRANGE", self._exempt(partition), 0, _EXEMPT_LOOKED_AT - 1, b"WITHSCORES"]
            looks.append(self._exempt_retries(partition, first))
        ((seconds, microseconds), flat), *exempt = await asyncio.gather(*looks)
        self._namespace.clock.observe(int(seconds) * 1000 + int(microseconds) // 1000)
        from_name = len(tag + b"waiting:")
        found = {
            waiting[from_name:].decode("utf-8", "replace"): instant_ms(due)
            for waiting, due in zip(flat[::2], flat[1::2], strict=True)
        }
        return found if not self._quiet else self._released(found, _first_by_route(exempt[0]) if exempt else {})

    async def _exempt_retries(self, partition: int, command: Command) -> list[Any]:
        """Reads the zset of exempt retries: an empty answer if something else wrote its key, for that concerns no route
        without quiet hours."""
        try:
            (found,) = await self._namespace.send_together(partition, [command])
        except StoreError as error:
            if not error.is_damage:
                raise
            key = self._exempt(partition).decode()
            self.exempt_damage[partition] = StoreError(error.reason, f"the key {key} has another type")
            return []
        self.exempt_damage.pop(partition, None)
        return list(found)

    def _released(self, agenda: Mapping[str, int], exempt_ms: Mapping[str, int]) -> dict[str, int]:
        """What is due is so now: that it came due before the quiet hours began does not help it. `exempt_ms`: the first
        retry of a route that they do not hold back."""
        ends_ms = self._quiet_now()
        return {
            name: min(ends_ms[name], exempt_ms.get(name, ends_ms[name]))
            if name in ends_ms and EXEMPT_MS < due_ms < ends_ms[name]
            else due_ms
            for name, due_ms in agenda.items()
        }

    def _quiet_now(self) -> dict[str, int]:
        """Which routes have quiet hours now, and when these end."""
        now_ms = self.now_ms()
        ends = ((name, quiet.end_ms(now_ms)) for name, quiet in self._quiet.items())
        return {name: end_ms for name, end_ms in ends if end_ms is not None}

    async def claim(
        self,
        partition: int,
        routes: Sequence[tuple[str, int]],
        budgets: Sequence[int],
        lease_ms: int,
        token: str | None = None,
    ) -> Claimed:
        """Takes what is due; of a route that has quiet hours now, what is exempt from them. Each route draws on the
        budget whose number stands beside it.

        With a token of its own the caller can `claim_again` what a call took whose answer was lost.
        """
        ends_ms = self._quiet_now() if self._quiet else {}
        of_routes = (
            (-budget - 1 if route in ends_ms else budget + 1, self._routes[route].increment_ms)
            for route, budget in routes
        )
        names = [route for route, _ in routes]
        token = token or new_token()
        claimed = await self._claim(partition, names, lease_ms, token, budgets=budgets, of_routes=of_routes)
        if not ends_ms:
            return claimed
        next_ms = [ends_ms[route] for route in names if route in ends_ms]
        if claimed.next_due_ms is not None:
            next_ms.append(claimed.next_due_ms)
        return Claimed(claimed.claims, min(next_ms, default=None))

    async def claim_again(self, partition: int, routes: Sequence[str], lease_ms: int, token: str) -> list[Claim]:
        """What a claim with this token took."""
        of_routes = ((0, 0) for _ in routes)
        return (await self._claim(partition, routes, lease_ms, token, budgets=(), of_routes=of_routes)).claims

    async def _claim(
        self,
        partition: int,
        routes: Sequence[str],
        lease_ms: int,
        token: str,
        *,
        budgets: Sequence[int],
        of_routes: Iterable[tuple[int, int]],
    ) -> Claimed:
        of = [self._namespace.keys[partition, route] for route in routes]
        keys = [key for each in of for key in (each.waiting, each.leased, each.tokens, each.schedules)]
        now_ms, next_due, *flat = await self._namespace.run(
            partition,
            "claim",
            [*keys, self._namespace.tags[partition] + b"agenda", self._exempt(partition)],
            [b"", lease_ms, token, len(budgets), *budgets, *chain.from_iterable(of_routes)],
        )
        self._namespace.clock.observe(now_ms)
        found: Iterable[tuple[int, bytes, int]] = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        if not _is_text(b"\n".join(flat[1::3])):
            # Something else wrote it: it stays leased, and stops no other.
            found = (each for each in found if _is_text(each[1]))
        claims = [
            _as_claim(Claim, (partition, routes[number - 1], timeline.decode(), instant_ms(due), token, "", ""))
            for number, timeline, due in found
        ]
        if self._zoned:
            claims = await self._with_zones(partition, claims)
        return Claimed(claims, instant_ms(next_due) if next_due else None)

    async def _with_zones(self, partition: int, claims: list[Claim]) -> list[Claim]:
        """Reads the zones of timelines that have their own."""
        zoned = [claim for claim in claims if claim.route in self._zoned]
        if not zoned:
            return claims
        heads_of = [
            [b"HGET", self._namespace.keys[partition, claim.route].heads, claim.timeline.encode()] for claim in zoned
        ]
        names = [f"{claim.route}:{claim.timeline}" for claim in zoned]
        try:
            heads, retries = await asyncio.gather(
                self._namespace.send(partition, heads_of),
                self._exempt_retries(partition, [b"ZMSCORE", self._exempt(partition), *names]),
            )
        except StoreError as error:  # whatever became of the reading: the claims are ours
            raise StoreError(error.reason, "the zones of claimed timelines", Applied.AMBIGUOUS) from error
        known = {}
        for claim, head, retry_ms in zip(zoned, heads, retries or [None] * len(zoned), strict=True):
            is_exempt = retry_ms is not None and instant_ms(retry_ms) == claim.due_ms
            due_ms = EXEMPT_MS if is_exempt else claim.due_ms
            zone = zone_of(head)
            known[claim.route, claim.timeline] = claim._replace(
                zone=zone, scheduled_as=f"{claim.route} {zone}" if zone else "", due_ms=due_ms
            )
        return [known.get((claim.route, claim.timeline), claim) for claim in claims]

    # -- their digests

    async def open(
        self, partition: int, openings: Sequence[Opening], next_earliest_ms: Mapping[str, Sequence[int]]
    ) -> list[Head | NotOpened]:
        """`next_earliest_ms`: by what a claim is scheduled as, of iteration 1, 2, …; the last stands for later ones.

        Asked again with the same ids after a lost answer it returns the same digests with the same numbers, in
        whatever order Redis carries the calls out.
        """
        claims = [opening.claim for opening in openings]
        routes = {claim.scheduled_as or claim.route: claim.route for claim in claims}
        numbers = {each: number for number, each in enumerate(routes, 1)}
        own = self._own_keys(partition, claims, lambda keys: keys.to_open)
        keys = [*self._shared_keys(partition, routes.values()), *own]
        arguments: list[bytes | str | int] = [b"", len(routes)]
        for scheduled_as, name in routes.items():
            route, instants = self._routes[name], next_earliest_ms[scheduled_as]
            name_from = len(self._namespace.keys[partition, name].index)
            arguments += (name_from, route.capacity if route.merges else 0, len(instants), *instants)
        for (name, scheduled_as, token), run in _runs(openings, _how_it_opens):
            new_ids = [opening.new_id for opening in run]
            arguments += (numbers[scheduled_as or name], token, len(run), *map(str.encode, new_ids))
        now_ms, *answers = await self._namespace.run(partition, "open", keys, [packed(arguments)], durable=True)
        self._namespace.clock.observe(now_ms)
        opened: list[Head | NotOpened] = []
        for opening, word, text in zip(openings, answers[::2], answers[1::2], strict=True):
            if word in _OPENED:
                opened.append(_head_of(text))
            elif word == b"burying":
                opened.append(await self._bury_again(opening.claim, text))
            elif word == b"reviving":
                opened.append(await self._revive_again(opening.claim, text))
            else:
                opened.append(NotOpened(word.decode()))
        return opened

    async def _bury_again(self, claim: Claim, text: bytes) -> NotOpened:
        """Ends what a bury that was cut off began; its details are in the dead store already."""
        try:
            digest_id, next_ms = text.decode().split(" ")
            after = Schedule(int(next_ms), int(next_ms))
        except ValueError:
            return NotOpened.DAMAGED
        await self.finish(claim.partition, [Ending.bury(claim, digest_id, after, b"")])
        return NotOpened.STALE

    async def _revive_again(self, claim: Claim, text: bytes) -> NotOpened:
        """Ends what a revival that was cut off began: the digest is due again at once."""
        head = _head_of(text)
        if isinstance(head, NotOpened):
            return head
        await revive(self._namespace, claim.partition, claim.route, claim.timeline.encode(), head)
        return NotOpened.STALE

    async def renew(self, claim: Claim, lease_ms: int) -> bool:
        """Returns whether it is still ours."""
        keys, name = self._of(claim)
        answer = await self._namespace.run(claim.partition, "renew", keys.of(name), [b"", name, claim.token, lease_ms])
        return bool(answer[0] == b"renewed")

    async def finish(self, partition: int, endings: Sequence[Ending]) -> list[Ended]:
        """What became of each."""
        claims = [ending.claim for ending in endings]
        routes = self._numbers_of(claims)
        dead = self._namespace.dead_keys[partition]
        own = self._own_keys(partition, claims, lambda keys: keys.to_finish)
        keys = [*self._shared_keys(partition, routes), *own, dead.dead, dead.details, self._exempt(partition)]
        arguments: list[bytes | str | int] = [b"", len(routes), len(endings)]
        for name in routes:
            route = self._routes[name]
            name_from = len(self._namespace.keys[partition, name].snapshot)
            arguments += (name_from, route.increment_ms, route.memory_ms, route.remembered_keys)
        for (name, token, kind, posts, after), run in _runs(endings, _how_it_ends):
            word = _RETRY if kind is End.WAIT and self._routes[name].has_quiet_hours else kind
            digest_ids = [ending.digest_id for ending in run]
            arguments += (routes[name], word, token, posts, *after, len(run), *map(str.encode, digest_ids))
        for ending in endings:
            if ending.kind is End.BURY:
                arguments.append(ending.details)
                keys += dead.of_digest(ending.digest_id)
        words = await self._namespace.run(partition, "finish", keys, [packed(arguments)])
        return [_ENDED.get(word) or self._ended(word, claim.route) for word, claim in zip(words, claims, strict=True)]

    def _ended(self, word: bytes, route: str) -> Ended:
        """Count the keys that the memory let go. Return what became of the digest."""
        word, _, forgotten = word.partition(b" ")
        self._forgotten[route] += int(forgotten)
        return _ENDED[word]

    def take_forgotten(self) -> Counter[str]:
        """Return by route how many keys were forgotten before their time since the last call."""
        taken, self._forgotten = self._forgotten, Counter()
        return taken

    # -- their records

    async def read(self, partition: int, digests: Sequence[tuple[Claim, Head]]) -> list[Columns | None]:
        """Read all records of digests with at most READ_WHOLE_RECORDS, the newest first. A digest whose lease was lost
        is None."""
        members: list[bytes] = []
        values: list[bytes] = []
        heads: list[bytes] = []
        for route, run in groupby(digests, lambda digest: digest[0].route):
            keys = self._namespace.keys[partition, route]
            names = [claim.timeline.encode() for claim, _ in run]
            members += _members_of(keys.snapshot, names)
            values += _values_of(keys.snapshot_values, names)
            heads.append(encode([b"HMGET", keys.heads, Arguments(names)]))
        answers = await self._namespace.send(partition, [*members, *values, *heads])
        ends = len(digests), 2 * len(digests)
        found = zip(digests, answers[: ends[0]], answers[ends[0] : ends[1]], chain(*answers[ends[1] :]), strict=True)
        return [
            _columns(head, members, values) if _is_of(text, head.id) else None
            for (_, head), members, values, text in found
        ]

    async def page(self, claim: Claim, head: Head, start: int, count: int) -> list[StoredRecord | None] | None:
        """`count` records from `start` on, in the same order. Returns None if the digest is no longer there."""
        keys, name = self._of(claim)
        look: list[bytes | str | int] = [b"HGET", keys.heads, name]
        before, size, members = await self._namespace.send(
            claim.partition,
            [
                look,
                [b"ZCARD", keys.snapshot + name],
                [b"ZRANGE", keys.snapshot + name, start, start + count - 1, b"WITHSCORES"],
            ],
        )
        if not _is_of(before, head.id) or size != head.total or len(members) != 2 * min(count, head.total - start):
            return None
        if not members:
            return []
        keys_read = members[::2]
        values, after = await self._namespace.send(
            claim.partition, [[b"HMGET", keys.snapshot_values + name, *keys_read], look]
        )
        if not _is_of(after, head.id):
            return None
        return Columns(shown_keys(keys_read), members[1::2], values).records()

    async def oldest_ms(self, claim: Claim) -> int:
        """The timestamp of the oldest record of the digest under way; 0 where there is none."""
        keys, name = self._of(claim)
        (flat,) = await self._namespace.send(
            claim.partition, [[b"ZRANGE", keys.snapshot + name, -1, -1, b"WITHSCORES"]]
        )
        return timestamp_ms(flat[1]) if flat else 0

    # -- below

    def _of(self, claim: Claim) -> tuple[Keys, bytes]:
        return self._namespace.keys[claim.partition, claim.route], claim.timeline.encode()

    # The keys of a script on many timelines, in the order of lua/lib/route_keys.lua.

    def _numbers_of(self, claims: Sequence[Claim]) -> dict[str, int]:
        """Their routes, numbered from 1."""
        return {name: number for number, name in enumerate(dict.fromkeys([claim.route for claim in claims]), 1)}

    def _shared_keys(self, partition: int, routes: Iterable[str]) -> list[bytes | Arguments]:
        of = [self._namespace.keys[partition, name] for name in routes]
        return [*chain.from_iterable(each.of_route for each in of), *of[0].of_partition]

    def _exempt(self, partition: int) -> bytes:
        return self._namespace.tags[partition] + b"exempt"

    def _own_keys(
        self, partition: int, claims: Sequence[Claim], prefixes_of: Callable[[Keys], Sequence[bytes]]
    ) -> list[Arguments]:
        return [
            Arguments(
                [claim.timeline.encode() for claim in of_route], prefixes_of(self._namespace.keys[partition, route])
            )
            for route, of_route in groupby(claims, attrgetter("route"))
        ]


def new_token() -> str:
    """Of a claim. It is longer than 64 bytes: Redis searches a hash of short values from end to end."""
    return secrets.token_hex(33)


_members_of = reader(b"ZRANGE", b"0", b"%d" % READ_WHOLE_RECORDS, b"WITHSCORES")
_values_of = reader(b"HGETALL")
_how_it_opens = attrgetter("claim.route", "claim.scheduled_as", "claim.token")
_how_it_ends = attrgetter("claim.route", "claim.token", "kind", "posts", "after")
_EXEMPT_LOOKED_AT = 500
"""As lua/delivery/claim.lua looks at them."""
_RETRY = "retry"
"""The word of lua/delivery/finish.lua for what waits again where its route has quiet hours."""
_OPENED = frozenset((b"opened", b"again", b"merged"))
_ENDED = {
    b"closed": Ended.DONE,
    b"waiting": Ended.DONE,
    b"buried": Ended.DONE,
    b"already": Ended.ALREADY,
    b"stale": Ended.STALE,
    b"damaged": Ended.DAMAGED,
    b"later": Ended.LATER,
}


def _first_by_route(flat: Sequence[bytes]) -> dict[str, int]:
    """Of ROUTE:TIMELINE and instant in turn, in the order of the instants."""
    found: dict[str, int] = {}
    for name, due in zip(flat[::2], flat[1::2], strict=True):
        found.setdefault(name.partition(b":")[0].decode("utf-8", "replace"), instant_ms(due))
    return found


def _runs(items: Sequence[T], by: Callable[[T], K]) -> Iterator[tuple[K, list[T]]]:
    """Neighbours that are alike."""
    return ((key, list(run)) for key, run in groupby(items, by))


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _head_of(text: bytes) -> Head | NotOpened:
    try:
        return Head.parse(text)
    except (KeyError, ValueError):  # something else wrote it
        return NotOpened.DAMAGED


def _is_of(head: bytes | None, digest_id: str) -> bool:
    # `in` first asks whether what it looks for is a number, which costs more than the search.
    return head is not None and head.find(f" id={digest_id} ".encode()) >= 0


_as_columns = tuple.__new__


def _columns(head: Head, members: Any, flat_values: Any) -> Columns | None:
    if len(members) != 2 * head.total:
        return None
    keys, pairs = members[::2], iter(flat_values)
    value_of = dict(zip(pairs, pairs))  # noqa: B905 - Redis answers pairs, and to ask for `strict` costs as much again
    return _as_columns(Columns, (shown_keys(keys), members[1::2], [*map(value_of.get, keys)]))
