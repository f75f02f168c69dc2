"""The body of a timeline's digest as it would be posted now. It claims, opens and sends nothing."""

from __future__ import annotations

from typing import NamedTuple

from nsqdigest.config import Config, Route
from nsqdigest.delivery.bodies.base import BodyFailed
from nsqdigest.delivery.bodies.sample import sample_of
from nsqdigest.delivery.digest import Names
from nsqdigest.delivery.grouped import builder_of
from nsqdigest.delivery.sinks.kind import SinkKinds
from nsqdigest.store.namespace import Namespace
from nsqdigest.store.peek import pages, peek
from nsqdigest.store.schedule import Plan


class Preview(NamedTuple):
    route: str
    sink: str
    content_type: str
    body: bytes
    about: str
    """What it is of, for people."""
    failure: BodyFailed | None = None
    """Why there is no body."""


def of_sample(config: Config, kinds: SinkKinds, route: Route) -> Preview:
    return _made(config, kinds, route, sample_of(route), "a sample, nothing is sent", is_sample=True)


async def of_timeline(
    config: Config, kinds: SinkKinds, route: Route, namespace: Namespace, timeline: str
) -> Preview | None:
    """None: the route has nothing to deliver of it."""
    plan = Plan(config.policies[route.policy])
    peeked = await peek(namespace, route.name, timeline, plan.earliest_next_ms)
    if peeked is None:
        return None
    names = Names(route.name, timeline, route.sink)
    builder = builder_of(peeked.head, names, config.sinks[route.sink].max_body_bytes, route.group_path)
    async for page in pages(namespace, peeked):
        builder.add(page)
        if builder.is_full:
            break
    digest_json = builder.body(peeked.first_ms, peeked.last_ms)
    about = "waits for its next attempt" if peeked.is_opened else "as it would be opened now; nothing is sent"
    return _made(config, kinds, route, digest_json, about, is_sample=False)


def _made(
    config: Config, kinds: SinkKinds, route: Route, digest_json: bytes, about: str, *, is_sample: bool
) -> Preview:
    settings = config.sinks[route.sink]
    posted = kinds[settings.type].posted(settings, is_sample)
    try:
        body = posted.body(digest_json) if posted.body else digest_json
    except BodyFailed as failure:
        return Preview(route.name, route.sink, posted.content_type, b"", about, failure)
    return Preview(route.name, route.sink, posted.content_type, body, about)
