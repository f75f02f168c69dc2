"""Fragments of HTML with places for text (pure): `Fragment("<b>{name}</b>")(name=text)`.

Invariant: what is put into a place is escaped, unless it is made of fragments itself. (`Markup.format` promises the
same and takes several times as long.)
"""

from __future__ import annotations

from string import Formatter

from markupsafe import Markup, escape


class Fragment:
    def __init__(self, text: str, **always: str) -> None:
        """`always`: what stands in a place each time."""
        self._pieces: list[tuple[str, str]] = []
        """Literal text, and the name of the place behind it; "" behind the last."""
        literal = ""
        for before, name, _, _ in Formatter().parse(text):
            literal += before
            if name in always:
                literal += str(escape(always[name]))
            elif name is not None:
                self._pieces.append((literal, name))
                literal = ""
        self._pieces.append((literal, ""))

    def __call__(self, **texts: object) -> Markup:
        texts[""] = ""
        return Markup("".join([part for literal, name in self._pieces for part in (literal, escape(texts[name]))]))
