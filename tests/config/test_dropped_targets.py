"""What a file may say of where digests go: no field that a route drops, and better none that its timeline lacks."""

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


def checked(tmp_path: Path, option: str, timeline: str) -> str:
    file = tmp_path / "nsqdigest.toml"
    file.write_text(
        f'[nsq]\nnsqd_tcp_addresses = ["127.0.0.1:4150"]\n[sinks.s]\n{SINKS[option]}\n'
        f'[[routes]]\ntopic = "events"\ntimeline = "{timeline}"\nkey = "{{id}}"\nsink = "s"\n',
        encoding="utf-8",
    )
    done = run_command("check", "-c", str(file))
    assert done.returncode == 0, done
    return done.stdout + done.stderr


@pytest.mark.parametrize("option", ["url", "topic", "to"])
def test_a_target_of_a_field_that_the_timeline_lacks_is_warned_of_with_the_safe_form(
    tmp_path: Path, option: str
) -> None:
    said = " ".join(checked(tmp_path, option, "{user}").split())
    assert (
        f"sinks.s.{option}: has the field card.number, and the timeline of the route events has not: one event decides "
        'where all events of its timeline go; write timeline = "{card.number}" in the route and "{timeline}" in place '
        'of "{card.number}" here'
    ) in said


@pytest.mark.parametrize("option", ["url", "topic", "to"])
def test_a_target_of_a_field_of_the_timeline_is_safe(tmp_path: Path, option: str) -> None:
    assert "card.number" not in checked(tmp_path, option, "{card.number}:{user}")


def test_a_subject_is_no_target(tmp_path: Path) -> None:
    assert "card.number" not in checked(tmp_path, "subject", "{user}")
