"""demo.toml with the addresses of the demo's servers, put over it in the way that anyone can use."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nsqdigest import config
from nsqdigest.config import Address, Config
from nsqdigest.delivery.sinks.table import KINDS

_NAME = "demo.toml"


@dataclass(frozen=True)
class Places:
    """Where the demo's servers are, and the secret that a daemon signs with."""

    nsqd: Address
    redis_url: str
    webhook_url: str
    secret: str = field(repr=False)

    def environ(self, listen: str = "") -> Mapping[str, str]:
        """For a daemon. `listen`: of its page."""
        return {
            "NSQDIGEST__NSQ__NSQD_TCP_ADDRESSES": str(self.nsqd),
            "NSQDIGEST__REDIS__URL": self.redis_url,
            "NSQDIGEST__SINKS__TEAM__URL": self.webhook_url,
            "NSQDIGEST__ADMIN__LISTEN": listen,
            "NSQDIGEST__LOG__FORMAT": "json",
            "DEMO_WEBHOOK_SECRET": self.secret,
        }


def settings(places: Places) -> Config:
    text = (importlib.resources.files("nsqdigest.demo") / _NAME).read_text(encoding="utf-8")
    return config.parse_text(text, _NAME, places.environ(), KINDS)


@contextmanager
def file() -> Iterator[Path]:
    with importlib.resources.as_file(importlib.resources.files("nsqdigest.demo") / _NAME) as path:
        yield path
