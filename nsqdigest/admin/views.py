"""What the daemon answers under `/api`: the shapes of its JSON, read by the page and by the commands.

One place for both sides: `daemon.view` fills these in, `cli` and the page read them. Instants are Unix time in
milliseconds (`…_ms`), durations seconds (`…_s`); null means that there is none. Names are as publishers and the file
wrote them: whoever shows them escapes them.

A reader ignores fields that it does not know, so that a page or a command of another version can be used.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Health(StrEnum):
    WELL = "well"
    TROUBLE = "trouble"
    """Somebody should look at it; the daemon takes in events."""
    FAILING = "failing"
    """It is not ready: its store or its nsqds are out of reach, or it does not run yet."""
    DRAINING = "draining"


class CheckView(msgspec.Struct, kw_only=True, frozen=True):
    """A line of `/readyz?verbose`."""

    name: str
    health: Health
    detail: str


class BackoffView(msgspec.Struct, kw_only=True, frozen=True):
    state: str
    """Of `backoff.State`: flowing, waiting, probing, …"""
    level: int
    next_probe_ms: int | None = None
    """Set while it waits."""


class ConnectionView(msgspec.Struct, kw_only=True, frozen=True):
    """An nsqd that has the topic."""

    nsqd: str
    is_connected: bool
    rdy: int = 0
    """So many messages may be in flight."""
    rdy_used: int = 0
    """The RDY that was sent last, nsqd's `ready_count`: less than `rdy` while little comes."""
    in_flight: int = 0
    sources: list[str] = []
    """Who named it: the file, or nsqlookupds."""
    seen_ms: int | None = None
    """When one of them did last."""


class TopicView(msgspec.Struct, kw_only=True, frozen=True):
    name: str
    health: Health
    detail: str
    """As in `/readyz?verbose`."""
    backoff: BackoffView
    max_in_flight: int
    in_flight: int
    depth: int | None
    """Messages that wait in our channel, over its nsqds; null: no nsqd has said so (only those are asked that a
    nsqlookupd names)."""
    is_starved: bool
    """max_in_flight limits the rate."""
    received_per_s: float
    """Of the last minute, like all rates."""
    paused_since_ms: int | None
    connections: list[ConnectionView]


class RouteView(msgspec.Struct, kw_only=True, frozen=True):
    name: str
    topic: str
    sink: str
    policy: str
    waiting: int
    leased: int
    overdue: int
    oldest_due_s: float
    open_records: int
    held: dict[str, int]
    """Timelines that an operator holds, by kind: snooze, mute."""
    quiet_until_ms: int | None
    """Set within the quiet hours of its policy: until then nothing of it goes out."""
    paused_since_ms: int | None


class SinkView(msgspec.Struct, kw_only=True, frozen=True):
    name: str
    type: str
    state: str
    """Of `base.reasons.SinkState`."""
    health: Health
    detail: str
    """As in `/readyz?verbose`."""
    since_ms: int | None
    """Since when it is in trouble."""
    why: str
    """The cause of a refusal, in our own words; "" if there was none."""
    backoff: BackoffView
    sending: int
    concurrency: int
    waits: int
    """Digests that were due and are not delivered; those that wait for another attempt are among them."""
    oldest_due_s: float
    """How long the oldest of those that no daemon has taken is overdue."""
    buried: int
    """Digests given up since its receiver last accepted one."""
    dead: int
    """Digests in the dead list."""
    delivered_per_s: float
    last_delivery_ms: int | None
    paused_since_ms: int | None


class RatesView(msgspec.Struct, kw_only=True, frozen=True):
    """Per second, of the last minute (of the time since the start, where that is shorter)."""

    events_in: float
    events_stored: float
    digests_out: float
    records_out: float
    dead_letters: float


class StoreView(msgspec.Struct, kw_only=True, frozen=True):
    redis: str
    """Its URL without a password."""
    version: str
    health: Health
    detail: str
    failing_since_ms: int | None
    """null: it answers, or was not reached yet since the start."""
    partitions: int
    figures_ms: int | None
    """When the figures of routes and dead digests were read."""
    lost_ms: int | None = None
    """When this daemon last found that Redis had lost something; null: never since its start."""
    lost_records: int = 0
    """Records that Redis had acknowledged to this daemon and lost, since its start; those delivered before are among
    them."""
    lost_partitions: int = 0
    """Partitions that were emptied, since its start."""


class DaemonView(msgspec.Struct, kw_only=True, frozen=True):
    """A daemon that works in the namespace."""

    id: str
    host: str
    pid: int
    version: str
    config_hash: str
    is_this: bool
    differs: bool
    """Its file says something else than the file of the daemon that answers, [admin] and [log] aside. False of another
    version, whose hash cannot be compared."""
    started_ms: int
    seen_ms: int
    """When it checked in last; it does so every 20 s at least."""


class StatusView(msgspec.Struct, kw_only=True, frozen=True):
    """`GET /api/status`."""

    now_ms: int
    health: Health
    verdict: str
    """One sentence, for somebody who has just been woken up."""
    version: str
    config: str
    """The file."""
    config_hash: str
    started_ms: int
    reloaded_ms: int | None
    has_token: bool
    """Whether writes are possible at all."""
    checks: list[CheckView]
    store: StoreView
    topics: list[TopicView]
    routes: list[RouteView]
    sinks: list[SinkView]
    rates: RatesView
    message_age_s: float | None
    """From nsqd's time to stored, the mean of the last minute; null: nothing came."""
    event_loop_lag_s: float
    timelines: int
    dead_digests: int
    orphans: dict[str, int]
    """Records by route, of routes that the file does not have."""
    daemons: list[DaemonView]


class HistoryView(msgspec.Struct, kw_only=True, frozen=True):
    """`GET /api/history`: the last quarter of an hour, one value for each interval, the newest last. All lists are of
    one length."""

    now_ms: int
    interval_s: float
    events_in: list[float]
    """Per second, like the next two."""
    events_stored: list[float]
    digests_out: list[float]
    waiting: list[int]
    overdue: list[int]
    event_loop_lag_s: list[float]
    in_flight: list[int]
    level: list[int]
    """The highest of all topics and sinks."""


class TimelineView(msgspec.Struct, kw_only=True, frozen=True):
    """A line of `nsqdigest timelines`."""

    route: str
    timeline: str
    """As the commands take it."""
    shown: str
    state: str
    """Of `store.listing.State`."""
    at_ms: int
    """When it is due; where it is leased, when the lease ends."""
    records: int
    digest_id: str
    """Of the digest under way; ""."""
    digest_records: int
    attempts: int
    """Both of the digest under way."""
    is_revived: bool
    """It is a digest that was sent again from the dead list: `digest_id` belongs to its name."""
    is_orphan: bool
    """The file of this daemon has no such route: nobody delivers it."""
    held: str
    """By an operator: snooze, mute, or ""."""


class TimelinesView(msgspec.Struct, kw_only=True, frozen=True):
    """`GET /api/timelines?route=&sink=&text=&state=&limit=`: those that are being delivered, then those that are due
    first. `text`: in the name; `state` may be repeated."""

    now_ms: int
    timelines: list[TimelineView]
    total: int
    """How many there are that were asked for, as far as was read."""
    is_partial: bool
    """The reading was broken off at its bound: there may be more, and some of them may be due before these."""


class ReasonView(msgspec.Struct, kw_only=True, frozen=True):
    """A line of an explanation: what the policy says, and the instant that comes of it."""

    text: str
    at_ms: int | None = None


class ExplanationView(msgspec.Struct, kw_only=True, frozen=True):
    """`nsqdigest explain`."""

    sentence: str
    """When it goes out, and why then."""
    due_ms: int | None
    reasons: list[ReasonView]


class HoldView(msgspec.Struct, kw_only=True, frozen=True):
    """A timeline that an operator snoozed or muted."""

    kind: str
    until_ms: int
    since_ms: int
    by: str


class DigestView(msgspec.Struct, kw_only=True, frozen=True):
    """A digest that was opened and is not delivered yet."""

    id: str
    iteration: int
    records: int
    superseded: int
    dropped: int
    attempts: int
    """Made so far."""
    opened_ms: int
    since_ms: int
    """When it was first tried; a merge keeps that instant, and a revival begins it anew."""


class RecordView(msgspec.Struct, kw_only=True, frozen=True):
    key: str
    timestamp_ms: int
    value: str
    """The event's JSON as it came, cut where it is long."""
    is_cut: bool = False


class DeliveryView(msgspec.Struct, kw_only=True, frozen=True):
    """What became of one attempt, as this daemon remembers it."""

    at_ms: int
    route: str
    timeline: str
    sink: str
    digest_id: str
    attempt: int
    records: int
    outcome: str
    """Of `base.reasons.Verdict`."""
    status: int | None
    """The receiver's code, of HTTP or SMTP."""
    cause: str
    """Our own words for a failure, never the receiver's; "" if it was delivered."""
    took_s: float


class TimelineDetailView(msgspec.Struct, kw_only=True, frozen=True):
    """`GET /api/timeline?route=&timeline=&digest=`. `route` may be missing where one route alone has the timeline;
    `digest`: of a revived digest its id."""

    now_ms: int
    timeline: TimelineView
    sink: str
    """"" for an orphan."""
    iteration: int
    """How many digests it has had, the one under way among them."""
    last_digest_id: str
    hold: HoldView | None
    digest: DigestView | None
    """Under way."""
    superseded: int
    dropped: int
    """Both since the digest before."""
    explanation: ExplanationView
    records: list[RecordView]
    """The newest that wait for the next digest, at most fifty."""
    digest_records: list[RecordView]
    """The newest of the digest under way, at most fifty."""
    deliveries: list[DeliveryView]


class DeliveriesView(msgspec.Struct, kw_only=True, frozen=True):
    """`GET /api/deliveries?sink=&route=&timeline=&limit=`: the newest first."""

    now_ms: int
    deliveries: list[DeliveryView]


class DeadView(msgspec.Struct, kw_only=True, frozen=True):
    id: str
    route: str
    timeline: str
    sink: str
    reason: str
    attempts: int
    records: int
    since_ms: int
    status: int | None
    """The code of its receiver's last answer, of HTTP or SMTP."""
    cause: str
    """Our own words for its last failure."""
    answer: str
    """The receiver's last words, cut if they are long."""


class DeadListView(msgspec.Struct, kw_only=True, frozen=True):
    """`GET /api/dead?sink=&route=&limit=`: the newest first."""

    now_ms: int
    dead: list[DeadView]
    total: int
    """In the dead list, whatever was asked for."""
    is_partial: bool
    """The reading was broken off at its bound: older ones may be among those asked for."""


class ErrorView(msgspec.Struct, kw_only=True, frozen=True):
    """Any answer but 200."""

    error: str
    """With the remedy."""
