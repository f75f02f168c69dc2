"""screen.py: a daemon's status for a terminal, at each width; `NSQDIGEST_WRITE_GOLDEN` writes the files anew."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from nsqdigest.admin.screen import Paper, lines
from nsqdigest.admin.views import StatusView
from nsqdigest.base.screen import BOLD, RED, columns
from support import status_views
from support.golden import compare
from support.local_clock import in_utc
from support.status_views import VIEWS

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("in_utc")]
__all__ = ["in_utc"]


@pytest.mark.parametrize("width", [44, 80, 120])
@pytest.mark.parametrize("name", VIEWS)
def test_how_it_looks(name: str, width: int) -> None:
    found = [*lines(VIEWS[name](), Paper(width))]
    compare(Path(__file__).with_name("golden") / f"status-{name}-{width}.txt", "\n".join([*found, ""]))


@pytest.mark.parametrize("width", [44, 80, 120])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    for name, view in VIEWS.items():
        wide = [line for line in lines(view(), Paper(width)) if columns(line) > width]
        assert wide == [], name


def test_what_others_wrote_is_no_command_to_the_terminal() -> None:
    hostile = "\x1b[2J\u202e\n" * 9
    view = status_views.status(
        topics=[status_views.topic(hostile, detail=hostile)],
        routes=[status_views.route(hostile, sink=hostile, held={hostile: 1})],
        sinks=[status_views.sink(hostile, state=hostile, why=hostile)],
        orphans={hostile: 1},
        config=hostile,
        daemons=[
            status_views.daemon(hostile, host=hostile, version=hostile, config_hash=hostile),
            *status_views.empty().daemons,
        ],
    )
    view = msgspec.structs.replace(view, verdict=hostile, store=msgspec.structs.replace(view.store, detail=hostile))
    for width in (0, 44, 120):
        for line in lines(view, Paper(width)):
            assert line.isprintable(), line


def test_colour_is_only_there_where_it_is_asked_for() -> None:
    assert not any("\x1b" in line for line in lines(status_views.broken(), Paper(80)))
    assert next(lines(status_views.broken(), Paper(80, colour=True))).startswith(f"\x1b[{BOLD};{RED}m")


def test_a_view_of_another_version_can_be_read() -> None:
    text = msgspec.json.encode({**msgspec.to_builtins(status_views.busy()), "of_a_later_version": {"x": 1}})
    assert msgspec.json.decode(text, type=StatusView) == status_views.busy()
