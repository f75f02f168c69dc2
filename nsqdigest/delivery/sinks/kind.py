"""A kind of sink: its table in the file, how the daemon builds it, how the doctor looks at it.

A kind is one file of this folder, which ends in its `KIND`, and one line in `table.py`. The modules to the left (the
configuration) and to the right (the daemon, the doctor) get kinds as an argument and know none by name.

Invariants:
- Importing a kind loads no client library: `nsqdigest check` reads every kind and needs none. What a sink needs to
  deliver (an HTTP client, a publisher) it imports when it is built or used.
- A look reaches the world through `Reach` alone. It sends no digest, publishes nothing and writes no file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from nsqdigest.backoff import Curve
from nsqdigest.config.model import SinkSettings
from nsqdigest.config.options import SinkTable
from nsqdigest.delivery.bodies.base import JSON

if TYPE_CHECKING:
    from nsqdigest.base.findings import Finding, Reached
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.config import Address
    from nsqdigest.delivery.bodies.base import Body
    from nsqdigest.delivery.sinks.base import Sink
    from nsqdigest.delivery.targets import Aim
    from nsqdigest.nsq.connection import ConnectionOptions

Settings = TypeVar("Settings", bound=SinkSettings)
T = TypeVar("T")


DEFAULT_CURVE = Curve(1.0, 30.0)


class SinkContext(NamedTuple):
    """What the daemon lends to every sink that it builds."""

    nsq_options: ConnectionOptions
    """TLS, compression and AUTH of [nsq]."""
    metrics: Metrics | None = None
    is_sample: bool = False
    """Its events have every field that a template asks for."""
    curve: Curve = DEFAULT_CURVE
    """Of [backoff]: for a sink that backs off from one of its receivers alone."""


class Uses(Enum):
    """What of `SinkContext` a sink was built with, beside its own options: where that changes it is built anew."""

    NSQ_OPTIONS = auto()
    CURVE = auto()


class Greeted(NamedTuple):
    """What a client of a kind learnt of its server."""

    tls: str
    """Its version, "" in the clear."""
    certificate: Mapping[str, Any] | None
    """The server's, as `ssl` returns it."""
    details: tuple[str, ...]


class Reach(Protocol):
    """What the doctor lends to a look. It reaches a place and leaves again; each call has a limit of its own.

    A failure is an NsqdigestError whose message has a remedy after its last semicolon, or none.
    """

    async def server(self, host: str, port: int, *, tls: bool) -> Reached:
        """Connects, and with `tls` checks the certificate as a client of this machine does."""

    async def client(self, host: str, greet: Callable[[], Awaitable[Greeted]]) -> Reached:
        """For a server of a protocol of its own: `greet` connects, shakes hands and leaves again."""

    async def nsqd(self, address: Address) -> Reached:
        """Shakes hands with the options of [nsq]; subscribes to nothing."""

    async def in_a_thread(self, work: Callable[[], T]) -> T:
        """For a call that may hang, like that of a file system. Nobody waits for its end."""


class Posted(NamedTuple):
    """What a sink sends of a digest."""

    content_type: str
    body: Body | None = None
    """None: the digest's JSON as it is."""


def the_digest(settings: SinkSettings, is_sample: bool) -> Posted:
    return Posted(JSON)


def one_place(settings: SinkSettings) -> Aim | None:
    return None


def nothing_else(settings: SinkSettings) -> Collection[Uses]:
    return ()


def no_files(settings: SinkSettings) -> Collection[str]:
    return ()


def concurrency_of(settings: SinkSettings) -> int:
    return settings.concurrency


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkKind(SinkTable, Generic[Settings]):
    build: Callable[[Settings, SinkContext], Sink]
    look: Callable[[Settings, Reach], Awaitable[list[Finding]]]
    posted: Callable[[Settings, bool], Posted] = the_digest
    """For `preview`. With True its body is for events that have every field that is asked for."""
    aim: Callable[[Settings], Aim | None] = one_place
    """None: all digests of the sink go to one place. Else what says of each where it goes."""
    uses: Callable[[Settings], Collection[Uses]] = nothing_else
    files: Callable[[Settings], Collection[str]] = no_files
    """The paths of files that a sink is built with and that are no part of its settings: where one has other contents
    the sink is built anew."""
    senders: Callable[[Settings], int] = concurrency_of
    """How many digests the sink is handed at a time: more than `concurrency` where some wait in it for others."""


SinkKinds = Mapping[str, SinkKind[Any]]
