"""The description of the package on an index: README.md without what works in the source alone. Called by hatchling.

There is no picture and no other page beside it there. A link into the source becomes its text, a picture its
description, unless `base` in pyproject.toml says where the source is to be seen.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https://)([^)\s]*)\)")
_COMMENT = re.compile(r"^<!--.*?-->\n+", re.MULTILINE)


def description(readme: str, base: str = "") -> str:
    def elsewhere(link: re.Match[str]) -> str:
        picture, text, target = link.groups()
        if base and not target.startswith("#"):
            return f"{picture}[{text}]({base.rstrip('/')}/{target})"
        return f"*{text}*" if picture else text

    return _COMMENT.sub("", _LINK.sub(elsewhere, readme))


class Readme(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        readme = (Path(self.root) / "README.md").read_text("utf-8")
        text = description(readme, str(self.config.get("base", "")))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
