"""Takes fields out of an event's JSON (pure): what a route drops is stored nowhere.

Invariants:
- What is left is as it came, byte for byte: numbers, escapes, order, blanks. With a field go the comma and the blanks
  that separate it from its neighbours.
- A field goes wherever its object has it: under a duplicate name, or a name that is written with escapes. A path goes
  through lists: "users.email" is the "email" of each object in the list "users".

The body was decoded before, so it is one JSON object, and no deeper than limits.depth.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence

Path = tuple[str, ...]
Remove = Callable[[bytes], bytes]
_Tree = dict[str, "_Tree | None"]
"""Names on the way to what goes; None: this goes."""

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_Tokens = Iterator["re.Match[bytes]"]


def remover(paths: Sequence[Path]) -> Remove:
    tree = _tree_of(paths)
    # Most events that have none of the fields are known by that; a name with an escape is looked at closely.
    names = [json.dumps(name, ensure_ascii=False).encode() for name in {path[-1] for path in paths}]

    def remove(body: bytes) -> bytes:
        if b"\\" not in body and not any(name in body for name in names):
            return body
        cuts: list[tuple[int, int]] = []
        tokens = _TOKEN.finditer(body)
        _look_through(next(tokens), tokens, tree, cuts)
        if not cuts:
            return body
        pieces, at = [], 0
        for start, end in cuts:
            pieces.append(body[at:start])
            at = end
        return b"".join([*pieces, body[at:]])

    return remove


def _tree_of(paths: Sequence[Path]) -> _Tree:
    tree: _Tree = {}
    for path in sorted(paths, key=len):  # what is dropped whole needs no look within
        place: _Tree | None = tree
        for name in path[:-1]:
            place = place.setdefault(name, {}) if place is not None else None
        if place is not None:
            place[path[-1]] = None
    return tree


def _look_through(first: re.Match[bytes], tokens: _Tokens, tree: _Tree, cuts: list[tuple[int, int]]) -> None:
    """A value that begins with this token. Afterwards the tokens are behind it."""
    opening = first.group()
    if opening == b"{":
        _look_through_object(first, tokens, tree, cuts)
    elif opening == b"[":
        for token in tokens:
            if token.group() == b"]":
                return
            if token.group() != b",":
                _look_through(token, tokens, tree, cuts)


def _look_through_object(first: re.Match[bytes], tokens: _Tokens, tree: _Tree, cuts: list[tuple[int, int]]) -> None:
    """A member begins behind "{" or a comma and ends before the next comma or "}"."""
    begins, goes, is_any_left = first.end(), False, False
    for token in tokens:
        kind = token.group()
        if kind not in (b",", b"}"):
            goes = _look_at_member(kind, tokens, tree, cuts)
            is_any_left = is_any_left or not goes
            continue
        if goes and is_any_left:
            cuts.append((begins - 1, token.start()))  # with the comma before it
        elif goes:
            cuts.append((begins, token.end() if kind == b"," else token.start()))
        if kind == b"}":
            return
        begins, goes = token.end(), False


def _look_at_member(name: bytes, tokens: _Tokens, tree: _Tree, cuts: list[tuple[int, int]]) -> bool:
    """Whether it goes. Its name was read."""
    next(tokens)  # the colon
    value = next(tokens)
    text = json.loads(name)
    below = tree.get(text)
    if below is not None:
        _look_through(value, tokens, below, cuts)
    elif value.group() in (b"{", b"["):
        _skip(tokens)
    return below is None and text in tree


def _skip(tokens: _Tokens) -> None:
    """Behind the end of a container of which the first token was read."""
    depth = 1
    for token in tokens:
        kind = token.group()
        depth += (kind in (b"{", b"[")) - (kind in (b"}", b"]"))
        if depth == 0:
            return
