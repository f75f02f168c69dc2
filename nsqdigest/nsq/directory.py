"""Which nsqds are known to have a topic, and from which sources (pure: answers and `now` in, changes out).

An address has sources: the file, and the nsqlookupds that name it. Only an answer is a fact: the failure of a
nsqlookupd neither proves that an nsqd is there nor that it is gone.

Invariants:
- An address that any source names is known, once, however many name it.
- A nsqlookupd stops being a source of an address after three answers in a row that do not name it.
- An address that `nsq.allow_nsqds` does not list has no source but the file.
- An address without a source is forgotten once nothing is connected to it: a live connection proves more than any
  directory. The file's addresses are never forgotten.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from nsqdigest.backoff import retry_wait_ms
from nsqdigest.base.allowed_hosts import Allowed
from nsqdigest.base.errors import LookupFailed
from nsqdigest.base.host_names import is_host
from nsqdigest.base.reasons import LookupProblem

if TYPE_CHECKING:
    from nsqdigest.config import Address, Nsq

FORGET_AFTER_ANSWERS = 3
MOST_PRODUCERS = 1000
"""In one answer. No topic has so many: such an answer is not a nsqlookupd's, or its directory is broken."""
FILE = "file"
BROADCAST_HINT = "give that nsqd a -broadcast-address that can be reached from here"
ALLOW_HINT = "if that nsqd is yours, add its host or network to nsq.allow_nsqds"

UNKNOWN_TOPIC_MS = 5000
"""The longest wait before the next lookup of a topic that no nsqlookupd has named yet."""
_ASK_AGAIN_FIRST_MS = 1000
_CODE = re.compile(r"[A-Z_]{1,60}")
_SHOWN_CHARACTERS = 60


# -- what a nsqlookupd answers


class _Producer(msgspec.Struct):
    broadcast_address: str
    tcp_port: int
    http_port: int = 0


class _Lookup(msgspec.Struct):
    producers: list[_Producer]


class _Answer(msgspec.Struct):
    """Of nsqlookupd 1.x; older ones put the same into an envelope."""

    producers: list[_Producer] | None = None
    data: _Lookup | None = None
    status_code: int = 0
    status_txt: str = ""
    message: str = ""


class Named(NamedTuple):
    addresses: frozenset[tuple[str, int]]
    unusable: frozenset[str]
    """Broadcast addresses that cannot be an address."""
    http: frozenset[tuple[str, int]] = frozenset()
    """The HTTP addresses of these nsqds."""
    refused: frozenset[tuple[str, int]] = frozenset()
    """Addresses that the file does not allow."""


def allowed_nsqds(settings: Nsq) -> Allowed | None:
    """None: all."""
    return Allowed(settings.allow_nsqds) if settings.allow_nsqds else None


def _is_refused(host: str, allowed: Allowed | None) -> bool:
    return allowed is not None and not allowed.as_written(host)


def read_answer(status: int, body: bytes, allowed: Allowed | None) -> Named:
    """The nsqds that an answer to `/lookup` names. Raises LookupFailed where it is no such answer.

    "No nsqd has this topic" is an ordinary answer. A broadcast address that cannot be an address is left out: one
    nsqd's mistake must not hide the others. So is one that is not allowed: anybody may register it.
    """
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        if status != 200:
            raise LookupFailed(LookupProblem.STATUS, f"status {status}: is it a nsqlookupd?") from None
        raise LookupFailed(LookupProblem.GARBAGE, f"not the answer of a nsqlookupd: {error}") from None
    why = answer.message or answer.status_txt
    if "TOPIC_NOT_FOUND" in (answer.message, answer.status_txt):
        return Named(frozenset(), frozenset())
    status = answer.status_code or status
    if status != 200:
        # nsqlookupd's codes are shown. Another server's text is not: it may quote anything.
        shown = why if _CODE.fullmatch(why) else "is it a nsqlookupd?" if why else "no reason given"
        raise LookupFailed(LookupProblem.STATUS, f"status {status}: {shown}")
    producers = answer.producers if answer.data is None else answer.data.producers
    if producers is None:
        raise LookupFailed(LookupProblem.GARBAGE, "not the answer of a nsqlookupd: it has no list of producers")
    if len(producers) > MOST_PRODUCERS:
        raise LookupFailed(LookupProblem.TOO_LARGE, f"names {len(producers)} nsqds; {MOST_PRODUCERS} is the most")
    addresses, unusable, http, refused = set(), set(), set(), set()
    for producer in producers:
        host = usual_host(producer.broadcast_address)
        if not (1 <= producer.tcp_port <= 65535 and is_host(host)):
            unusable.add(f"{producer.broadcast_address[:_SHOWN_CHARACTERS]}:{producer.tcp_port}")
        elif _is_refused(host, allowed):
            refused.add((host, producer.tcp_port))
        else:
            addresses.add((host, producer.tcp_port))
            if 1 <= producer.http_port <= 65535:
                http.add((host, producer.http_port))
    return Named(frozenset(addresses), frozenset(unusable), frozenset(http), frozenset(refused))


def usual_host(host: str) -> str:
    """The spelling by which hosts are compared: names in small letters, IPv6 shortened and without brackets."""
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower().removesuffix(".")


# -- when to ask


def poll_wait_s(interval_ms: int, jitter: float, failures: int, uniform: Callable[[float, float], float]) -> float:
    """Until the next round: the interval, plus up to `jitter` of it. After `failures` rounds in a row it is shorter at
    first (a nsqlookupd may just be starting) and never longer than the interval."""
    if failures:
        return retry_wait_ms(failures, min(_ASK_AGAIN_FIRST_MS, interval_ms), interval_ms, uniform) / 1000
    return interval_ms / 1000 * (1 + uniform(0.0, jitter))


# -- what is known


class Entry(NamedTuple):
    sources: tuple[str, ...]
    """`file`, and nsqlookupds. Empty: known only as long as its connection lives."""
    seen_s: float
    """When a source last named it."""


class Change(NamedTuple):
    found: tuple[Address, ...] = ()
    returned: tuple[Address, ...] = ()
    """Known, and named again by a nsqlookupd whose last answer did not name it: worth a try at once."""
    forgotten: tuple[Address, ...] = ()
    leaving: tuple[Address, ...] = ()
    """Connected, and taken out of the file, or no longer allowed: their connections are to end."""


class Directory:
    def __init__(self, fixed: Iterable[Address], now_s: float) -> None:
        self._fixed = frozenset(_usual(address) for address in fixed)
        self._seen_s = dict.fromkeys(sorted(self._fixed), now_s)
        self._misses: dict[Address, dict[str, int]] = {address: {} for address in self._seen_s}
        """By address and nsqlookupd that is a source of it: answers in a row without the address."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        return tuple(self._seen_s)

    def entry(self, address: Address) -> Entry:
        of_file = (FILE,) if address in self._fixed else ()
        return Entry((*of_file, *sorted(self._misses[address])), self._seen_s[address])

    def answered(self, lookupd: str, named: Iterable[Address], connected: Collection[Address], now_s: float) -> Change:
        """To be called with one nsqlookupd's whole answer, and all addresses that are connected now."""
        named = frozenset(_usual(address) for address in named)
        found = tuple(sorted(named - self._seen_s.keys()))
        returned = tuple(address for address in self._seen_s if address in named and self._was_missed(address, lookupd))
        for address in sorted(named):
            self._misses.setdefault(address, {})[lookupd] = 0
            self._seen_s[address] = now_s
        for address, misses in self._misses.items():
            if lookupd in misses and address not in named:
                misses[lookupd] += 1
                if misses[lookupd] >= FORGET_AFTER_ANSWERS:
                    del misses[lookupd]
        forgotten = tuple(
            address for address in self._seen_s if not self._has_source(address) and address not in connected
        )
        for address in forgotten:
            self._forget(address)
        return Change(found, returned, forgotten)

    def change(
        self,
        fixed: Iterable[Address],
        gone: Collection[str],
        allowed: Allowed | None,
        connected: Collection[Address],
        now_s: float,
    ) -> Change:
        """Another file: its addresses, the nsqlookupds that it no longer names, and the nsqds that it allows. An
        address that only such a nsqlookupd named stays while it is connected: its nsqd may be one that the others are
        about to name."""
        before, self._fixed = self._fixed, frozenset(_usual(address) for address in fixed)
        found = tuple(sorted(self._fixed - self._seen_s.keys()))
        for address in self._fixed - before:
            self._seen_s[address] = now_s
            self._misses.setdefault(address, {})
        for misses in self._misses.values():
            for lookupd in gone:
                misses.pop(lookupd, None)
        refused = {address for address in self._misses if _is_refused(address.host, allowed)}
        for address in refused:
            self._misses[address].clear()
        unsourced = [address for address in self._seen_s if not self._has_source(address)]
        forgotten = tuple(address for address in unsourced if address not in connected)
        for address in forgotten:
            self._forget(address)
        leaving = tuple(each for each in unsourced if each in connected and (each in before or each in refused))
        return Change(found, (), forgotten, leaving)

    def forget_if_unsourced(self, address: Address) -> bool:
        """To be called when nothing is connected to it any more. Returns whether it is forgotten now."""
        if self._has_source(address):
            return False
        self._forget(address)
        return True

    def _was_missed(self, address: Address, lookupd: str) -> bool:
        return self._misses[address].get(lookupd, 1) > 0

    def _has_source(self, address: Address) -> bool:
        return address in self._fixed or bool(self._misses[address])

    def _forget(self, address: Address) -> None:
        del self._seen_s[address], self._misses[address]


def _usual(address: Address) -> Address:
    return address._replace(host=usual_host(address.host))
