"""Draws a way (pure, but for the package's own text): a line for each stage, what it calls indented below it.

A stage is a module that calls others. Its line has the file, the function that was called, with the types that go in
and come out, and behind a dot what it calls in modules that call no others. A function that goes on after an await has
dots before it. A stage that repeats itself is drawn once.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from scripts.river.ways import AWAIT, Step, Turn, Way

FILE_COLUMNS = 34
WIDTH = 118
_PLAIN = {"int", "float", "str", "bool", "bytes", "None", "self"}


@dataclass
class _Stage:
    step: Step
    stages: list[_Stage] = field(default_factory=list)


def changes_of(way: Way) -> int:
    """How often a call is in another module than the one before it: to follow it a reader changes the page."""
    files = [step.file for turn in way for step in turn]
    return sum(before != after for before, after in itertools.pairwise(files))


def drawn(way: Way, package: Path) -> list[str]:
    lines: list[str] = []
    seen = set()
    for turn in way:
        tree = _tree(turn)
        for stage in _stages_of(tree, 0, package) if tree.stages else ():
            if stage not in seen:
                seen.add(stage)
                lines += stage
    return lines


def _tree(turn: Turn) -> _Stage:
    first, *others = turn
    root = _Stage(first)
    stack = [root]
    for step in (each for each in others if each.caller != each.file):
        while len(stack) > 1 and stack[-1].step.file != step.caller:
            stack.pop()
        stage = _Stage(step)
        stack[-1].stages.append(stage)
        stack.append(stage)
    return root


def _stages_of(stage: _Stage, depth: int, package: Path) -> Iterator[tuple[str, ...]]:
    """The lines of each."""
    asked = dict.fromkeys(_short(each.step) for each in stage.stages if not each.stages)
    file = f"{'  ' * depth}{stage.step.file}"
    lines = [f"{file:{FILE_COLUMNS - 1}} {_call(stage.step, package)}"]
    for number, name in enumerate(asked):
        more = f"{'   · ' if not number else ', '}{name}"
        if len(lines[-1] + more) > WIDTH:
            lines[-1] += "," if number else ""
            lines.append(f"{'':{FILE_COLUMNS}}   · {name}")
        else:
            lines[-1] += more
    yield tuple(lines)
    for each in stage.stages:
        if each.stages:
            yield from _stages_of(each, depth + 1, package)


def _short(step: Step) -> str:
    return f"{Path(step.file).stem}.{_name(step)}"


def _name(step: Step) -> str:
    """`__init__` goes by its class."""
    *others, last = step.function.split(".")
    return others[-1] if last == "__init__" else last.strip("<>")


def _call(step: Step, package: Path) -> str:
    if step.caller == AWAIT:
        return f"… {_name(step)}"
    taken, returned = _types(package / step.file).get(step.line, ("", ""))
    return f"{_name(step)}({taken}){f' → {returned}' if returned else ''}"


@cache
def _types(file: Path) -> dict[int, tuple[str, str]]:
    """By the first line of a function: the types that say what is handed on, and what comes back."""
    found = {}
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            taken = [
                _text(each.annotation) for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            ]
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found[first] = ", ".join(dict.fromkeys(each for each in taken if each)), _text(node.returns)
    return found


def _text(annotation: ast.expr | None) -> str:
    text = ast.unparse(annotation) if annotation is not None else ""
    return "" if text in _PLAIN or "Callable" in text else text
