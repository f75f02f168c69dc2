"""The body of a timeline's digest as it would be posted now. It claims, opens and sends nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nsqdigest.config import Config, Route
from nsqdigest.delivery.bodies import document
from nsqdigest.delivery.bodies.base import BodyFailed
from nsqdigest.delivery.bodies.sample import sample_of
from nsqdigest.delivery.digest import Names
from nsqdigest.delivery.grouped import builder_of
from nsqdigest.delivery.sinks.kind import SinkKinds
from nsqdigest.delivery.targets import Aim, NoTarget, Target
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
    target: str = ""
    """For people; "" where all digests of the sink go to one place."""
    failure: BodyFailed | NoTarget | None = None
    """Why it could not be sent."""


def of_sample(config: Config, kinds: SinkKinds, route: Route) -> Preview:
    aim = _aim_of(config, kinds, route)
    digest_json = sample_of(route, aim.sample_fields if aim is not None else {})
    data = document.read(digest_json).data
    target = _target_of(aim, route.name, data.timeline, [bytes(data.newest[0].value)])
    return _made(config, kinds, route, target, digest_json, about="a sample, nothing is sent", is_sample=True)


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
    aim = _aim_of(config, kinds, route)
    target: Target | NoTarget | None = None
    async for page in pages(namespace, peeked):
        if not isinstance(target, Target):
            target = _target_of(aim, route.name, timeline, [record.value for record in page]) or target
        builder.add(page)
        if builder.is_full:
            break
    digest_json = builder.body(peeked.first_ms, peeked.last_ms)
    about = "waits for its next attempt" if peeked.is_opened else "as it would be opened now; nothing is sent"
    return _made(config, kinds, route, target, digest_json, about=about, is_sample=False)


def _target_of(aim: Aim | None, route: str, timeline: str, values: Sequence[bytes]) -> Target | NoTarget | None:
    """None: all digests of the sink go to one place."""
    try:
        return aim.of_newest(route, timeline, values) if aim is not None else None
    except NoTarget as why:
        return why


def _aim_of(config: Config, kinds: SinkKinds, route: Route) -> Aim | None:
    settings = config.sinks[route.sink]
    return kinds[settings.type].aim(settings)


def _made(
    config: Config, kinds: SinkKinds, route: Route, target: Target | NoTarget | None, digest_json: bytes, *, about: str,
    is_sample: bool,
) -> Preview:  # fmt: skip
    settings = config.sinks[route.sink]
    posted = kinds[settings.type].posted(settings, is_sample)
    try:
        if isinstance(target, NoTarget):
            raise target
        body = posted.body(digest_json) if posted.body else digest_json
    except (BodyFailed, NoTarget) as failure:
        return Preview(route.name, route.sink, posted.content_type, b"", about, failure=failure)
    return Preview(route.name, route.sink, posted.content_type, body, about, target.shown if target is not None else "")
