"""The configuration as the daemon gets it: one frozen tree of data, every quantity with its unit in its name.

Invariant: a secret never appears in a repr, a format string or a log field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from nsqdigest.base.conditions import Value
from nsqdigest.base.errors import Mistake
from nsqdigest.base.quiet_hours import Window

MASK = "***"

_CLUSTER_SCHEMES = ("redis+cluster://", "rediss+cluster://")
_CLUSTER_PARTITIONS = 32
_SENTINEL_LOGIN = re.compile(r"(sentinel_(?:password|username)=)[^&]*")


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UnixSocket(NamedTuple):
    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


class Secret:
    """Text that only `reveal()` returns."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


def without_password(url: str) -> str:
    """The URL without user and password: some write the password in the place of the user."""
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    _, at, host = authority.rpartition("@")
    return f"{scheme}{separator}{MASK}@{host}{slash}{path}" if at else url


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Paths are those to open; "" where the file names none."""

    ca_file: str
    cert_file: str
    key_file: str
    insecure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Nsq:
    nsqd_tcp_addresses: tuple[Address, ...]
    lookupd_http_addresses: tuple[Address, ...]
    lookupd_poll_interval_ms: int
    lookupd_poll_jitter: float
    allow_nsqds: tuple[str, ...]
    """Beside those of the file. Empty: all that a nsqlookupd names."""
    channel: str
    max_in_flight: int
    batch_size: int
    heartbeat_interval_ms: int
    msg_timeout_ms: int
    compression: Literal["none", "snappy", "deflate"]
    requeue_delay_ms: int
    dead_letter_topic: str
    auth_secret: Secret | None
    drain_timeout_ms: int
    tls: Tls | None
    """None: in the clear."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    strategy: Literal["exponential", "decorrelated"]
    base_ms: int
    max_duration_ms: int
    jitter: Literal["full", "equal", "none"]
    recovery: Literal["step", "halve"]
    slow_start: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Redis:
    url: str = field(repr=False)
    namespace: str
    timeout_ms: int
    durability: Literal["reply", "replica", "fsync"]
    replicas: int
    partitions: int
    """0: `partition_count` decides. On a single server one is best: a batch is one script call."""
    ca_file: str
    cert_file: str
    key_file: str
    insecure: bool

    @property
    def tls(self) -> Tls | None:
        """None: in the clear."""
        if not self.url.startswith("rediss"):
            return None
        return Tls(ca_file=self.ca_file, cert_file=self.cert_file, key_file=self.key_file, insecure=self.insecure)

    @property
    def shown_url(self) -> str:
        """For logs and messages."""
        return _SENTINEL_LOGIN.sub(rf"\1{MASK}", without_password(self.url))

    @property
    def partition_count(self) -> int:
        return self.partitions or (_CLUSTER_PARTITIONS if self.url.startswith(_CLUSTER_SCHEMES) else 1)

    def __repr__(self) -> str:
        return (
            f"Redis(url={self.shown_url!r}, namespace={self.namespace!r}, timeout_ms={self.timeout_ms}, "
            f"durability={self.durability!r}, replicas={self.replicas}, partitions={self.partitions}, "
            f"tls={self.tls!r})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    interval_ms: int
    lease_ms: int
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    event_bytes: int
    key_bytes: int
    depth: int
    timelines: int
    dead_digests: int
    future_ms: int
    past_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    name: str
    immediate: bool
    minimum_delay_ms: int
    increment_delay_ms: int
    maximum_delay_ms: int
    growth: Literal["none", "exponential"]
    growth_steps: int
    intervals_ms: tuple[int, ...]
    at: tuple[str, ...] = ()
    """Cron expressions. () where delays decide; else all delays are 0."""
    zone: str = "UTC"
    """A name, or a template over the event: then each timeline has its own."""
    zone_default: str = "UTC"
    """Of timelines whose events name none."""
    quiet: tuple[Window, ...] = ()
    capacity: int
    on_retry: Literal["frozen", "merge"]
    dedupe_window_ms: int

    @property
    def is_zoned(self) -> bool:
        """Whether timelines have zones of their own."""
        return "{" in self.zone

    @property
    def common_zone(self) -> str:
        """The zone of all timelines, or of those whose events name none."""
        return self.zone_default if self.is_zoned else self.zone


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """What every sink has. Each kind adds its own in a class of its own, in `delivery/sinks`."""

    name: str
    type: str
    concurrency: int
    timeout_ms: int
    max_attempts: int
    max_age_ms: int
    retry_base_ms: int
    retry_cap_ms: int
    retry_after_max_ms: int
    max_body_bytes: int

    @property
    def spacing_s(self) -> float:
        """From the beginning of one send to that of the next, at least. 0: none."""
        return 0.0


ConditionTable = tuple[tuple[str, tuple[Value, ...]], ...]
"""Paths of fields, each with the values that `base.conditions` reads as a condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    name: str
    topic: str
    match: ConditionTable
    timeline: str
    key: str
    timestamp: str
    group: str
    urgent: ConditionTable
    """The timeline of an event that meets it is due at once; (): of none."""
    cancel: ConditionTable
    """An event that meets it ends the record of its key; (): none does."""
    on_cancel: Literal["tell", "silent"]
    drop: tuple[str, ...]
    max_event_age_ms: int
    """0: no limit."""
    policy: str
    sink: str
    """The file may name several: then each has a route of its own here (`rules.per_sink`)."""

    @property
    def group_path(self) -> tuple[str, ...]:
        """() where it does not group."""
        return tuple(self.group.split(".")) if self.group else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Admin:
    listen: Address | UnixSocket | None
    token: Secret | None
    read_token: Secret | None
    """Reads and changes nothing. None: on this machine no token is needed to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    level: Literal["debug", "info", "warning", "error"]
    format: Literal["auto", "human", "json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    source: str
    """The file, as the user named it."""
    nsq: Nsq
    backoff: Backoff
    redis: Redis
    scheduler: Scheduler
    limits: Limits
    policies: Mapping[str, Policy]
    sinks: Mapping[str, SinkSettings]
    routes: tuple[Route, ...]
    admin: Admin
    log: LogSettings
    warnings: tuple[Mistake, ...] = ()
    """Of values that work and are seldom meant; each with its place, like a problem."""
    not_at_hand: tuple[Mistake, ...] = ()
    """The references whose values are elsewhere; the option's default stands in for each. Only what connects to nothing
    may be read like this."""
