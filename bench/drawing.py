"""SVG by hand: shapes, a panel and a frame with axes (pure; imports nothing of the rest of bench).

Every picture stands on a panel of its own, so that it can be read on any page; the panel follows light or dark. Colours
are classes of the style, never attributes: that is how they can follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 860
CHARACTER = 6.9
"""About the width of a character of the text."""

STYLE = """\
  .panel{fill:#fff;stroke:#d0d7de}.ink{fill:#1f2328}.faint{fill:#59636e}.rule{stroke:#d0d7de;fill:none}
  .ink-line{stroke:#1f2328;fill:none;stroke-width:1.5}
  text{font:13px system-ui,sans-serif}.head{font-size:15px;font-weight:600}
  .strong{font-weight:600}.small{font-size:12px}
  .halo{paint-order:stroke;stroke:#fff;stroke-width:5;stroke-linejoin:round}
  @media (prefers-color-scheme:dark){.panel{fill:#161b22;stroke:#3d444d}.ink{fill:#e6edf3}.faint{fill:#9aa4af}
  .rule{stroke:#3d444d}.ink-line{stroke:#e6edf3}
  .halo{stroke:#161b22}}"""


def colours(**pairs: tuple[str, str]) -> str:
    """Rules of named colours, each (light, dark): `.name` fills, `.name-line` draws, `.name-wash` fills thinly."""
    light, dark = (
        "".join(
            f".{name}{{fill:{pair[which]}}}.{name}-line{{stroke:{pair[which]};fill:none;stroke-width:2.25}}"
            f".{name}-wash{{fill:{pair[which]};fill-opacity:.16}}"
            for name, pair in pairs.items()
        )
        for which in (0, 1)
    )
    return f"  {light}\n  @media (prefers-color-scheme:dark){{{dark}}}"


def text(x: float, y: float, words: str, css: str = "ink", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}" text-anchor="{anchor}">{escape(words)}</text>'


def rect(x: float, y: float, width: float, height: float, css: str, *, radius: float = 0) -> str:
    rounded = f' rx="{radius:g}"' if radius else ""
    size = f'width="{max(width, 0.5):.1f}" height="{height:g}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size}{rounded} class="{css}"/>'


def path(points: Iterable[tuple[float, float]], css: str, *, closed: bool = False) -> str:
    drawn = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path d="M{drawn}{"Z" if closed else ""}" class="{css}"/>'


def dot(x: float, y: float, radius: float, css: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" class="{css}"/>'


def svg(height: float, title: str, body: Iterable[str], style: str = "", width: float = WIDTH) -> str:
    """The whole picture, on its panel."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
            f"<title>{escape(title)}</title>",
            "<style>",
            STYLE,
            *([style] if style else []),
            "</style>",
            f'<rect x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="8" class="panel"/>',
            *body,
            "</svg>\n",
        ]
    )


@dataclass(frozen=True, slots=True)
class Frame:
    """Where values are drawn: a box on the panel, from 0 (or `first_x`) to the largest x and y."""

    left: float
    top: float
    width: float
    height: float
    last_x: float
    last_y: float
    first_x: float = 0.0

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a value stands. What is beyond the box is drawn at its edge."""
        across = (min(max(x, self.first_x), self.last_x) - self.first_x) / (self.last_x - self.first_x)
        up = min(max(y, 0.0), self.last_y) / self.last_y
        return self.left + across * self.width, self.top + (1 - up) * self.height

    def axes(self, xs: Sequence[tuple[float, str]], ys: Sequence[tuple[float, str]]) -> list[str]:
        """Rules across at the ys, small marks below at the xs, each with its words."""
        drawn: list[str] = []
        for y, words in ys:
            _, height = self.at(0, y)
            drawn.append(path([(self.left, height), (self.left + self.width, height)], "rule"))
            drawn.append(text(self.left - 8, height + 4.5, words, "faint small", "end"))
        bottom = self.top + self.height
        for x, words in xs:
            across, _ = self.at(x, 0)
            drawn.append(path([(across, bottom), (across, bottom + 5)], "rule"))
            drawn.append(text(across, bottom + 19, words, "faint small", "middle"))
        return drawn

    def curve(self, points: Iterable[tuple[float, float]], css: str) -> str:
        return path([self.at(x, y) for x, y in points], css)

    def area(self, points: Sequence[tuple[float, float]], css: str) -> str:
        """Between the points and the bottom."""
        ends = [self.at(points[-1][0], 0), self.at(points[0][0], 0)]
        return path([*(self.at(x, y) for x, y in points), *ends], css, closed=True)


def legend(x: float, y: float, entries: Iterable[tuple[str, str]]) -> list[str]:
    """A short line of each class, and its words beside it, in one row."""
    drawn: list[str] = []
    for css, words in entries:
        if css.endswith("-wash"):
            drawn.append(rect(x, y - 10, 22, 11, css))
        else:
            drawn.append(path([(x, y - 4.5), (x + 22, y - 4.5)], css))
        drawn.append(text(x + 29, y, words, "faint"))
        x += 29 + CHARACTER * len(words) + 22
    return drawn
