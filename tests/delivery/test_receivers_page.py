"""docs/receivers.md shows what arrives: its picture and its template are rendered here."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from nsqdigest.config import Config, parse_text
from nsqdigest.delivery.bodies.base import JSON
from nsqdigest.delivery.bodies.checking import fault_of
from nsqdigest.delivery.bodies.sample import sample_of
from nsqdigest.delivery.bodies.slack import slack
from nsqdigest.delivery.bodies.template import Template
from nsqdigest.delivery.sinks.table import KINDS

pytestmark = pytest.mark.unit

PAGE = (Path(__file__).parents[2] / "docs" / "receivers.md").read_text("utf-8")


def block(title: str) -> str:
    found = re.search(rf"<!-- {title} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found.group(1)


def config() -> Config:
    found = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    text = '[nsq]\nnsqd_tcp_addresses = ["127.0.0.1:4150"]\n' + found.group(1)
    return parse_text(text, "f.toml", {"SLACK_URL": "https://hooks.slack.com/services/x"}, KINDS)


def test_the_configuration_is_one_without_advice() -> None:
    assert config().warnings == ()


def test_the_picture_is_what_arrives() -> None:
    message = json.loads(slack(sample_of(config().routes[0])))
    texts = [text["text"] for part in message["blocks"] for text in part.get("elements", [part.get("text")])]
    seen = re.sub(r"<!date[^|]*\|([^>]*)>", r"\1", "\n".join(texts)).replace("`", "").replace("*", "")
    assert block("a message") == seen + "\n"


def test_the_template_makes_the_body_and_check_finds_nothing() -> None:
    text = block("a template")
    body = Template(text, JSON, 65_536, time.monotonic)(sample_of(config().routes[0]))
    assert json.loads(body) == json.loads(block("its body"))
    assert fault_of(text, JSON, 65_536, (False, True), time.monotonic) is None


def test_the_targets_are_those_of_a_configuration() -> None:
    routes = "".join(f'[[routes]]\nname = "{sink}"\ntopic = "events"\ntimeline = "{{user.id}}"\nsink = "{sink}"\n'
                     for sink in ("tenants", "queue"))  # fmt: skip
    text = '[nsq]\nnsqd_tcp_addresses = ["127.0.0.1:4150"]\n' + block("targets") + routes
    assert parse_text(text, "f.toml", {"HOOK_SECRET": f"whsec_{'A' * 43}="}, KINDS).warnings == ()


def test_every_variable_is_there() -> None:
    names = re.findall(r"`((?:data\.)?[a-z_.]+)`", PAGE[PAGE.index("| variable |") : PAGE.index("- **Text is")])
    variables = [name for name in names if name.startswith("data.") or name == "timestamp"]
    assert len(variables) > 15
    for name in variables:
        Template(f"{{{{ {name} | tojson }}}}", JSON, 65_536, time.monotonic)(sample_of(config().routes[0]))
