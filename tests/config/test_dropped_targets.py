"""No option of a sink names a field that a route to it drops (docs/routes.md): its digests could go nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.daemon import run_command

pytestmark = pytest.mark.unit

SINKS = {
    "url": 'type = "webhook"\nurl = "https://example.com/{card.number}"',
    "topic": 'type = "nsq"\nnsqd_tcp_addresses = ["127.0.0.1:4150"]\ntopic = "x.{card.number}"',
    "to": 'type = "email"\nhost = "h"\nfrom = "a@example.com"\nto = ["{card.number}"]',
    "subject": 'type = "email"\nhost = "h"\nfrom = "a@example.com"\nto = ["b@example.com"]\nsubject = "{card.number}"',
}


@pytest.mark.parametrize("option", SINKS)
@pytest.mark.parametrize("drop", ["card", "card.number", "card.kind"])
def test_a_target_of_a_dropped_field_is_refused(tmp_path: Path, option: str, drop: str) -> None:
    file = tmp_path / "nsqdigest.toml"
    file.write_text(
        f'[nsq]\nnsqd_tcp_addresses = ["127.0.0.1:4150"]\n[sinks.s]\n{SINKS[option]}\n'
        f'[[routes]]\ntopic = "events"\ntimeline = "{{user}}"\nkey = "{{id}}"\nsink = "s"\ndrop = ["{drop}"]\n',
        encoding="utf-8",
    )
    done = run_command("check", "-c", str(file))
    if drop == "card.kind":
        assert done.returncode == 0, done
    else:
        assert done.returncode == 78
        assert f"sinks.s.{option}: has the field card.number, and the route events does not store {drop} (drop)" in (
            done.stdout + done.stderr
        )
