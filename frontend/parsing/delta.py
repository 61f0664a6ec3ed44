"""What more of an answer is known: of its reasoning, of its content, of its calls."""

from collections.abc import Iterable

import msgspec


class CallDelta(msgspec.Struct, frozen=True):
    """More of the call at `index`: its `name` when it begins, and then only arguments, as JSON text."""

    index: int
    name: str | None = None
    arguments: str = ""


def join_calls(first: tuple[CallDelta, ...], second: tuple[CallDelta, ...]) -> tuple[CallDelta, ...]:
    """What goes on in `second` stands with what it goes on from."""
    if not first or not second or second[0].index != first[-1].index:
        return first + second
    last, more = first[-1], second[0]
    return (*first[:-1], CallDelta(last.index, last.name, last.arguments + more.arguments), *second[1:])


class Delta(msgspec.Struct, frozen=True):
    reasoning: str = ""
    content: str = ""
    calls: tuple[CallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.calls)


class WholeCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str


def whole_calls(deltas: Iterable[Delta]) -> list[WholeCall]:
    """All calls of an answer. The work is linear."""
    names: list[str] = []
    arguments: list[list[str]] = []
    for call in (call for delta in deltas for call in delta.calls):
        if call.name is not None:
            names.append(call.name)
            arguments.append([])
        arguments[call.index].append(call.arguments)
    return [WholeCall(name, "".join(parts)) for name, parts in zip(names, arguments, strict=True)]
