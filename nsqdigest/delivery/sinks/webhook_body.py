"""What a webhook posts in place of the digest's JSON: the options `format`, `body` and `content_type`."""

from __future__ import annotations

import re
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from nsqdigest.config.options import Option, Tables
from nsqdigest.config.problems import Spot, Wrong
from nsqdigest.config.readers import Choice, Reader, Text, text_of
from nsqdigest.config.texts import whole_path
from nsqdigest.delivery.bodies.base import JSON, Body
from nsqdigest.delivery.bodies.formats import DIGEST, FORMATS

_FILE = "file:"
_LIKE = 'write one like "file:message.json.j2"'
LARGEST_TEMPLATE_BYTES = 64 * 1024
_CONTENT_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(?:; ?[A-Za-z0-9-]+=[A-Za-z0-9_.-]+)*")
_HOSTS_OF_FORMATS = {
    "slack": ("hooks.slack.com",),
    "teams": (".webhook.office.com", ".logic.azure.com", ".api.powerplatform.com"),
}


class TemplateFile(NamedTuple):
    path: str
    text: str


# -- in the file


@dataclass(frozen=True, slots=True)
class BodyFile(Reader):
    """`file:NAME`, from the folder of the configuration; "" for none."""

    resolves = False

    def __call__(self, value: Any, spot: Spot) -> TemplateFile | None:
        text = text_of(value)
        if not text:
            return None
        name = text.removeprefix(_FILE)
        if not text.startswith(_FILE) or not name or "\0" in name:
            raise Wrong("does not name a file", _LIKE)
        path = Path(spot.findings.source).parent / whole_path(name)
        return TemplateFile(str(path), _read(path))


def _read(path: Path) -> str:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise Wrong(f"stands for {path}, which is not a plain file", _LIKE)
        if status.st_mode & 0o002:
            raise Wrong(f"stands for {path}, which every user of this machine may write", f"run: chmod o-w {path}")
        if status.st_size > LARGEST_TEMPLATE_BYTES:
            raise Wrong(f"stands for {path}, which is larger than 64 KiB", "write a shorter template")
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        remedy = "make it; a relative path starts at the folder of this file"
        raise Wrong(f"stands for {path}, which is not there", remedy) from None
    except OSError as error:
        raise Wrong(f"stands for {path}, which cannot be read: {error.strerror}", "make it readable") from None
    except UnicodeDecodeError:
        raise Wrong(f"stands for {path}, which is not UTF-8", "save it as UTF-8") from None


def content_type(text: str) -> str:
    if not _CONTENT_TYPE.fullmatch(text):
        raise Wrong("is not a content type", f'write one like "{JSON}" or "text/plain; charset=utf-8"')
    return text


OPTIONS = (
    Option("format", Choice((DIGEST, *FORMATS)), DIGEST, '"slack" or "teams": a message for people'),
    Option(
        "body", BodyFile(), "", '"file:message.json.j2": a Jinja2 template (docs/receivers.md)', attribute="template"
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
        # Only who has a template loads its compiler.
        from nsqdigest.delivery.bodies.checking import fault_of

        fault = fault_of(template.text, kind, most, _grouped(tables.routes, name), time.monotonic)
        if fault is not None:
            spot = root / "sinks" / name / "body"
            report = spot.warning_of if fault.is_warning else spot.problem_of
            report(template.path, fault.line, fault.problem, fault.remedy)


def _grouped(routes: Sequence[Mapping[str, Any]], sink: str) -> list[bool]:
    """Whether the digests of the sink have groups: some may, and some not."""
    return sorted({bool(route.get("group")) for route in routes if route.get("sink") == sink}) or [False]


# -- for delivery


def body_of(
    chosen: str, template: TemplateFile | None, kind: str, max_body_bytes: int, *, is_sample: bool = False
) -> Body | None:
    """None: the digest's own JSON. `is_sample`: for events that have every field that a template asks for."""
    if template is None:
        return FORMATS.get(chosen)
    from nsqdigest.delivery.bodies.template import Template

    body = Template(template.text, kind, max_body_bytes, time.monotonic)
    body.sandbox.is_sample = is_sample
    return body
