"""The moments of a demo as one SVG (pure): text that can be read and copied, in light and dark.

The frames follow each other by CSS alone. Who asked for less motion, or whose viewer moves nothing, sees the last one.
No script, no font and no image from elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from xml.sax.saxutils import escape

from nsqdigest.demo.lines import Line, Runs

CELL, ROW, FONT, MARGIN = 8.4, 18, 14, 16
"""In pixels. A monospace font of 14 is about 8.4 wide; each piece of text is stretched to just that."""
FRAME_S, LAST_FRAME_S = 4, 10
LIGHT = {
    "": "#24292f", "bold": "#000000", "dim": "#57606a", "daemon": "#8a4600", "good": "#116329", "bad": "#b3141e",
    "digest": "#0a5c6b", "fatal": "#b3141e", "error": "#b3141e", "warning": "#8a4600",
}  # fmt: skip
DARK = {
    "": "#d1d7de", "bold": "#ffffff", "dim": "#9198a1", "daemon": "#e3a35b", "good": "#56c26a", "bad": "#ff8078",
    "digest": "#5ec9db", "fatal": "#ff8078", "error": "#ff8078", "warning": "#e3a35b",
}  # fmt: skip
LIGHT_GROUND, DARK_GROUND = "#f6f8fa", "#0d1117"
TITLE = "The last seconds of nsqdigest demo, on a terminal"


class Frame(Protocol):
    @property
    def header(self) -> Sequence[Runs]: ...

    @property
    def lines(self) -> Sequence[Line]: ...


def svg(frames: Sequence[Frame], columns: int) -> str:
    """Of one frame at least."""
    rows = max(len(frame.header) + len(frame.lines) for frame in frames)
    width, height = round(columns * CELL) + 2 * MARGIN, rows * ROW + 2 * MARGIN
    drawn = "\n".join(
        f'<g class="frame{" last" if number == len(frames) - 1 else f" n{number}"}">\n{_frame(frame)}\n</g>'
        for number, frame in enumerate(frames)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{TITLE}">\n<title>{TITLE}</title>\n<style>\n{_style(len(frames))}</style>\n'
        f'<rect class="ground" width="{width}" height="{height}" rx="8"/>\n{drawn}\n</svg>\n'
    )


def _frame(frame: Frame) -> str:
    """A row each; the header's chart lines are of blocks, which are drawn as text like the rest."""
    rows = [*frame.header, *(line.runs for line in frame.lines)]
    return "\n".join(filter(None, (_row(number, runs) for number, runs in enumerate(rows))))


def _row(number: int, runs: Runs) -> str:
    """Each piece stands at its own column, so that no font can shift those behind it."""
    pieces, column = [], 0
    for style, text in runs:
        shown = text.strip()
        if shown:
            x = MARGIN + (column + len(text) - len(text.lstrip())) * CELL
            kind = f' class="{style}"' if style else ""
            pieces.append(f'<tspan x="{x:.1f}" textLength="{len(shown) * CELL:.1f}"{kind}>{escape(shown)}</tspan>')
        column += len(text)
    return f'<text y="{MARGIN + (number + 1) * ROW - 5}">{"".join(pieces)}</text>' if pieces else ""


def _style(frames: int) -> str:
    whole_s = (frames - 1) * FRAME_S + LAST_FRAME_S
    moving = [
        f".n{number}{{animation:frame {whole_s}s -{whole_s - number * FRAME_S}s step-end infinite}}"
        for number in range(frames - 1)
    ]
    part, last = FRAME_S / whole_s, LAST_FRAME_S / whole_s
    return "\n".join([
        f"text{{font:{FONT}px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre}}",
        *_colours(LIGHT, LIGHT_GROUND),
        ".bold,.fatal{font-weight:bold}",
        ".frame{visibility:hidden}.last{visibility:visible}",
        "@media (prefers-color-scheme:dark){", *_colours(DARK, DARK_GROUND), "}",
        f"@keyframes frame{{0%{{visibility:visible}}{part:.4%}{{visibility:hidden}}}}",
        f"@keyframes last{{0%{{visibility:visible}}{last:.4%}{{visibility:hidden}}}}",
        "@media (prefers-reduced-motion:no-preference){", *moving,
        f".last{{animation:last {whole_s}s -{LAST_FRAME_S}s step-end infinite}}" if moving else "", "}", "",
    ])  # fmt: skip


def _colours(colours: dict[str, str], ground: str) -> list[str]:
    kinds = "".join(f".{style}{{fill:{colour}}}" for style, colour in colours.items() if style)
    return [f".ground{{fill:{ground}}}text{{fill:{colours['']}}}{kinds}"]
