"""What both endpoints ask the mesh for, by the fields that they have in common."""

from frontend.openai.bodies import MAX_CHOICES, RequestBody
from frontend.openai.constraints import read_constraint
from frontend.parsing.tools import Tools
from frontend.plan import Plan, Prompt
from proto.errors import InvalidRequest
from proto.requests import Sampling

_LEAST_TOP_P = 1e-6


def make_plan(
    body: RequestBody,
    prompts: list[Prompt],
    field: str,
    max_tokens: int | None,
    num_best: int | None,
    tools: Tools | None = None,
) -> Plan:
    _check_together(body, max_tokens)
    constraint = read_constraint(body)
    leader = "tools" if tools is not None else constraint and constraint.field
    if leader and body.ignore_eos:
        raise InvalidRequest(field="ignore_eos", reason=f"{leader} says where the answer ends")
    return Plan(
        model=body.model,
        prompts=prompts,
        prompt_field=field,
        num_each=_num_each(body, len(prompts)),
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
        tools=tools,
    )


def _num_each(body: RequestBody, num_prompts: int) -> int:
    num_each = body.n or 1
    if num_each * num_prompts > MAX_CHOICES:
        raise InvalidRequest(
            field="n", reason=f"{num_prompts} prompts; {MAX_CHOICES} choices in all are served"
        )
    return num_each


def _check_together(body: RequestBody, max_tokens: int | None) -> None:
    """What no field says of itself."""
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest(field="stream_options", reason="only with stream")
    if body.stream_options is not None and body.stream_options.include_obfuscation:
        raise InvalidRequest(field="stream_options.include_obfuscation", reason="events are not padded here")
    if max_tokens is not None and (body.min_tokens or 0) > max_tokens:
        raise InvalidRequest(field="min_tokens", reason=f"more than the {max_tokens} of max_tokens")
    options = body.stream_options
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        field = "stream_options.continuous_usage_stats"
        raise InvalidRequest(field=field, reason="only with include_usage")
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidRequest(field="prompt_logprobs", reason="not with stream")


def _sampling(body: RequestBody, num_best: int | None) -> Sampling:
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
