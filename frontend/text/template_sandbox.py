"""The Jinja sandbox of chat templates: Hugging Face's dialect, with a clock and a budget of characters.

A thread that loops cannot be ended from outside, so the template ends itself: `_Bounded` writes a look at the
clock into every loop and macro, and whatever makes text grow is counted. Not counted is what a single filter
makes of text that is within the budget.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Never

import jinja2
import msgspec
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from proto.errors import DeadlineExceeded, InvalidRequest

_MAX_INT_BITS = 4096


class _Budget(msgspec.Struct):
    """What a render in progress may still use. Units: `deadline` on the monotonic clock."""

    deadline: float
    limit_s: float
    chars_left: int
    max_chars: int

    def check_clock(self) -> None:
        if time.monotonic() > self.deadline:
            raise DeadlineExceeded(what="the chat template", limit_s=self.limit_s)

    def check_size(self, num_chars: int) -> None:
        if num_chars > self.max_chars:
            raise InvalidRequest(
                field="messages", reason=f"the chat template writes more than {self.max_chars} characters"
            )

    def spend(self, num_chars: int) -> None:
        self.chars_left -= num_chars
        self.check_size(self.max_chars - self.chars_left)


_budget: ContextVar[_Budget] = ContextVar("render_budget")


@contextmanager
def render_budget(limit_s: float, max_chars: int) -> Iterator[None]:
    """Bounds what is rendered inside, in this thread. Its text, set blocks and macros count together."""
    token = _budget.set(_Budget(time.monotonic() + limit_s, limit_s, max_chars, max_chars))
    try:
        yield
    finally:
        _budget.reset(token)


class ChatSandbox(ImmutableSandboxedEnvironment):
    """Renders as `transformers` does; only inside `render_budget`."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, loopcontrols],
            finalize=_count_output,
        )
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def compile_bounded(self, source: str) -> jinja2.Template:
        """Raises jinja2.TemplateSyntaxError."""
        tree = self.parse(source)
        _Bounded().visit(tree)
        return jinja2.Template.from_code(self, self.compile(tree), self.make_globals(None))

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        _check_operands(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def check_clock(self) -> None:
        """Called by every turn of a loop."""
        _budget.get().check_clock()

    def join_text(self, *parts: object) -> str:
        """The `~` operator."""
        texts = [str(part) for part in parts]
        _budget.get().check_size(sum(map(len, texts)))
        return "".join(texts)


class _Bounded(NodeTransformer):
    """Puts a look at the clock first into what repeats, and has all text counted."""

    def visit(self, node: nodes.Node, *args: object, **kwargs: object) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node, nodes.Concat):
            return _call_environment("join_text", node.nodes, node.lineno)
        if isinstance(node, nodes.TemplateData):
            # bare text is written as a value is, and counted like one
            return nodes.Const(node.data, lineno=node.lineno)
        if isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock)):
            look = _call_environment("check_clock", [], node.lineno)
            node.body.insert(0, nodes.ExprStmt(look, lineno=node.lineno))
        return node


def _call_environment(method: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Call:
    """A call that no name set by the template can shadow."""
    return nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None, lineno=lineno)


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here its body is all that counts."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@jinja2.pass_context  # so that Jinja asks at every rendering, and not once for a constant
def _count_output(_: Context, value: object) -> object:
    if isinstance(value, str):
        _budget.get().spend(len(value))
    return value


def _check_operands(operator: str, left: object, right: object) -> None:
    """Refuse what would make a huge value in one step."""
    budget = _budget.get()
    budget.check_clock()
    if isinstance(left, int) and isinstance(right, int):
        bits = (
            left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()
        )
        if bits > _MAX_INT_BITS:
            raise jinja2.TemplateRuntimeError("a number has too many digits")
    elif operator == "+":
        budget.check_size(_length(left) + _length(right))
    elif operator == "*":
        times = next((side for side in (left, right) if isinstance(side, int)), 1)
        budget.check_size(max(_length(left), _length(right)) * times)


def _length(value: object) -> int:
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def _raise_exception(message: str) -> Never:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own, it does not write `<` as an HTML escape."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


MISTAKES: tuple[type[Exception], ...] = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a template's own expressions raise when messages do not fit it."""
