"""The picture of a demo: well-formed, of the demo's own frames, without anything from elsewhere; the one in docs/."""

from __future__ import annotations

import io
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from nsqdigest.demo.display import Frame, PlainDisplay
from nsqdigest.demo.header import History
from nsqdigest.demo.lines import PAINTS, Line, laid
from nsqdigest.demo.picture import DARK, DARK_GROUND, LIGHT, LIGHT_GROUND, svg

pytestmark = pytest.mark.unit

SVG = "{http://www.w3.org/2000/svg}"
DOCS = Path(__file__).resolve().parents[2] / "docs"
LARGEST_BYTES = 120_000


def frame(*texts: str) -> Frame:
    header = [laid(line, 100) for line in History().lines(100)]
    return Frame(header, [Line(laid([("dim", "  1.0  "), text], 100)) for text in texts])


def texts_of(drawn: str) -> list[list[str]]:
    """Of each frame the rows, each its pieces joined."""
    root = ElementTree.fromstring(drawn)
    return [["".join(text.itertext()) for text in group.findall(f"{SVG}text")] for group in root.findall(f"{SVG}g")]


def test_each_frame_is_text_and_the_last_one_is_what_a_still_viewer_shows() -> None:
    drawn = svg([frame("first"), frame("second"), frame("third")], 100)
    assert [rows[-1] for rows in texts_of(drawn)] == ["1.0first", "1.0second", "1.0third"]
    kinds = [group.get("class") for group in ElementTree.fromstring(drawn).findall(f"{SVG}g")]
    assert kinds == ["frame n0", "frame n1", "frame last"]
    assert ".frame{visibility:hidden}.last{visibility:visible}" in drawn


def test_text_of_events_is_no_markup() -> None:
    hostile = '</text><script>alert(1)</script> & "quotes" ]]> <image href="http://x/">'
    drawn = svg([frame(hostile, "\x1b[2J\x00\u202e")], 100)
    assert texts_of(drawn)[0][-2] == "1.0" + hostile
    tags = {element.tag.removeprefix(SVG) for element in ElementTree.fromstring(drawn).iter()}
    assert tags <= {"svg", "title", "style", "rect", "g", "text", "tspan"}


def test_pieces_stand_where_they_stand_on_a_terminal() -> None:
    pieces = ElementTree.fromstring(svg([frame("   far")], 100)).iter(f"{SVG}tspan")
    (piece,) = [piece for piece in pieces if piece.text == "far"]
    assert piece.get("x") == f"{16 + 10 * 8.4:.1f}"
    assert piece.get("textLength") == f"{3 * 8.4:.1f}"


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(("colours", "ground"), [(LIGHT, LIGHT_GROUND), (DARK, DARK_GROUND)], ids=["light", "dark"])
def test_every_style_can_be_read_in_light_and_in_dark(colours: dict[str, str], ground: str) -> None:
    assert set(colours) == {"", *PAINTS}
    for colour in colours.values():
        lighter, darker = sorted((luminance(colour), luminance(ground)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, colour


def test_the_picture_in_the_docs_is_of_a_demo_that_lost_nothing() -> None:
    drawn = (DOCS / "pictures" / "demo.svg").read_text(encoding="utf-8")
    assert len(drawn.encode()) < LARGEST_BYTES
    assert not re.search(r"<script|href|url\(|@import|https?://(?!www\.w3\.org/|127\.0\.0\.1)", drawn)
    frames = texts_of(drawn)
    assert len(frames) >= 4
    assert all(rows[0].startswith("events in") for rows in frames)
    last = " ".join(frames[-1])
    for said in ("times fewer interruptions.", "Redis was away for 4 s", "killed with kill -9.", "Lost: 0."):
        assert said in last
    everything = " ".join(row for rows in frames for row in rows)
    for said in (
        "have become one message:",
        "▶ kill -9:",
        "that digest came again with the same id and bytes",
        "at most 64 → 0 → 1",
    ):
        assert said in everything


def test_its_style_is_what_the_demo_draws_today() -> None:
    """Only the frames differ from run to run."""

    def style(drawn: str) -> str:
        return drawn[drawn.index("<style>") : drawn.index("</style>")]

    drawn = (DOCS / "pictures" / "demo.svg").read_text(encoding="utf-8")
    frames = len(texts_of(drawn))
    assert style(drawn) == style(svg([frame("x")] * frames, 100))


def test_a_display_keeps_what_the_picture_needs() -> None:
    display = PlainDisplay(io.StringIO(), width=100)
    display.set_header(History().lines(100))
    display.line(("fatal", "worker died"))
    display.keep_frame(10)
    display.close()
    assert texts_of(svg(display.frames, 100))[0][-1] == "worker died"
