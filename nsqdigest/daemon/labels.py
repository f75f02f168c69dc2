"""The labels of metrics that the configuration decides, so that each of their series exists from the start."""

from __future__ import annotations

from nsqdigest.base.metric_table import Values, each
from nsqdigest.config import Config
from nsqdigest.store import scripts


def known_labels(config: Config) -> Values:
    topics = list(dict.fromkeys(route.topic for route in config.routes))
    routes = [route.name for route in config.routes]
    return {
        ("topic",): each(topics),
        ("route",): each(routes),
        ("sink",): each(config.sinks),
        ("sink", "route"): [(route.sink, route.name) for route in config.routes],
        ("script",): each(scripts.names()),
        ("kind", "name"): [
            *(("topic", name) for name in topics),
            *(("route", name) for name in routes),
            *(("sink", name) for name in config.sinks),
        ],
    }
