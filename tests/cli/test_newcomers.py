"""What newcomers write in their first file: `check` and `try` name the same mistake, in the line that has to change."""

from __future__ import annotations

import pytest

from nsqdigest.base.errors import EXIT_CONFIG, EXIT_NO, EXIT_OK
from support.shell import Shell

pytestmark = pytest.mark.unit

FILE = """\
[nsq]
nsqd_tcp_addresses = ["127.0.0.1:4150"]

[redis]
url = "redis://127.0.0.1:6379/0"

[policies.default]
minimum_delay = "5m"

[sinks.out]
type = "log"

[[routes]]
topic = "events"
timeline = "{user}"
sink = "out"
"""


def but(old: str, new: str) -> str:
    assert FILE.count(old) == 1
    return FILE.replace(old, new)


FIFTEEN = {
    "True": (but('minimum_delay = "5m"', "immediate = True"), 8, "write immediate = true"),
    "a bare duration": (but('"5m"', "5m"), 8, 'write minimum_delay = "5m"'),
    "a policy in a route": (
        but('topic = "events"', 'topic = "events"\npolicy = {minimum_delay = "5m"}'), 15, 'policy = "NAME" here',
    ),
    "two topics": (but('topic = "events"', 'topic = ["a", "b"]'), 14, "a [[routes]] for each topic"),
    "two sinks": (but('sink = "out"', 'sink = "out, other"'), 16, "is not a name"),
    "a port alone": (FILE + "[admin]\nlisten = 4180\n", 18, 'write "127.0.0.1:4180"'),
    "YAML": ("nsq:\n  nsqd_tcp_addresses:\n    - 127.0.0.1:4150\n", 1, "this is YAML; nsqdigest reads TOML"),
    "a line of YAML": (but('topic = "events"', "topic: events"), 14, "this looks like YAML; nsqdigest reads TOML"),
    "JSON": ('{"nsq": {"nsqd_tcp_addresses": []}}\n', 1, "this is JSON; nsqdigest reads TOML"),
    "curly quotes": (but('"events"', "“events”"), 14, "these are curly quotes"),
    "another comment": (but('type = "log"', 'type = "log" // x'), 11, "comments begin with #"),
    "a path of Windows": (but('type = "log"', 'type = "log"\npath = "C:\\x"'), 12, "in single quotes: '…'"),
    "a table twice": (FILE + '[nsq]\nchannel = "x"\n', 17, "[nsq] stands in line 1 already"),
    "the parts of a URL": (
        but('url = "redis://127.0.0.1:6379/0"', 'host = "db1"\nport = 6380'), 5, 'write url = "redis://db1:6380/0"',
    ),
    "[[route]]": (but("[[routes]]", "[[route]]"), 13, "did you mean [[routes]]?"),
    "a list of conditions": (FILE + 'match = ["severity=error"]\n', 17, 'write one like {severity = "error"}'),
    "no secret": (
        but('type = "log"', 'type = "webhook"\nurl = "https://example.com"\nsecret = "whsec_abc"'), 13,
        'echo "whsec_$(openssl rand -base64 32)"',
    ),
    "a key that is a field": (FILE + 'key = "order_id"\n', 17, 'write "{order_id}"'),
    "Jinja": (but("{user}", "{{ user }}"), 15, 'write "{user}"'),
    "Go": (but("{user}", "{{.user}}"), 15, 'write "{user}"'),
    "a shell": (but("{user}", "${user}"), 15, 'write "{user}"'),
    "a password in a URL": (but("redis://", "redis://:env:PW@"), 5, 'write "env:NAME" alone'),
    "a sink mistyped": (but('sink = "out"', 'sink = "uot"'), 16, 'did you mean "out"?'),
    "a policy mistyped": (FILE + 'policy = "defualt"\n', 17, 'did you mean "default"?'),
    "a key mistyped": (but("minimum_delay", "minimal_delay"), 8, 'did you mean "minimum_delay"?'),
}  # fmt: skip
"""The fifteen that were met most, and what else mixed events or lost them."""


@pytest.mark.parametrize("what", FIFTEEN)
def test_a_mistake_is_one_line_with_its_place_and_the_remedy(shell: Shell, what: str) -> None:
    text, line, remedy = FIFTEEN[what]
    shell.write(text)
    done = shell.run("check")
    assert (done.returncode, done.stdout) == (EXIT_CONFIG, "")
    (only,) = done.stderr.splitlines()
    assert only.startswith(f"nsqdigest.toml:{line}: ")
    assert remedy in only
    assert "not TOML: " not in only, "the words of a parser"
    tried = shell.run("try", stdin=b'{"user": "ada"}')
    assert (tried.returncode, tried.stdout, tried.stderr) == (EXIT_CONFIG, "", done.stderr)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FILE + 'match = {severity = "eror"}\n', '  route     events: severity is "error"; it takes "eror"'),
        (FILE + 'match = {severty = "error"}\n', '  -> it has no "severty"; did you mean "severity"?'),
        (FILE + 'match = {code = "7"}\n', '  route     events: code is 7; it takes "7"'),
        (but("{user}", "{usr}"), '  -> it has no "usr"; did you mean "user"?'),
        (but("{user}", "{user.id}"), '  detail    route events: the field "user.id" is not there'),
        (but("{user}", "{id}"), '  -> it has no "id"; did you mean "meta.id"?'),
        (FILE + 'timestamp = "when"\n', '  detail    route events: the timestamp field "when" is not there'),
        (FILE + 'timestamp = "meta.n"\n', '  -> publish seconds or milliseconds since 1970, no microseconds'),
    ],
)  # fmt: skip
def test_what_only_an_event_can_show_is_shown_by_try(shell: Shell, text: str, expected: str) -> None:
    shell.write(text)
    assert shell.run("check").returncode == EXIT_OK
    event = b'{"user": "ada", "severity": "error", "code": 7, "meta": {"id": 1, "n": 1700000000000000}}'
    done = shell.run("try", stdin=event)
    assert done.returncode == EXIT_NO
    assert expected in done.stdout.splitlines()
