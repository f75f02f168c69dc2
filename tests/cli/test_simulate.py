"""`nsqdigest simulate`: where the stream comes from, which policy it goes through, what is shown, exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsqdigest.base.errors import EXIT_CONFIG, EXIT_NO, EXIT_OK, EXIT_USAGE
from support.files import SMALLEST
from support.shell import Shell

pytestmark = pytest.mark.unit

DAILY = """
[policies.daily]
at = "0 9 * * *"
zone = "Europe/Berlin"
"""
TWO_ROUTES = (
    SMALLEST
    + 'timestamp = "at"\nkey = "{id}"\n[[routes]]\ntopic = "other"\ntimeline = "{user}"\nsink = "out"\n'
    + 'policy = "daily"\n'
    + DAILY
)
FROM = ("--from", "2026-11-18T00:00:00Z")
EVENTS = b"".join(
    b'{"user": "%s", "at": %d, "id": %d}\n' % (user, 1_795_000_000 + at, number)
    for user, at, number in ((b"ada", 0, 1), (b"ada", 10, 2), (b"ada", 20, 2), (b"bob", 30, 1))
)


def simulated(shell: Shell, *words: str, stdin: bytes = b"") -> dict[str, Any]:
    done = shell.run("simulate", "--json", *words, stdin=stdin)
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def usage_error(shell: Shell, *words: str) -> str:
    done = shell.run("simulate", *words)
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    return done.stderr.partition("Error: ")[2].strip()


def test_recorded_events_go_through_the_templates_of_the_route(shell: Shell) -> None:
    shell.write(TWO_ROUTES)
    shell.write(EVENTS, "events.jsonl")
    for words, stdin in ((("events.jsonl",), b""), (("-",), EVENTS)):
        found = simulated(shell, *words, "--route", "events", stdin=stdin)
        assert (found["policy"], found["events"], found["superseded"]) == ("default", 4, 1)
        digests = [(each["timeline"], each["iteration"], each["total"], each["waited_s"]) for each in found["list"]]
        assert digests == [("ada", 1, 1, 0.0), ("bob", 1, 1, 0.0), ("ada", 2, 1, 320.0)]


def test_instants_need_no_route(shell: Shell) -> None:
    shell.write(TWO_ROUTES)
    found = simulated(shell, "-", "--policy", "daily", stdin=b"2026-11-18T09:00:00Z ada k\n1795000000\n")
    assert [each["timestamp"] for each in found["list"]] == ["2026-11-19T08:00:00.000Z"] * 2
    assert {each["timeline"] for each in found["list"]} == {"ada", ""}


def test_an_event_that_is_older_than_the_one_before_comes_with_it(shell: Shell) -> None:
    shell.write(SMALLEST)
    done = shell.run("simulate", "-", "--json", stdin=b"1795000100\n1795000000\n")
    assert done.stderr == "1 event older than the one before: taken to come with it\n"
    assert json.loads(done.stdout)["first"] == json.loads(done.stdout)["last"] == "2026-11-18T11:08:20.000Z"


def test_lines_that_are_no_events_are_counted_and_the_first_is_named(shell: Shell) -> None:
    shell.write(TWO_ROUTES)
    done = shell.run("simulate", "-", "--route", "events", stdin=b'{"\\u001b[31m": 1}\nyesterday\n\n' + EVENTS)
    assert done.returncode == EXIT_OK
    assert done.stderr.startswith("2 lines not used; line 1 would be a dead letter, missing-field: route events: ")
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("stdin", [b"", b"yesterday\n", b'{"user": "ada"}\n'])
def test_without_any_event_the_answer_is_no(shell: Shell, stdin: bytes) -> None:
    shell.write(SMALLEST)
    done = shell.run("simulate", "-", stdin=stdin)
    assert (done.returncode, done.stdout) == (EXIT_NO, "")
    assert done.stderr.endswith("no event to simulate with\n")


def test_json_events_without_an_instant_need_a_field(shell: Shell) -> None:
    shell.write(SMALLEST)
    done = shell.run("simulate", "-", stdin=EVENTS)
    assert 'has no instant: the route "events" has no timestamp; name one with --timestamp' in done.stderr
    assert simulated(shell, "-", "--timestamp", "at", stdin=EVENTS)["events"] == 4


def test_the_same_seed_draws_the_same_events(shell: Shell) -> None:
    shell.write(SMALLEST)
    words = ("--rate", "20/h", "--burst", "50@2h", "--for", "6h", "--timelines", "3", *FROM)
    found = simulated(shell, *words)
    assert simulated(shell, *words) == found != simulated(shell, *words, "--seed", "2")
    assert 120 < found["events"] < 220
    assert {each["timeline"] for each in found["list"]} == {"timeline 1", "timeline 2", "timeline 3"}


@pytest.mark.parametrize("width", [44, 80, 120])
def test_the_chart_fits_the_terminal(shell: Shell, width: int) -> None:
    shell.write(TWO_ROUTES)
    words = ("--policy", "daily", "--rate", "5/h", "--for", "7d", *FROM)
    done = shell.run("simulate", *words, COLUMNS=str(width))
    chart = [line for line in done.stdout.splitlines() if line.startswith(("events", "digests"))]
    assert len(chart) == 2
    assert all(len(line) <= 80 for line in chart), "a pipe has no width"
    assert "●" in chart[1]


def test_plain_characters_where_the_output_has_no_others(shell: Shell) -> None:
    shell.write(SMALLEST)
    done = shell.run("simulate", "--rate", "20/h", "--for", "2h", *FROM, PYTHONIOENCODING="ascii")
    assert done.returncode == EXIT_OK
    assert done.stdout.isascii()
    assert "\\u" not in done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "the file has 2 routes; name one with --route, or a policy with --policy"),
        (("--route", "events"), "name a file with events, or - for stdin, or draw some with --rate 20/h"),
        (("--policy", "daily", "-", "--rate", "1/h"), "--rate and --burst draw events, and a file has its own"),
        (("--policy", "daily", "--rate", "20"), '--rate: 20 is not a rate; write one like "20/h", per s, m, h or d'),
        (("--policy", "daily", "--burst", "x@1h"), '--burst: x@1h is not a burst; write one like "50@2h"'),
        (("--policy", "daily", "--burst", "5@2x"), "--burst: 5@2x is not a duration"),
        (("--policy", "daily", "--rate", "1/h", "--from", "today"), "--from: today is no instant; write 2026-01-31"),
        (("--policy", "daily", "--rate", "9999/s", "--for", "30d"), "draw 10,000,000 at most"),
        (("--policy", "daily", "nowhere.jsonl"), "nowhere.jsonl: No such file or directory"),
    ],
)
def test_what_does_not_go_together_is_named(shell: Shell, words: tuple[str, ...], expected: str) -> None:
    shell.write(TWO_ROUTES)
    assert expected in usage_error(shell, *words)


def test_a_name_mistyped_is_answered_with_the_nearest(shell: Shell) -> None:
    shell.write(TWO_ROUTES)
    done = shell.run("simulate", "--policy", "dayly", "--rate", "1/h")
    assert (done.returncode, 'did you mean "daily"?' in done.stderr) == (EXIT_NO, True)


def test_a_file_with_mistakes(shell: Shell) -> None:
    shell.write(SMALLEST + '[policies.default]\nat = "9:30"\n')
    assert shell.run("simulate", "--rate", "1/h").returncode == EXIT_CONFIG
