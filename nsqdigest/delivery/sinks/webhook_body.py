"""What a webhook posts in place of the digest's JSON: the options `format`, `body` and `content_type`."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from nsqdigest.config.options import Option, Tables
from nsqdigest.config.problems import Spot, Wrong
from nsqdigest.config.readers import Choice, Text
from nsqdigest.delivery.bodies.base import JSON, Body
from nsqdigest.delivery.bodies.formats import DIGEST, FORMATS
from nsqdigest.delivery.sinks.template_files import TemplateFile, TemplateOption, check, compiled

_CONTENT_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(?:; ?[A-Za-z0-9-]+=[A-Za-z0-9_.-]+)*")
_HOSTS_OF_FORMATS = {
    "slack": ("hooks.slack.com",),
    "teams": (".webhook.office.com", ".logic.azure.com", ".api.powerplatform.com"),
}


# -- in the file


def content_type(text: str) -> str:
    if not _CONTENT_TYPE.fullmatch(text):
        raise Wrong("is not a content type", f'write one like "{JSON}" or "text/plain; charset=utf-8"')
    return text


OPTIONS = (
    Option("format", Choice((DIGEST, *FORMATS)), DIGEST, '"slack" or "teams": a message for people'),
    Option(
        "body",
        TemplateOption("message.json.j2"),
        "",
        '"file:message.json.j2": a Jinja2 template (docs/receivers.md)',
        attribute="template",
    ),
    Option("content_type", Text(content_type), JSON, "of a body of your own; it decides how text is encoded in it"),
)


def one_body(values: dict[str, Any], spot: Spot) -> None:
    chosen, template = values.get("format"), values.get("template")
    if template is not None and chosen not in (None, DIGEST):
        spot.first_written("body").problem(f'format = "{chosen}" has a body already', "leave one of the two out")
    if "template" in values and template is None and values.get("content_type", JSON) != JSON:
        (spot / "content_type").problem(
            "is of a body of your own, and there is none", 'leave it out, or write body = "file:…"'
        )
    if template is not None or chosen != DIGEST or "url" not in values:
        return
    host = (urlsplit(values["url"]).hostname or "").rstrip(".")
    for name, ends in _HOSTS_OF_FORMATS.items():
        if host.endswith(ends):
            spot.first_written("format", "url").warning(
                f"{name.capitalize()} does not take the JSON of a digest", f'write format = "{name}"'
            )


def templates(tables: Tables, root: Spot) -> None:
    """Each is compiled, and rendered with digests like those of the sink's routes."""
    for name, sink in tables.sinks.items():
        template, kind, most = (sink.get(each) for each in ("template", "content_type", "max_body_bytes"))
        if template is None or kind is None or most is None:
            continue
        check(template, kind, most, tables.routes, root / "sinks" / name / "body")


# -- for delivery


def body_of(
    chosen: str, template: TemplateFile | None, kind: str, max_body_bytes: int, *, is_sample: bool = False
) -> Body | None:
    """None: the digest's own JSON. `is_sample`: for events that have every field that a template asks for."""
    if template is None:
        return FORMATS.get(chosen)
    return compiled(template, kind, max_body_bytes, is_sample=is_sample)
