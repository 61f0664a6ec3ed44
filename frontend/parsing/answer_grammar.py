"""What an answer must be, in its model's own syntax of calls and thoughts, so that its parsers read it."""

import json
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from frontend.parsing.call_parser import CallParser
from frontend.parsing.call_rules import ANY_OBJECT, json_rule, mark_term
from frontend.parsing.formats import Formats
from frontend.parsing.tools import Tools
from proto.constraints import Constraint
from proto.errors import InvalidRequest
from services.grammars.source import GUIDANCE

ThoughtState = Literal["open", "closed", "unsaid"]
"""What a prompt says of a thought: it has begun one, or ended it, or neither."""

_ANYTHING = "/(?s:.*)/"
_SPACES = r"/[ \n]{0,4}/"


class AnswerGrammar:
    """Of one answer of one model.

    Args:
        special: the numbers of those markers that are special tokens.
    """

    def __init__(self, formats: Formats, special: Mapping[str, int], thought: ThoughtState) -> None:
        self._formats = formats
        self._special = special
        self._thought = thought

    def constraint(self, tools: Tools | None, answer: Constraint | None) -> Constraint | None:
        """What leads the answer; None: nothing. `answer` is what the content must be, if it is no call.

        Raises:
            InvalidRequest: `answer` is of a kind that cannot stand beside calls.
        """
        if tools is None:
            return None if answer is None else self._after_thought(answer)
        is_led = tools.must_call or answer is not None or any(each.is_strict for each in tools.functions)
        if not is_led:
            return None
        return Constraint("grammar", "\n".join(self._rules(tools, answer)), "tools")

    def _after_thought(self, answer: Constraint) -> Constraint:
        """Where the model reasons and what the answer must be can follow that."""
        rule = answer_rule(answer)
        if self._formats.reasoning is None or self._thought == "closed" or rule is None:
            return answer
        rules = [f"start: {self._lead()} answer", f"answer: {rule}", *self._thought_rules()]
        return Constraint("grammar", "\n".join(rules), answer.field)

    def _rules(self, tools: Tools, answer: Constraint | None) -> Iterator[str]:
        lead, begun = self._lead(), self._opener()
        if tools.must_call:
            yield f"start: {lead} {begun} calls"
        elif answer is not None:
            rule = answer_rule(answer)
            if rule is None:
                raise InvalidRequest(field=answer.field, reason="not with tools")
            yield f"start: {lead} answer | {lead} {begun} calls"
            yield f"answer: {rule}"
        else:
            yield from self._free_rules(lead)
        yield from self._thought_rules()
        yield from self._calls.rules(tools, self._special)

    def _free_rules(self, lead: str) -> Iterator[str]:
        """Any text, and then calls, or none."""
        if self._calls.begins_bare:  # an object first of all is a call
            yield f"start: {lead} TEXT | {lead} calls"
            yield r"TEXT: /([ \t\r\n]*[^{ \t\r\n](?s:.*))?/"
            return
        [opener] = self._calls.openers
        yield f"start: {lead} TEXT | {lead} text calls"
        if opener in self._special:
            yield f"TEXT: {_ANYTHING}"
            yield f"text: TEXT {self._mark(opener)}"
        else:
            yield f"TEXT: {_ANYTHING} & ~/(?s:.*){opener}(?s:.*)/"
            yield f"text[suffix={json.dumps(opener)}]: {_ANYTHING}"

    def _opener(self) -> str:
        return "" if self._calls.begins_bare else self._mark(self._calls.openers[0])

    @property
    def _calls(self) -> type[CallParser]:
        assert self._formats.calls is not None  # else no tools are offered
        return self._formats.calls

    def _lead(self) -> str:
        marks = self._formats.reasoning
        if marks is None or self._thought == "closed":
            return ""
        return "thought" if self._thought == "open" else f"({self._mark(marks.opener)} thought)?"

    def _thought_rules(self) -> Iterator[str]:
        marks = self._formats.reasoning
        if marks is None or self._thought == "closed":
            return
        yield "thought: thinking SPACES"
        yield f"SPACES: {_SPACES}"
        if marks.closer in self._special:
            yield f"thinking: THINKING {self._mark(marks.closer)}"
            yield f"THINKING: {_ANYTHING}"
        else:
            yield f"thinking[suffix={json.dumps(marks.closer)}]: {_ANYTHING}"

    def _mark(self, marker: str) -> str:
        return mark_term(marker, self._special)


def answer_rule(answer: Constraint) -> str | None:
    """Its content as a part of a grammar; None for what can only be all of an answer."""
    match answer.kind:
        case "json_object":
            return json_rule(ANY_OBJECT, GUIDANCE)
        case "json_schema":
            schema = {} if answer.text == "true" else _read(answer)
            return json_rule(schema, GUIDANCE) if isinstance(schema, dict) else None
        case "choice":
            choices = _read(answer)
            return " | ".join(map(json.dumps, choices)) if isinstance(choices, list) else None
    return None


def _read(answer: Constraint) -> object:
    try:
        return msgspec.json.decode(answer.text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(field=answer.field, reason=f"not JSON: {error}") from error
