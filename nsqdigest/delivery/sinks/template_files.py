"""Templates of the operator's own, which an option of a sink names: `file:message.json.j2`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqdigest.base import files
from nsqdigest.base.files import FileProblem
from nsqdigest.config.problems import Spot, Wrong
from nsqdigest.config.readers import Reader, text_of
from nsqdigest.config.texts import whole_path

if TYPE_CHECKING:
    from nsqdigest.delivery.bodies.template import Template

_FILE = "file:"
LARGEST_TEMPLATE_BYTES = 64 * 1024


class TemplateFile(NamedTuple):
    path: str
    text: str


@dataclass(frozen=True, slots=True)
class TemplateOption(Reader):
    """`file:NAME`, from the folder of the configuration; "" for none."""

    sample: str
    """A name that such a file may have."""
    resolves = False

    def __call__(self, value: Any, spot: Spot) -> TemplateFile | None:
        text = text_of(value)
        if not text:
            return None
        name = text.removeprefix(_FILE)
        if not text.startswith(_FILE) or not name or "\0" in name:
            raise Wrong("does not name a file", self._like)
        path = Path(spot.findings.source).parent / whole_path(name)
        return TemplateFile(str(path), self._read(path))

    @property
    def _like(self) -> str:
        return f'write one like "{_FILE}{self.sample}"'

    def _read(self, path: Path) -> str:
        try:
            file = files.read(path, LARGEST_TEMPLATE_BYTES)
            text = file.data.decode("utf-8")
        except FileProblem as problem:
            raise Wrong(f"stands for {path}, which {problem.what}", problem.remedy) from None
        except UnicodeDecodeError:
            raise Wrong(f"stands for {path}, which is not UTF-8", "save it as UTF-8") from None
        if file.mode & 0o002:
            raise Wrong(f"stands for {path}, which every user of this machine may write", f"run: chmod o-w {path}")
        return text


def check(
    template: TemplateFile, content_type: str, max_body_bytes: int, routes: Sequence[Mapping[str, Any]], spot: Spot
) -> None:
    """Compiles it, and renders digests like those of the routes of its sink. `spot`: the option's."""
    sink = str(spot.path[-2])
    # Only who has a template loads its compiler.
    from nsqdigest.delivery.bodies.checking import fault_of

    fault = fault_of(template.text, content_type, max_body_bytes, _grouped(routes, sink), time.monotonic)
    if fault is not None:
        report = spot.warning_of if fault.is_warning else spot.problem_of
        report(template.path, fault.line, fault.problem, fault.remedy)


def _grouped(routes: Sequence[Mapping[str, Any]], sink: str) -> list[bool]:
    """Whether the digests of the sink have groups: some may, and some not."""
    return sorted({bool(route.get("group")) for route in routes if route.get("sink") == sink}) or [False]


def compiled(template: TemplateFile, content_type: str, max_body_bytes: int, *, is_sample: bool = False) -> Template:
    """`is_sample`: for events that have every field that it asks for."""
    from nsqdigest.delivery.bodies.template import Template

    body = Template(template.text, content_type, max_body_bytes, time.monotonic)
    body.sandbox.is_sample = is_sample
    return body
