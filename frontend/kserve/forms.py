"""Answers of the protocol: tensors of `infer`, one object of `generate`, events of `generate_stream`."""

from collections.abc import Sequence
from typing import Any

import msgspec

from frontend.events import EVENT_END, EVENT_START, to_event
from frontend.form import WholeChoice
from frontend.generation import Usage
from frontend.kserve.tensors import Datatype, OutputTensor, Value
from frontend.shown_tokens import ShownToken
from frontend.text_choice import ChoiceFacts
from proto.errors import InvalidRequest, KvmeshError
from services.faults import said_of

VERSION = "1"
"""Of every model: what changes gets another name."""

OUTPUTS: dict[str, Datatype] = {
    "text_output": "BYTES",
    "finish_reason": "BYTES",
    "num_input_tokens": "UINT32",
    "num_output_tokens": "UINT32",
}
_encode = msgspec.json.Encoder().encode


def error_json(error: KvmeshError) -> bytes:
    return _encode({"error": said_of(error)})


class GenerateForm:
    """The generate extension's: a flat object, and events of the same fields."""

    def __init__(self, model: str, request_id: str) -> None:
        self._head: dict[str, Any] = {"model_name": model, "model_version": VERSION}
        if request_id:
            self._head["id"] = request_id
        self._start = EVENT_START + _encode(self._head)[:-1] + b',"text_output":'

    def opening(self, index: int) -> bytes:
        return b""

    def text(self, index: int, text: str, tokens: Sequence[ShownToken]) -> bytes:
        return self._start + _encode(text) + b"}" + EVENT_END

    def finish(self, index: int, finish: str, facts: ChoiceFacts) -> bytes:
        return to_event(_encode({**self._head, **_outputs_of("", finish, facts)}))

    def usage(self, usage: Usage) -> bytes:
        return b""

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> bytes:
        one = choices[0]
        return _encode({**self._head, **_outputs_of(one.text, one.finish, one.facts)})


class InferForm(GenerateForm):
    """Tensors, each as JSON or as bytes behind it. `json_bytes` tells where those begin, once written.

    `wishes`: outputs by name with whether they go as bytes.
    """

    def __init__(self, model: str, request_id: str, shape: list[int], wishes: dict[str, bool]) -> None:
        super().__init__(model, request_id)
        self.json_bytes: int | None = None
        self._shape = shape
        self._wishes = wishes

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> bytes:
        outputs, binary = [], []
        for tensor in self._tensors(choices):
            if self._wishes[tensor.name]:
                head, data = tensor.binary()
                outputs.append(head)
                binary.append(data)
            else:
                outputs.append(tensor.json())
        said = _encode({**self._head, "outputs": outputs})
        self.json_bytes = len(said) if binary else None
        return said + b"".join(binary)

    def _tensors(self, choices: Sequence[WholeChoice]) -> list[OutputTensor]:
        rows = [_outputs_of(choice.text, choice.finish, choice.facts) for choice in choices]
        return [
            OutputTensor(name, OUTPUTS[name], self._shape, [row[name] for row in rows])
            for name in self._wishes
        ]


def choose_outputs(wishes: dict[str, bool] | None, is_binary: bool) -> dict[str, bool]:
    """All of them where none was wished for.

    Raises:
        InvalidRequest: there is no such output.
    """
    if not wishes:
        return dict.fromkeys(OUTPUTS, is_binary)
    for name in wishes:
        if name not in OUTPUTS:
            raise InvalidRequest(field=name, reason="there is no such output here")
    return wishes


def _outputs_of(text: str, finish: str, facts: ChoiceFacts) -> dict[str, Value]:
    return {
        "text_output": text,
        "finish_reason": finish,
        "num_input_tokens": facts.prompt_tokens,
        "num_output_tokens": facts.completion_tokens,
    }
