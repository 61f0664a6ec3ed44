"""From the body of a request to what it asks the mesh for."""

from collections.abc import Mapping
from typing import Any

from frontend.generation import Plan, Prompt
from frontend.openai.bodies import MAX_PROMPTS, ChatBody, CompletionBody
from frontend.openai.constraints import read_constraint
from frontend.text.chat_messages import Chat
from proto.errors import InvalidRequest
from proto.requests import Sampling

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_MESSAGE_KEYS = frozenset(("role", "content", "name", "tool_calls", "tool_call_id"))
_LEAST_TOP_P = 1e-6
_SEEDS = 2**63


def plan_chat(body: ChatBody) -> Plan:
    """
    Raises:
        InvalidRequest: a message, or two fields that contradict each other.
    """
    messages = [_check_message(message, place) for place, message in enumerate(body.messages)]
    if None not in (body.max_tokens, body.max_completion_tokens) and (
        body.max_tokens != body.max_completion_tokens
    ):
        raise InvalidRequest(field="max_tokens", reason="max_completion_tokens says otherwise")
    max_tokens = body.max_completion_tokens or body.max_tokens
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest(field="top_logprobs", reason="only with logprobs")
    num_best = (body.top_logprobs or 0) if body.logprobs else None
    return _plan(body, [Chat(messages)], "messages", max_tokens, num_best)


def plan_completion(body: CompletionBody) -> Plan:
    """Raises InvalidRequest."""
    return _plan(body, _prompts(body.prompt), "prompt", body.max_tokens, body.logprobs)


def _plan(
    body: ChatBody | CompletionBody,
    prompts: list[Prompt],
    field: str,
    max_tokens: int | None,
    num_best: int | None,
) -> Plan:
    _check_together(body, max_tokens)
    constraint = read_constraint(body)
    if constraint is not None and body.ignore_eos:
        raise InvalidRequest(field="ignore_eos", reason=f"{constraint.field} says where the answer ends")
    return Plan(
        model=body.model,
        prompts=prompts,
        prompt_field=field,
        max_tokens=max_tokens,
        sampling=_sampling(body, num_best),
        seed=body.seed,
        stops=_stops(body.stop),
        stop_tokens=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        min_tokens=body.min_tokens or 0,
        salt=body.cache_salt or "",
        priority=body.priority or 0,
        wanted_worker=body.worker_id or "",
        constraint=constraint,
    )


def _check_together(body: ChatBody | CompletionBody, max_tokens: int | None) -> None:
    """What no field says of itself."""
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest(field="stream_options", reason="only with stream")
    if body.seed is not None and not -_SEEDS <= body.seed < _SEEDS:
        raise InvalidRequest(field="seed", reason="64 bits, with a sign")
    if max_tokens is not None and (body.min_tokens or 0) > max_tokens:
        raise InvalidRequest(field="min_tokens", reason=f"more than the {max_tokens} of max_tokens")
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidRequest(field="prompt_logprobs", reason="not with stream")


def _sampling(body: ChatBody | CompletionBody, num_best: int | None) -> Sampling:
    return Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else max(body.top_p, _LEAST_TOP_P),
        top_k=max(body.top_k or 0, 0),
        min_p=body.min_p or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        logit_bias=body.logit_bias or {},
        logprobs=num_best,
        prompt_logprobs=body.prompt_logprobs,
    )


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if "" in stops:
        raise InvalidRequest(field="stop", reason="a stop string is empty")
    return stops


def _check_message(message: Mapping[str, Any], place: int) -> dict[str, Any]:
    field = f"messages[{place}]"
    for key, value in message.items():
        if key not in _MESSAGE_KEYS and value not in (None, []):
            raise InvalidRequest(field=f"{field}.{key}", reason="this is not served here")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidRequest(field=f"{field}.role", reason=f"one of {', '.join(_ROLES)}")
    content = message.get("content")
    if content is None and not (role == "assistant" and message.get("tool_calls")):
        raise InvalidRequest(field=f"{field}.content", reason="it is missing")
    if content is not None and not isinstance(content, str | list):
        raise InvalidRequest(field=f"{field}.content", reason="a string or a list of text parts")
    return {**{key: message[key] for key in _MESSAGE_KEYS & message.keys()}, "role": _ROLES[role]}


def _prompts(prompt: str | list[Any]) -> list[Prompt]:
    """A string, token ids, or a list of either; several prompts are several choices."""
    if isinstance(prompt, str):
        return [prompt]
    if _is_token_list(prompt):
        return [prompt]
    if not 1 <= len(prompt) <= MAX_PROMPTS:
        raise InvalidRequest(field="prompt", reason=f"1 to {MAX_PROMPTS} prompts, not {len(prompt)}")
    for one in prompt:
        if not isinstance(one, str) and not (isinstance(one, list) and _is_token_list(one)):
            raise InvalidRequest(field="prompt", reason="a string, a list of token ids, or a list of such")
    return prompt


def _is_token_list(value: list[Any]) -> bool:
    return bool(value) and all(type(token) is int for token in value)
