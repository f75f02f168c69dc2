"""Every small way to break a Lua script's text (pure): operators.py for Lua, which Python cannot parse.

The text is cut into tokens, and what a change needs of the grammar is read off them: where a statement begins (a name
behind the end of an expression begins one), which brackets belong together, in which function a token stands. Comments
are left alone. It knows no script: only Lua, and what Redis' commands look like.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from scripts.mutants.operators import Change

_TOKEN = re.compile(
    r"""(?P<comment>--\[(?P<level>=*)\[.*?\](?P=level)\]|--[^\n]*)
    |(?P<string>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\[(?P<depth>=*)\[.*?\](?P=depth)\])
    |(?P<number>0[xX][0-9a-fA-F]+|\d+\.?\d*(?:[eE][+-]?\d+)?)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<sign>\.\.\.|\.\.|==|~=|<=|>=|[-+*/%^\#<>=(){}\[\];:,.])""",
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS = frozenset((
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil", "not", "or",
    "repeat", "return", "then", "true", "until", "while",
))  # fmt: skip
_BEGIN = frozenset(("local", "if", "for", "while", "repeat", "return", "break"))
_CLOSE = frozenset(("end", "else", "elseif", "until"))
_BEHIND = frozenset(("then", "do", "else", "repeat", ";"))
_ENDS_EXPRESSION = frozenset((")", "]", "}", "...", "nil", "true", "false", "end"))
_PAIRS = {"(": ")", "{": "}", "[": "]"}
_OTHER = {
    "<": ("boundary <=", "opposite >="), "<=": ("boundary <", "opposite >"), ">": ("boundary >=", "opposite <="),
    ">=": ("boundary >", "opposite <"), "==": ("opposite ~=",), "~=": ("opposite ==",), "and": ("and-or or",),
    "or": ("and-or and",), "true": ("flip false",), "false": ("flip true",), "*": ("arithmetic /",),
    "/": ("arithmetic *",), "+": ("arithmetic -",), "min": ("other-function max",), "max": ("other-function min",),
    "'LT'": ("flag 'GT'",), "'NX'": ("flag 'XX'",), "'-inf'": ("flag '+inf'",), "'+inf'": ("flag '-inf'",),
}  # fmt: skip
_WORD = re.compile(r"'[a-z][a-z_:]*'")
_COMMAND = re.compile(r"'[A-Z]+'")
_NOT_SWAPPED = frozenset(("min", "max"))


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


def changes_of(text: str) -> list[Change]:
    """In the order of the text; each place in bytes."""
    script = _Script(text.encode().decode("latin-1"))  # so that a place in this text is one in bytes
    found = {(change.start, change.old, change.new): change for change in script.changes() if change.old != change.new}
    return sorted(found.values(), key=lambda change: (change.start, len(change.old), change.operator, change.new))


class _Script:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [
            _Token(match.lastgroup or "", match.group(), match.start(), match.end())
            for match in _TOKEN.finditer(text)
            if match.lastgroup not in {"comment", "level"} and not match.group().startswith("--")
        ]
        self._closing = self._pairs()
        self._starts = [place for place in range(len(self._tokens)) if self._is_start(place)]
        self._words = list(dict.fromkeys(each.text for each in self._tokens if _WORD.fullmatch(each.text)))
        self._functions = self._enclosing()

    def changes(self) -> Iterator[Change]:
        for place in self._starts:
            yield from self._of_statement(place)
        for place, token in enumerate(self._tokens):
            yield from self._of_token(place, token)
            if token.text == "(" and place and self._ends_expression(place - 1):
                yield from self._of_call(place)
            if token.text in {"if", "elseif", "while"}:
                yield from self._of_condition(place)

    # -- what the tokens say

    def _pairs(self) -> dict[int, int]:
        opened: list[int] = []
        found: dict[int, int] = {}
        for place, token in enumerate(self._tokens):
            if token.text in _PAIRS:
                opened.append(place)
            elif token.text in _PAIRS.values():
                found[opened.pop()] = place
        return found

    def _ends_expression(self, place: int) -> bool:
        kind, text = self._tokens[place][:2]
        return kind in {"string", "number"} or text in _ENDS_EXPRESSION or (kind == "name" and text not in _KEYWORDS)

    def _is_start(self, place: int) -> bool:
        kind, text = self._tokens[place][:2]
        if text in _BEGIN or place == 0 or self._tokens[place - 1].text in _BEHIND:
            return text not in _CLOSE
        return kind == "name" and text not in _KEYWORDS and self._ends_expression(place - 1)

    def _end_of(self, place: int) -> int:
        """Of a statement the place behind its last token."""
        end = place + 1
        while end < len(self._tokens) and end not in self._starts and self._tokens[end].text not in _CLOSE:
            end = self._closing.get(end, end) + 1
        return end

    def _enclosing(self) -> list[str]:
        """Of each token the name of the function that it stands in, `script` outside of all."""
        blocks = ["script"]
        found = []
        for place, token in enumerate(self._tokens):
            if token.text == "function":
                name = self._tokens[place + 1]
                blocks.append(name.text if name.kind == "name" else blocks[-1])
            elif token.text in {"if", "do", "repeat"}:
                blocks.append(blocks[-1])
            found.append(blocks[-1])
            if token.text in {"end", "until"}:
                blocks.pop()
        return found

    def _change(self, operator: str, place: int, end: int, new: str) -> Change:
        start, stop = self._tokens[place].start, self._tokens[end - 1].end
        lines = self._text.count("\n", 0, start) + 1, self._text.count("\n", 0, stop) + 1
        around = self._text[self._text.rfind("\n", 0, start) + 1 :].partition("\n")[0].strip()
        texts = (text.encode("latin-1").decode() for text in (self._text[start:stop], new, around))
        return Change(self._functions[place], *lines, operator, start, *texts)

    def _piece(self, place: int, end: int) -> str:
        return self._text[self._tokens[place].start : self._tokens[end - 1].end]

    # -- the ways

    def _of_statement(self, place: int) -> Iterator[Change]:
        end = self._end_of(place)
        texts = [token.text for token in self._tokens[place:end]]
        if "function" in texts or end == place + 1:
            return
        if texts[0] == "return":
            yield self._change("return-nil", place, end, "return nil")
        elif texts[0] not in _KEYWORDS:
            bracket = next((at for at in range(place, end) if self._tokens[at].text in {"(", "="}), end)
            is_call = bracket < end and self._closing.get(bracket) == end - 1
            yield self._change("drop-call" if is_call else "drop-assignment", place, end, "do end")

    def _of_token(self, place: int, token: _Token) -> Iterator[Change]:
        for other in _OTHER.get(token.text, ()):
            operator, _, new = other.partition(" ")
            yield self._change(operator, place, place + 1, new)
        if token.text == "not":
            yield self._change("drop-not", place, place + 1, "")
        elif token.text == "-":
            is_binary = place and self._ends_expression(place - 1)
            yield self._change("arithmetic" if is_binary else "drop-minus", place, place + 1, "+" if is_binary else "")
        elif token.text.isdecimal():
            yield self._change("plus-one", place, place + 1, str(int(token.text) + 1))
            yield self._change("minus-one", place, place + 1, f"({int(token.text) - 1})")
        elif token.kind == "number":
            yield self._change("double", place, place + 1, f"(2 * {token.text})")
        elif token.text in self._words:
            others = [*self._words[self._words.index(token.text) + 1 :], *self._words]
            yield self._change("other-word", place, place + 1, others[0] if len(self._words) > 1 else "'other'")

    def _of_call(self, place: int) -> Iterator[Change]:
        arguments = self._arguments(place)
        if arguments and _COMMAND.fullmatch(self._piece(*arguments[0])):
            arguments = arguments[1:]
        if self._tokens[place - 1].text in _NOT_SWAPPED or self._tokens[place - 2].text == "function":
            return
        for first, second in {(0, 1), (len(arguments) - 2, len(arguments) - 1)} if len(arguments) > 1 else ():
            (a, a_end), (b, b_end) = arguments[first], arguments[second]
            between = self._text[self._tokens[a_end - 1].end : self._tokens[b].start]
            yield self._change("swap", a, b_end, self._piece(b, b_end) + between + self._piece(a, a_end))

    def _arguments(self, bracket: int) -> list[tuple[int, int]]:
        found, begin, place = [], bracket + 1, bracket + 1
        while place < self._closing[bracket]:
            if self._tokens[place].text == ",":
                found.append((begin, place))
                begin = place + 1
            place = self._closing.get(place, place) + 1
        return [*found, (begin, place)] if place > bracket + 1 else []

    def _of_condition(self, place: int) -> Iterator[Change]:
        """One that has no comparison, `and`, `or` or `not`: those are turned round themselves."""
        end = next(at for at in range(place, len(self._tokens)) if self._tokens[at].text in {"then", "do"})
        texts = {token.text for token in self._tokens[place + 1 : end]}
        if not texts & {"==", "~=", "<", "<=", ">", ">=", "and", "or", "not"}:
            yield self._change("negate", place + 1, end, f"not ({self._piece(place + 1, end)})")
