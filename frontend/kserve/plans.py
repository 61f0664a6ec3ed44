"""From a request of the protocol to what it asks the mesh for; its parameters are those of completions."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from frontend.kserve.tensors import TEXT_INPUT, InferBody, InputTensor, OutputWish, read_texts
from frontend.openai.bodies import decode_body
from frontend.openai.completion_body import read_completion
from frontend.openai.completion_plan import plan_completion
from frontend.plan import Plan
from proto.errors import InvalidRequest

PARAMETERS = frozenset(
    (
        "max_tokens",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "seed",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "echo",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "cache_salt",
        "priority",
        "worker_id",
    )
)
_BINARY_OUTPUT = "binary_data_output"
_BINARY_SIZE = "binary_data_size"
_BINARY = "binary_data"
_encode = msgspec.json.Encoder().encode
_FIELDS = msgspec.json.Decoder(dict[str, Any])
_INFER = msgspec.json.Decoder(InferBody)


class InferRequest(msgspec.Struct, frozen=True):
    """What `infer` asks: outputs by name with whether they go as bytes, None for all of them alike."""

    plan: Plan
    id: str
    shape: list[int]
    outputs: dict[str, bool] | None
    is_binary: bool


class GenerateRequest(msgspec.Struct, frozen=True):
    """What `generate` asks, streamed or not."""

    plan: Plan
    id: str


def read_infer(model: str, body: bytes, json_bytes: int | None) -> InferRequest:
    """`json_bytes` of the body are JSON, all of it if None; the rest is the data of tensors.

    Raises:
        InvalidRequest: an input, an output or a parameter is wrong, or not known.
    """
    said = body if json_bytes is None else body[:json_bytes]
    asked = decode_body(said, _INFER)
    tensor = _only_input(asked.inputs)
    texts = read_texts(tensor, _binary(tensor, body[len(said) :]))
    parameters = dict(asked.parameters)
    is_binary = _flag(parameters.pop(_BINARY_OUTPUT, False), _BINARY_OUTPUT)
    return InferRequest(
        make_plan(model, texts, parameters),
        asked.id,
        tensor.shape,
        None if asked.outputs is None else _wishes(asked.outputs, is_binary),
        is_binary,
    )


def read_generate(model: str, body: bytes, *, streams: bool) -> GenerateRequest:
    """A request to `generate` or `generate_stream`.

    Parameters stand beside the text or under `parameters`.

    Raises:
        InvalidRequest: an input or a parameter is wrong, or not known.
    """
    asked = decode_body(body, _FIELDS)
    text, request_id = asked.pop(TEXT_INPUT, None), asked.pop("id", "")
    inner = asked.pop("parameters", {})
    if not isinstance(text, str):
        raise InvalidRequest(field=TEXT_INPUT, reason="a string")
    if not isinstance(request_id, str):
        raise InvalidRequest(field="id", reason="a string")
    if not isinstance(inner, dict):
        raise InvalidRequest(field="parameters", reason="an object")
    for name in asked.keys() & inner.keys():
        raise InvalidRequest(field=name, reason="it is given twice")
    parameters = {**asked, **inner}
    if _flag(parameters.pop("stream", streams), "stream") != streams:
        raise InvalidRequest(field="stream", reason="generate_stream streams, generate does not")
    return GenerateRequest(make_plan(model, [text], parameters), request_id)


def make_plan(model: str, texts: Sequence[str], parameters: Mapping[str, Any]) -> Plan:
    """Raises InvalidRequest."""
    for name in parameters.keys() - PARAMETERS:
        raise InvalidRequest(field=name, reason="there is no such parameter here")
    completion = {**parameters, "model": model, "prompt": list(texts)}
    try:
        plan = plan_completion(read_completion(_encode(completion)))
    except InvalidRequest as error:
        field, reason = str(error.values["field"]), str(error.values["reason"])
        raise InvalidRequest(field=TEXT_INPUT if field == "prompt" else field, reason=reason) from error
    return msgspec.structs.replace(plan, prompt_field=TEXT_INPUT)


def _only_input(inputs: Sequence[InputTensor]) -> InputTensor:
    for tensor in inputs:
        if tensor.name != TEXT_INPUT:
            raise InvalidRequest(field=tensor.name, reason="there is no such input here")
    if len(inputs) != 1:
        raise InvalidRequest(field=TEXT_INPUT, reason=f"one input, not {len(inputs)}")
    return inputs[0]


def _binary(tensor: InputTensor, rest: bytes) -> bytes | None:
    parameters = dict(tensor.parameters)
    num_bytes = parameters.pop(_BINARY_SIZE, None)
    for name in parameters:
        raise InvalidRequest(field=f"{tensor.name}.{name}", reason="there is no such parameter here")
    if num_bytes is None:
        if rest:
            raise InvalidRequest(field=tensor.name, reason="bytes follow the JSON that belong to no input")
        return None
    if tensor.data is not None:
        raise InvalidRequest(field=tensor.name, reason="its data is given twice")
    if num_bytes != len(rest):
        reason = f"{len(rest)} bytes follow the JSON, not {num_bytes}"
        raise InvalidRequest(field=tensor.name, reason=reason)
    return rest


def _wishes(outputs: Sequence[OutputWish], is_binary: bool) -> dict[str, bool]:
    wishes = {}
    for wish in outputs:
        parameters = dict(wish.parameters)
        wishes[wish.name] = _flag(parameters.pop(_BINARY, is_binary), f"{wish.name}.{_BINARY}")
        for name in parameters:
            raise InvalidRequest(field=f"{wish.name}.{name}", reason="there is no such parameter here")
    return wishes


def _flag(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(field=field, reason="true or false")
    return value
