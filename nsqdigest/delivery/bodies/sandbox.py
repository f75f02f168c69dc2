"""What a template may do, and how much of it (pure).

Invariants:
- The work of a rendering is bounded: every turn of a loop, every call and every access is a step, and whatever becomes
  text counts by its length. Beyond the limits it ends with `BodyFailed`. No single operation multiplies what it gets by
  more than its own limit allows.
- The result depends on the digest alone: nothing random, no clock, nothing shown that has an address.
- What comes from an event cannot choose what is called: data has fields and no methods, filters do their work.
- Within JSON, text is encoded as the inside of a JSON string. What is encoded already (a macro's result, `tojson`) is
  marked as such and not encoded again.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from jinja2 import nodes, tests
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import TemplateSyntaxError, UndefinedError
from jinja2.runtime import ChainableUndefined, Context, LoopContext, StrictUndefined, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing
from jinja2.visitor import NodeTransformer

from nsqdigest.delivery.bodies import values
from nsqdigest.delivery.bodies.base import BodyFailed
from nsqdigest.delivery.bodies.encoding import Encode
from nsqdigest.delivery.bodies.filters import FILTERS, joined, piped, shown, turns, weighed
from nsqdigest.delivery.bodies.values import AnyField
from nsqdigest.delivery.bodies.work import Work, check_integers

_NO_FIELD = object()

# -- the compiler: hooks at what has none


class _Hooks(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "for")
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        """A filter may put what it is given into a list many times (`map("default", x)`, `batch(2, x)`)."""
        self.generic_visit(node)
        if node.node is not None:  # else it is of a block
            node.node = _filtered(node.node, "|")
        node.args = [_filtered(each, "[]") for each in node.args]
        for pair in node.kwargs:
            pair.value = _filtered(pair.value, "[]")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.Tuple(node.nodes, "load", lineno=node.lineno), "~")

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return nodes.MarkSafe(nodes.Const(node.data, lineno=node.lineno), lineno=node.lineno)

    def _weighed(self, node: nodes.Expr) -> nodes.Expr:
        self.generic_visit(node)
        return node if getattr(node, "ctx", "load") != "load" else _filtered(node, "[]")

    visit_List = visit_Dict = visit_Tuple = _weighed

    def _refuse(self, node: nodes.Node) -> nodes.Node:
        raise TemplateSyntaxError("one file is one template: include, import and extends are not there", node.lineno)

    visit_Include = visit_Import = visit_FromImport = visit_Extends = _refuse

    def visit_ScopedEvalContextModifier(self, node: nodes.Node) -> nodes.Node:
        raise TemplateSyntaxError("autoescape is chosen by the sink's content_type", node.lineno)


def _filtered(node: nodes.Node, name: str) -> nodes.Expr:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Generator(CodeGenerator):
    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        super().visit_Template(_Hooks().visit(node), frame)


# -- the environment


class NotThere(UndefinedError):
    """A template showed, or reckoned with, what is not there."""

    def __init__(self, name: Any, is_variable: bool, _: str | None = None) -> None:
        super().__init__(name)
        self.name = name
        """It may come from an event: `{{ value[other.field] }}`."""
        self.is_variable = is_variable


class Missing(ChainableUndefined, StrictUndefined):
    """What is not there: nothing in it is there either, and to show it is a failure."""

    __slots__ = ()

    def __init__(self, hint: str | None = None, obj: Any = missing, name: Any = None, exc: Any = None) -> None:
        super().__init__(hint, obj, name, partial(NotThere, name, obj is missing))  # type: ignore[arg-type]


class Sandbox(ImmutableSandboxedEnvironment):
    """For one template, and one rendering at a time."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self, encode: Encode) -> None:
        super().__init__(
            undefined=Missing, autoescape=True, finalize=shown, trim_blocks=True, lstrip_blocks=True, cache_size=0
        )
        self.encode = encode
        self.work = Work(0, lambda: False)
        self.is_sample = False
        """Whether an event has every field that is asked for."""
        kept = ("range", "dict", "namespace", "cycler", "joiner")
        self.globals = {name: self.globals[name] for name in kept}
        self.filters = {**FILTERS, "for": turns, "~": joined, "[]": weighed, "|": piped}
        self.tests = {name: test for name, test in tests.TESTS.items() if name not in ("filter", "test")}

    # -- what is reached

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.work.step()
        if isinstance(obj, dict):
            return self._field(obj, attribute)
        if isinstance(obj, AnyField):
            return AnyField(attribute)
        if isinstance(obj, Undefined):
            return obj
        if isinstance(obj, values.Written):
            return getattr(obj, attribute) if attribute in obj.fields else self.undefined(obj=obj, name=attribute)
        if isinstance(obj, str | int | float | list | tuple | None) and attribute not in getattr(obj, "_fields", ()):
            return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def _field(self, obj: dict[str, Any], name: Any) -> Any:
        found = obj.get(name, _NO_FIELD)
        if found is not _NO_FIELD:
            return found
        if self.is_sample and isinstance(obj, values.Event) and isinstance(name, str):
            return AnyField(name)
        return self.undefined(obj=obj, name=name)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, str):
            return self.getattr(obj, argument)
        self.work.step()
        if isinstance(obj, AnyField | Undefined):
            return obj
        try:
            return obj[argument]
        except (TypeError, LookupError):
            return self.undefined(obj=obj, name=argument)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        self.work.weigh((args, kwargs))
        if isinstance(obj, LoopContext) and args:  # a recursive loop
            args = (turns(context, args[0]), *args[1:])
        found = super().call(context, obj, *args, **kwargs)
        if isinstance(found, str):
            self.work.grow(len(found))
        return found

    # -- what is reckoned

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.work.step()
        if isinstance(left, AnyField) or isinstance(right, AnyField):
            return AnyField(left if isinstance(left, AnyField) else right)
        if operator == "+" and (isinstance(left, str) or isinstance(right, str)):
            if not (isinstance(left, str) and isinstance(right, str)):
                raise BodyFailed("adds text and something else", "write ~ for +")
            return joined(context, (left, right))
        if isinstance(left, str) and operator == "%":
            raise BodyFailed("formats text with %", "write ~ between the parts")
        if operator == "*" and not (isinstance(left, int | float) and isinstance(right, int | float)):
            raise BodyFailed("multiplies text or a list", "write a loop")
        if isinstance(left, int) and isinstance(right, int):
            check_integers(operator, left, right)
        found = super().call_binop(context, operator, left, right)
        if isinstance(found, list | tuple):
            self.work.grow(len(found))
        return found
