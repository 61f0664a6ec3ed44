"""How a request becomes a sequence: every field checked, so that no caller can hurt a step of the engine."""

import math

from proto.blockhash import block_salt
from proto.cards import ModelCard
from proto.errors import DeadlineExceeded, InvalidRequest
from proto.names import check_id
from proto.requests import MAX_SEED, GenerateRequest, Sampling
from proto.tokens import count_tokens, unpack_tokens
from workers.engine.runner import SampleParams
from workers.engine.sequence import SequenceKind, SequenceSpec

MAX_REQUEST_ID_CHARS = 256


def sequence_name(request: str, attempt: int) -> str:
    return f"{request}/{attempt}"


def plan_sequence(request: GenerateRequest, card: ModelCard) -> SequenceSpec:
    """The sequence that serves `request`. The engine checks tokens and lengths.

    Raises:
        InvalidRequest: a field is wrong.
        DeadlineExceeded: its time is over.
    """
    _check_ids(request)
    if not request.deadline_s > 0:
        raise DeadlineExceeded(what="the request", limit_s=request.deadline_s)
    if request.offset != count_tokens(request.generated):
        raise InvalidRequest(field="offset", reason="it is not the number of generated tokens")
    prompt = unpack_tokens(request.prompt)
    stops = set(request.stopping.stop_tokens)
    if not request.stopping.ignore_eos:
        stops.update(card.eos_tokens)
    return SequenceSpec(
        sequence=sequence_name(request.request, request.attempt),
        kind=SequenceKind.GENERATE,
        tokens=prompt + unpack_tokens(request.generated),
        num_prompt=len(prompt),
        sample=_sample_params(request.sampling),
        max_tokens=request.stopping.max_tokens,
        stop_tokens=frozenset(stops),
        salt=block_salt(card.kv_class.weights_digest, request.salt),
        priority=request.priority,
    )


def _check_ids(request: GenerateRequest) -> None:
    check_id(request.client, "client")
    if not 0 < len(request.request) <= MAX_REQUEST_ID_CHARS:
        reason = f"it has {len(request.request)} characters; 1 to {MAX_REQUEST_ID_CHARS} are taken"
        raise InvalidRequest(field="request", reason=reason)
    if request.attempt < 0:
        raise InvalidRequest(field="attempt", reason=f"{request.attempt} is below 0")


def _sample_params(sampling: Sampling) -> SampleParams:
    _check(0 <= sampling.temperature < math.inf, "temperature", sampling.temperature)
    _check(0 < sampling.top_p <= 1, "top_p", sampling.top_p)
    _check(sampling.top_k >= 0, "top_k", sampling.top_k)
    _check(0 <= sampling.seed <= MAX_SEED, "seed", sampling.seed)
    return SampleParams(sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed)


def _check(is_right: bool, field: str, value: float) -> None:
    if not is_right:
        raise InvalidRequest(field=field, reason=f"{value} is out of its range")
