"""The headers of a webhook that the file adds: the option `headers`. Their values may be credentials."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nsqdigest.config import texts
from nsqdigest.config.model import MASK
from nsqdigest.config.problems import INVALID, Spot, Wrong
from nsqdigest.config.readers import HiddenText, Reader, take

OUR_HEADERS = ("content-type", "nsqdigest-attempt")
FRAMING_HEADERS = ("connection", "content-length", "transfer-encoding")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class Headers(Mapping[str, str]):
    """Their values may be credentials, so repr shows the names alone."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Headers({', '.join(f'{name}: {MASK}' for name in self._values)})"


def header_value(text: str) -> str:
    if texts.CONTROL.search(text):
        raise Wrong("has a line break or another control character", "leave it out")
    return text


@dataclass(frozen=True, slots=True)
class HeaderTable(Reader):
    override = "data"

    def __call__(self, value: Any, spot: Spot) -> Any:
        if not isinstance(value, dict):
            raise Wrong("is not a table", 'write one like {"x-team" = "shop"}')
        known: set[str] = set()
        taken: dict[str, Any] = {}
        for name, text in value.items():
            lower = name.lower()
            if lower in known:
                (spot / name).problem("is listed twice", "leave one of them out")
            elif lower.startswith("webhook-") or lower in OUR_HEADERS:
                (spot / name).problem("is a header that nsqdigest sets", "leave it out")
            elif lower in FRAMING_HEADERS:
                (spot / name).problem("is a header that HTTP itself needs", "leave it out")
            elif not _HEADER_NAME.fullmatch(name):
                (spot / name).problem("is not the name of a header", "write letters, digits and -")
            else:
                taken[name] = take(HiddenText(header_value), text, spot / name)
            known.add(lower)
        return INVALID if len(taken) < len(value) or INVALID in taken.values() else Headers(taken)
