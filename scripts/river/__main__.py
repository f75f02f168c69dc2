"""The command: `python -m scripts.river [--write]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scripts.river.picture import changes_of, drawn
from scripts.river.ways import Ways, traced_ways

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-it-works.md"
MOST_CHANGES = 33
"""How often one event may change module: as often a reader who follows it changes the file."""
BEGIN, END = "<!-- the river: written by `make river` -->", "<!-- end of the river -->"


def river(ways: Ways) -> str:
    """The block of the page between its marks."""
    event, digest = (drawn(way, ways.package) for way in (ways.event, ways.digest))
    calls = sum(map(len, ways.event)), sum(map(len, ways.digest))
    return "\n".join((
        f"One event, from nsqd to its FIN: {calls[0]} calls, {changes_of(ways.event)} changes of module.", "",
        "```text", "nsqd: a message", *event, "nsqd: FIN", "```", "",
        f"One digest, from due to closed: {calls[1]} calls, {changes_of(ways.digest)} changes of module.", "",
        "```text", "Redis: a timeline is due", *digest, "Redis: closed", "```",
    ))  # fmt: skip


def block_of(page: str) -> str:
    return page.partition(f"{BEGIN}\n")[2].partition(f"\n{END}")[0]


def main() -> int:
    parser = argparse.ArgumentParser(prog="river", description="The way of one event and of one digest.")
    parser.add_argument("--write", action="store_true", help=f"write them into {PAGE.name}")
    options = parser.parse_args()
    ways = traced_ways()
    drawing = river(ways)
    if not options.write:
        print(drawing)
        return 0
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{drawing}\n{END}{after}", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
