"""Every small way to break a module's text (pure): which expression or statement, and what stands there instead.

What nobody may rely on is left alone: annotations, decorators, assertions, what log lines and error texts say, and the
`strict` of a zip. Two changes that come to the same text are one. The order is that of the text, on any version of
Python.
"""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_BOUNDARY: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.LtE(), ast.LtE: ast.Lt(), ast.Gt: ast.GtE(), ast.GtE: ast.Gt()
}  # fmt: skip
_OPPOSITE: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.GtE(), ast.LtE: ast.Gt(), ast.Gt: ast.LtE(), ast.GtE: ast.Lt(), ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(), ast.Is: ast.IsNot(), ast.IsNot: ast.Is(), ast.In: ast.NotIn(), ast.NotIn: ast.In(),
}  # fmt: skip
_OTHER_ARITHMETIC: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(), ast.Sub: ast.Add(), ast.Mult: ast.Div(), ast.Div: ast.Mult(), ast.FloorDiv: ast.Mult(),
    ast.Mod: ast.Mult(), ast.Pow: ast.Mult(),
}  # fmt: skip
_OTHER_FUNCTION = {"min": "max", "max": "min", "any": "all", "all": "any"}
# Types are nothing that runs; of the others the order of two does not matter.
_NOT_SWAPPED = frozenset(("isinstance", "cast", "TypeVar", "NamedTuple", "min", "max", "gather"))


class Change(NamedTuple):
    """One way to break the text, at a place that is counted in bytes."""

    function: str
    """Where it is, with its class: `Router.records_of`; `module` outside of all functions."""
    line: int
    last_line: int
    operator: str
    start: int
    old: str
    new: str
    context: str = ""
    """What stands around it, where its function alone says too little."""

    def __str__(self) -> str:
        """Stays the same while lines move."""
        where = f"{self.function}: {self.context}" if self.context else self.function
        return f"{where}: {_on_one_line(self.old)} -> {_on_one_line(self.new)}"


def changes_of(text: str) -> list[Change]:
    finder = _Finder(text)
    finder.visit(ast.parse(text))
    found = {(change.start, change.old, change.new): change for change in reversed(finder.changes)}
    return sorted(found.values(), key=lambda change: (change.start, len(change.old), change.operator, change.new))


def names_of(module: str, changes: Iterable[Change]) -> list[str]:
    """`module:function:line:operator`, with a number behind the second of the same name."""
    seen: Counter[str] = Counter()
    names = []
    for change in changes:
        name = f"{module}:{change.function}:{change.line}:{change.operator}"
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


class _Finder(ast.NodeVisitor):
    def __init__(self, text: str) -> None:
        self.changes: list[Change] = []
        self._text = text.encode()
        self._members = _members_of(text)
        self._starts = [0]
        for line in self._text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._inside: list[str] = []

    def _change(
        self, operator: str, first: ast.AST, new: str | ast.AST, last: ast.AST | None = None, context: str = ""
    ) -> None:
        end = last or first
        start = self._starts[first.lineno - 1] + first.col_offset  # type: ignore[attr-defined]
        stop = self._starts[end.end_lineno - 1] + end.end_col_offset  # type: ignore[attr-defined]
        self.changes.append(
            Change(
                ".".join(self._inside) or "module",
                first.lineno,  # type: ignore[attr-defined]
                end.end_lineno,  # type: ignore[attr-defined]
                operator,
                start,
                self._text[start:stop].decode(),
                new if isinstance(new, str) else f"({ast.unparse(new)})",
                context,
            )
        )

    # -- what is left alone

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...  # a text for people
    def visit_Assert(self, node: ast.Assert) -> None: ...
    def visit_Import(self, node: ast.Import) -> None: ...
    def visit_ImportFrom(self, node: ast.ImportFrom) -> None: ...

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit_assignment(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        self._visit_body(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_body(node)

    def _visit_body(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._inside.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._inside.pop()

    # -- statements

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call):
            self._change("drop-call", node, "pass")
        if not _is_log(call):
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._visit_assignment(node)

    def _visit_assignment(self, node: ast.Assign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        is_kept = any(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)
        if is_kept and self._inside[-1:] != ["__init__"]:
            self._change("drop-assignment", node, "pass")
        if node.value is not None:
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._change("drop-assignment", node, "pass")
        self.visit(node.value)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._change("return-none", node, "return None")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._change("drop-raise", node, "pass")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._change("drop-continue", node, "pass")

    def visit_Break(self, node: ast.Break) -> None:
        self._change("drop-break", node, "pass")

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if not isinstance(node.body[0], ast.Raise):
            self._change("handle-nothing", node.body[0], "raise", node.body[-1])
        for statement in node.body:
            self.visit(statement)

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._condition(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._condition(node.test)
        self.generic_visit(node)

    # -- expressions

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for condition in node.ifs:
            self._condition(condition)
        self.generic_visit(node)

    def _condition(self, test: ast.expr) -> None:
        """Of those that are no comparison, which are turned round themselves."""
        is_turned = isinstance(test, ast.Compare | ast.BoolOp) or isinstance(getattr(test, "op", None), ast.Not)
        if not is_turned:
            self._change("negate", test, ast.UnaryOp(ast.Not(), test))

    def visit_Compare(self, node: ast.Compare) -> None:
        for number, operator in enumerate(node.ops):
            for name, others in (("boundary", _BOUNDARY), ("opposite", _OPPOSITE)):
                if type(operator) in others:
                    other = copy.copy(node)
                    other.ops = [*node.ops[:number], others[type(operator)], *node.ops[number + 1 :]]
                    self._change(name, node, other)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._change("and-or", node, ast.BoolOp(other, node.values))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._change("drop-not", node, node.operand)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        is_text = any(
            isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
            for side in (node.left, node.right)
        )
        if type(node.op) in _OTHER_ARITHMETIC and not is_text:
            self._change("arithmetic", node, ast.BinOp(node.left, _OTHER_ARITHMETIC[type(node.op)], node.right))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._change("flip", node, str(not value))
        elif isinstance(value, int):
            self._change("plus-one", node, str(value + 1))
            self._change("minus-one", node, f"({value - 1})")
        elif isinstance(value, float):
            self._change("double", node, str(value * 2 or 1.0))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Of an enum, and of what looks like one, the next member that the module names."""
        if isinstance(node.value, ast.Name) and node.attr in (members := self._members.get(node.value.id, [])):
            other = members[(members.index(node.attr) + 1) % len(members)]
            if other != node.attr:
                line = self._text.splitlines()[node.lineno - 1].decode().strip()
                self._change("other-member", node, f"{node.value.id}.{other}", context=line)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if isinstance(node.func, ast.Name) and name in _OTHER_FUNCTION:
            self._change("other-function", node.func, _OTHER_FUNCTION[name])
        if name == "shield":
            self._change("drop-shield", node, node.args[0])
        if name not in _NOT_SWAPPED and len(node.args) >= 2:
            first, second, *others = node.args
            if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
                self._change("swap", node, ast.Call(node.func, [second, first, *others], node.keywords))
        for part in _parts(node):
            self.visit(part)


def _members_of(text: str) -> dict[str, list[str]]:
    """`Class.MEMBER` by class, each member once, in the order of the text."""
    found: dict[str, list[str]] = {}
    for name, member in re.findall(r"\b([A-Z]\w*[a-z]\w*)\.([A-Z][A-Z0-9_]*)\b", text):
        members = found.setdefault(name, [])
        if member not in members:
            members.append(member)
    return found


def _parts(call: ast.Call) -> Iterator[ast.AST]:
    yield call.func
    yield from call.args
    yield from (keyword.value for keyword in call.keywords if keyword.arg != "strict")


def _is_log(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "_log"
    )
