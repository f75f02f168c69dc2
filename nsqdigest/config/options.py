"""Every option: its name, how it is read, its default as the file writes it, and its line in the example file.

A new option is one line here and the attribute of the tree (`model`) that it becomes; outside of policies, sinks and
routes also a line in `daemon/changes.py`: what it needs to change while the daemon runs. The options of one kind of
sink stand in the file of that kind, in `delivery/sinks`. Bounds are those of the servers (nsqd refuses or silently
clamps what lies beyond) or of the scripts; others only catch slips.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from nsqdigest.config import policy_rules, rules, texts, times
from nsqdigest.config.model import (
    Admin,
    Backoff,
    Limits,
    LogSettings,
    Nsq,
    Policy,
    Redis,
    Route,
    Scheduler,
    SinkSettings,
    Tls,
)
from nsqdigest.config.problems import Spot
from nsqdigest.config.readers import (
    Address,
    Choice,
    Duration,
    FilePath,
    Fraction,
    HiddenText,
    Listen,
    ListOf,
    MatchTable,
    NameOf,
    OneOrMore,
    Reader,
    SinkNames,
    Size,
    Switch,
    Text,
    Unresolved,
    Whole,
)

REQUIRED: Final = object()
Rule = Callable[[dict[str, Any], Spot], None]


@dataclass(frozen=True, slots=True)
class Option:
    key: str
    read: Reader
    default: Any
    doc: str
    sample: Any = None
    """The value in the example file where the default is missing or would not do."""
    attribute: str = ""

    @property
    def field(self) -> str:
        return self.attribute or self.key + self.read.suffix


@dataclass(frozen=True, slots=True)
class Section:
    """The options of one table.

    `tables`: tables within it, None in the tree where the file has none.
    """

    build: Callable[..., Any]
    options: tuple[Option, ...]
    tables: tuple[tuple[str, Section], ...] = ()
    rules: tuple[Rule, ...] = ()

    @property
    def by_key(self) -> dict[str, Option]:
        return {option.key: option for option in self.options}

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.by_key, *(key for key, _ in self.tables))


TLS = Section(
    Tls,
    (
        Option("ca_file", FilePath(), "", 'the authorities that may vouch for nsqd, in PEM form; "": the system\'s'),
        Option("cert_file", FilePath(), "", "client certificate, for an nsqd that asks for one"),
        Option("key_file", FilePath(), "", 'its key; "": in the same file'),
        Option("insecure", Switch(), False, "true: neither certificate nor host name are checked"),
    ),
    rules=(rules.tls,),
)

NSQ = Section(
    Nsq,
    (
        Option(
            "nsqd_tcp_addresses",
            ListOf(Address(4150), '"127.0.0.1:4150"', unique=True),
            [],
            "nsqds that are always connected to; one of the two lists, or both",
            ["127.0.0.1:4150"],
        ),
        Option(
            "lookupd_http_addresses",
            ListOf(Address(4161), '"127.0.0.1:4161"', unique=True),
            [],
            "nsqlookupds that name more of them, [] for none",
        ),
        Option("lookupd_poll_interval", Duration("100ms", "1h"), "60s", "how often each nsqlookupd is asked"),
        Option(
            "lookupd_poll_jitter",
            Fraction(),
            0.3,
            "up to this fraction of the interval later, drawn each time",
        ),
        Option(
            "allow_nsqds",
            ListOf(Text(texts.allowed_host), '"10.0.0.0/8", "*.nsq.internal"', unique=True),
            [],
            'of those that nsqlookupds name, [] for all: ["10.0.0.0/8", "*.nsq.internal"]',
        ),
        Option("channel", Text(texts.channel), "nsqdigest", "daemons that name the same channel share the work"),
        Option(
            "max_in_flight",
            Whole(1, 1_000_000),
            2500,
            "messages in progress at a time, per topic, over all its connections",
        ),
        Option("batch_size", Whole(1, 500), 500, "messages in one write to Redis, at most"),
        Option(
            "heartbeat_interval",
            Duration("1s", "60s"),
            "30s",
            "after twice that without data from nsqd the connection is closed",
        ),
        Option("msg_timeout", Duration("1s", "15m", zero=True), "0s", "0s: as nsqd's --msg-timeout"),
        Option("compression", Choice(("none", "snappy", "deflate")), "none", '"snappy" or "deflate"'),
        Option(
            "requeue_delay", Duration("0s", "1h"), "1s", "ceiling of the jittered delay after a failure of the store"
        ),
        Option(
            "dead_letter_topic",
            Text(texts.optional_topic),
            "nsqdigest.dead",
            'published to the event\'s nsqd; "": requeued for ever, with errors in the log',
        ),
        Option("auth_secret", HiddenText(texts.auth_secret), "", 'for an nsqd that requires AUTH: "env:NSQ_SECRET"'),
        Option(
            "drain_timeout", Duration("0s", "10m"), "20s", "how long a stop waits for writes and deliveries in progress"
        ),
    ),
    tables=(("tls", TLS),),
    rules=(rules.nsq,),
)

BACKOFF = Section(
    Backoff,
    (
        Option(
            "strategy",
            Choice(("exponential", "decorrelated")),
            "exponential",
            '"decorrelated": uniform between base and base x 3^level',
        ),
        Option("base", Duration("10ms", "1h"), "1s", "level 1 waits around 2 x base, each further level twice as long"),
        Option("max_duration", Duration("10ms", "1h", zero=True), "30s", "the longest wait; 0s: never back off"),
        Option("jitter", Choice(("full", "equal", "none")), "full", '"full", "equal" or "none"; of "exponential" only'),
        Option(
            "recovery",
            Choice(("step", "halve")),
            "step",
            'what a successful probe does to the level; "halve": half of it, not one less',
        ),
        Option("slow_start", Switch(), True, "after a backoff 1, 2, 4 … messages in flight, not all at once"),
    ),
    rules=(rules.backoff,),
)

REDIS = Section(
    Redis,
    (
        Option(
            "url",
            HiddenText(texts.redis_url),
            "redis://127.0.0.1:6379/0",
            "rediss://  unix://  redis+sentinel://h1,h2/name/0  redis+cluster://h1,h2",
        ),
        Option("namespace", Text(texts.name), "nsqdigest", "the first part of every key"),
        Option("timeout", Duration("10ms", "5m"), "5s", "of one call to Redis"),
        Option(
            "durability",
            Choice(("reply", "replica", "fsync")),
            "reply",
            'an event is finished after "reply" of Redis, "replica", "fsync" (appendfsync always)',
        ),
        Option("replicas", Whole(1, 16), 1, 'how many replicas must have it, with "replica"'),
        Option("partitions", Whole(0, 1024), 0, "0: 1 on a single server, 32 on a Cluster; cannot be changed later"),
        Option(
            "ca_file", FilePath(), "", 'with rediss://: the authorities that may vouch for Redis; "": the system\'s'
        ),
        Option("cert_file", FilePath(), "", "client certificate, for a Redis that asks for one (tls-auth-clients)"),
        Option("key_file", FilePath(), "", 'its key; "": in the same file'),
        Option("insecure", Switch(), False, "true: neither certificate nor host name are checked"),
    ),
    rules=(rules.redis,),
)

SCHEDULER = Section(
    Scheduler,
    (
        Option(
            "interval", Duration("10ms", "1m"), "1s", "the longest sleep of the timer; it wakes when something is due"
        ),
        Option("lease", Duration("1s", "1d"), "60s", "at least twice the timeout of every sink"),
        Option("batch", Whole(1, 500), 200, "timelines claimed at a time"),
    ),
)

LIMITS = Section(
    Limits,
    (
        Option("event", Size("1B", "1MiB"), "64KiB", "the body of an event; larger: dead letter"),
        Option("key", Size("1B", "4KiB"), "256B", "keys of records and names of timelines"),
        Option("depth", Whole(1, 512), 64, "of an event's JSON; the outermost brackets are 1"),
        Option(
            "timelines", Whole(1, 1_000_000_000), 1_000_000, "at a time; over several partitions some more, never fewer"
        ),
        Option(
            "dead_digests",
            Whole(1, 1_000_000_000),
            10_000,
            "kept; beyond it the oldest are dropped, with an error in the log",
        ),
        Option("future", Duration(), "5m", "how far a timestamp field may lie ahead; beyond: dead letter"),
        Option("past", Duration(), "0s", "and behind; 0s: no limit"),
    ),
)

POLICY = Section(
    Policy,
    (
        Option(
            "immediate", Switch(), True, "false: the first digest after minimum_delay, postponed like the later ones"
        ),
        Option("minimum_delay", Duration(), "5m", "between two digests of a timeline"),
        Option("increment_delay", Duration(), "30s", "each event postpones the next digest by so much ..."),
        Option(
            "maximum_delay",
            Duration(),
            "30m",
            "... never past this after the last digest (or first event); unwritten: at least the largest delay",
        ),
        Option(
            "growth",
            Choice(("none", "exponential")),
            "none",
            '"exponential": the delay doubles with each digest, growth_steps times',
        ),
        Option(
            "growth_steps",
            Whole(0, 32),
            2,
            "how often: after the first digest once, after the second twice ...",
        ),
        Option(
            "intervals",
            ListOf(Duration(), '"30s", "5m"'),
            [],
            "before the first (not when immediate), after the first ...; then minimum_delay",
        ),
        Option(
            "at",
            OneOrMore(times.cron),
            "",
            '"0 9 * * 1-5": cron instead of all delays; the first comes at once only if that is written',
        ),
        Option(
            "zone",
            Text(times.zone_or_template),
            "UTC",
            'of at and quiet: "Europe/Berlin"; or a field, "{user.zone}": each timeline has its own',
        ),
        Option("zone_default", Text(times.zone), "UTC", "of timelines whose events name none that there is"),
        Option(
            "quiet",
            OneOrMore(times.window),
            "",
            '"22:00-07:00": nothing is delivered inside; it waits, whatever the maximum',
        ),
        Option("capacity", Whole(1, 1_000_000), 500, "records that a timeline keeps: the newest"),
        Option(
            "on_retry",
            Choice(("frozen", "merge")),
            "frozen",
            '"merge": a digest to be sent again takes newer records in, under a new id',
        ),
        Option("dedupe_window", Duration(), "15m", "so long after its digest a redelivered event is not shown again"),
    ),
    rules=(policy_rules.policy,),
)

EVERY_SINK = (
    Option("timeout", Duration("10ms", "1h"), "15s", "of one attempt"),
    Option("concurrency", Whole(1, 1000), 8, "posts, mails, or writes to nsqd (of up to 100 digests) at a time"),
    Option("max_attempts", Whole(0, 1_000_000), 0, "posts of one digest; 0: max_age decides"),
    Option("max_age", Duration("1s"), "72h", "since the digest was opened; older ones move to the dead list"),
    Option("retry_base", Duration("10ms", "1d"), "1s", "the shortest wait before the next attempt"),
    Option("retry_cap", Duration("10ms", "7d"), "15m", "the longest"),
    Option("retry_after_max", Duration("0s", "7d"), "1h", "a longer Retry-After is cut to this"),
    Option("max_body", Size("4KiB", "64MiB"), "256KiB", "of a digest; it shows fewer records rather than grow beyond"),
)
"""The options of every sink, beside those of its kind: the attributes of `model.SinkSettings`."""


class Tables(NamedTuple):
    """The tables that a rule of one kind of sink sees; a value with a problem is absent."""

    nsq: dict[str, Any]
    sinks: Mapping[str, dict[str, Any]]
    """Those of this kind, by name."""
    routes: Sequence[dict[str, Any]]
    policies: Mapping[str, dict[str, Any]]
    """One for each sink of a route."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTable:
    """The table of one kind of sink in the file. The kinds are declared in `delivery/sinks`."""

    name: str
    """The value of `type`."""
    settings: type[SinkSettings]
    options: tuple[Option, ...]
    """Its own, in the order of the example file."""
    rules: tuple[Rule, ...] = ()
    """Over the options of one sink."""
    rules_of_file: tuple[Callable[[Tables, Spot], None], ...] = ()
    """Over the sinks of this kind and the other tables."""
    example: str
    """The name of the sink of this kind in the example file."""
    doc: str
    """For the example file: the verb and the object of what it does with a digest."""

    @property
    def section(self) -> Section:
        return Section(self.settings, (*self.options, *EVERY_SINK), rules=(rules.retries, *self.rules))


Kinds = Mapping[str, SinkTable]

ROUTE = Section(
    Route,
    (
        Option(
            "name", Text(texts.optional_name), "", '"": the topic; unique; a new name leaves the old timelines behind'
        ),
        Option("topic", NameOf("topic", texts.topic), REQUIRED, "where the events come from", "events"),
        Option("match", MatchTable(), {}, '{severity = ["error", "fatal"], code = ">= 500"}: docs/routes.md'),
        Option(
            "timeline",
            Unresolved(texts.template),
            REQUIRED,
            'whose digest an event is for: "user:{user.id}"',
            "{user}",
        ),
        Option(
            "key",
            Unresolved(texts.optional_key_template),
            "",
            '"": the message itself; of the same key the newer record wins',
        ),
        Option(
            "timestamp",
            Unresolved(texts.optional_field_path),
            "",
            'a field, "meta.at": a number (below 1e11: s, else ms) or RFC 3339; "": that of NSQ',
        ),
        Option(
            "group",
            Unresolved(texts.optional_field_path),
            "",
            "a field, likewise: the records of a digest are grouped by it",
        ),
        Option(
            "urgent", MatchTable(), {}, 'as match: such an event lets its digest go out at once, {severity = "fatal"}'
        ),
        Option(
            "cancel", MatchTable(), {}, 'as match: such an event takes out the record of its key, {status = "resolved"}'
        ),
        Option(
            "on_cancel",
            Choice(("tell", "silent")),
            "tell",
            'where a digest showed that record, it says that it ended; "silent": it does not',
        ),
        Option(
            "drop",
            ListOf(Unresolved(texts.field_path), '"user.email"', unique=True),
            [],
            'fields that are not stored: ["user.email", "token"]',
        ),
        Option("max_event_age", Duration(), "0s", "older events are counted and not filed; 0s: no limit"),
        Option("policy", NameOf("policy", texts.name), "default", "one of [policies.NAME]"),
        Option("sink", SinkNames(), REQUIRED, "one of [sinks.NAME]; of a list each has digests of its own", "out"),
    ),
)

ADMIN = Section(
    Admin,
    (
        Option(
            "listen",
            Listen(4180),
            "127.0.0.1:4180",
            'the page, health, metrics, /api; "unix:/run/nsqdigest/admin.sock"; "": off',
        ),
        Option(
            "token",
            HiddenText(texts.token),
            "",
            "to change something, and beyond this machine to read: env:NAME or file:PATH",
        ),
        Option(
            "read_token",
            HiddenText(texts.token),
            "",
            "may read and change nothing; with it a token is needed to read on this machine, too",
        ),
    ),
    rules=(rules.admin,),
)

LOG = Section(
    LogSettings,
    (
        Option("level", Choice(("debug", "info", "warning", "error")), "info", '"debug", "info", "warning" or "error"'),
        Option("format", Choice(("auto", "human", "json")), "auto", '"human", "json"; "auto": human on a terminal'),
    ),
)

SECTIONS: dict[str, Section] = {
    "nsq": NSQ,
    "backoff": BACKOFF,
    "redis": REDIS,
    "scheduler": SCHEDULER,
    "limits": LIMITS,
    "admin": ADMIN,
    "log": LOG,
}
TABLES = ("nsq", "backoff", "redis", "scheduler", "limits", "policies", "sinks", "routes", "admin", "log")
