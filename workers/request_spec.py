"""How a request becomes a sequence: every field checked, so that no caller can hurt a step of the engine."""

import math

import numpy as np

from proto.blockhash import block_salt
from proto.cards import ModelCard
from proto.constraints import Constraint, check_size
from proto.errors import DeadlineExceeded, InvalidRequest
from proto.logprobs import MAX_ALTERNATIVES, check_scores
from proto.names import check_id
from proto.requests import MAX_SEED, GenerateRequest, Sampling, Stopping
from proto.tokens import count_tokens, unpack_tokens
from workers.engine.grammar_state import GrammarState
from workers.engine.runner import SampleParams
from workers.engine.sequence import SequenceKind, SequenceSpec
from workers.long_prompt import ReadPrompt

MAX_REQUEST_ID_CHARS = 256
MAX_NAMED_TOKENS = 1024
MAX_PENALTY = 100.0
"""And the most a bias may be; what is more, or a factor less than its inverse, would leave float32."""


def sequence_name(request: str, attempt: int) -> str:
    return f"{request}/{attempt}"


def plan_sequence(
    request: GenerateRequest, card: ModelCard, prompt: ReadPrompt | None = None
) -> SequenceSpec:
    """The sequence that serves `request`. The engine checks tokens and lengths.

    Args: `prompt`: its tokens and hashes, where they have been read already.

    Raises:
        InvalidRequest: a field is wrong.
        DeadlineExceeded: its time is over.
    """
    _check_ids(request)
    _check_sampling(request.sampling, card.vocab_size)
    if not request.deadline_s > 0:
        raise DeadlineExceeded(what="the request", limit_s=request.deadline_s)
    if request.offset != count_tokens(request.generated):
        raise InvalidRequest(field="offset", reason="it is not the number of generated tokens")
    if prompt is None:
        prompt = ReadPrompt(unpack_tokens(request.prompt) + unpack_tokens(request.generated), [])
    num_prompt = count_tokens(request.prompt)
    check_scores(request.sampling.prompt_logprobs, num_prompt)
    return SequenceSpec(
        sequence=sequence_name(request.request, request.attempt),
        kind=SequenceKind.GENERATE,
        tokens=prompt.tokens,
        num_prompt=num_prompt,
        sample=_sample_params(request.sampling, card.vocab_size),
        max_tokens=request.stopping.max_tokens,
        stop_tokens=_stop_tokens(request.stopping, card),
        salt=block_salt(card.kv_class.weights_digest, request.salt),
        priority=request.priority,
        min_tokens=request.stopping.min_tokens,
        prompt_logprobs=_num_best(request.sampling.prompt_logprobs, card.vocab_size),
        grammar=_grammar(request.constraint, request.stopping, card),
        highest_token=max(highest_token(request.prompt), highest_token(request.generated)),
        hashes=prompt.hashes,
    )


def highest_token(packed: bytes) -> int:
    """Of tokens as they travel; 0 of none."""
    return int(np.frombuffer(packed, dtype="<u4").max(initial=0))


def _check_ids(request: GenerateRequest) -> None:
    check_id(request.client, "client")
    if not 0 < len(request.request) <= MAX_REQUEST_ID_CHARS:
        reason = f"it has {len(request.request)} characters; 1 to {MAX_REQUEST_ID_CHARS} are taken"
        raise InvalidRequest(field="request", reason=reason)
    if request.attempt < 0:
        raise InvalidRequest(field="attempt", reason=f"{request.attempt} is below 0")


def _stop_tokens(stopping: Stopping, card: ModelCard) -> frozenset[int]:
    """Those that the model can say at all."""
    _check(stopping.min_tokens >= 0, "min_tokens", stopping.min_tokens)
    _check(len(stopping.stop_tokens) <= MAX_NAMED_TOKENS, "stop_tokens", len(stopping.stop_tokens))
    ends = () if stopping.ignore_eos else card.eos_tokens
    return frozenset(token for token in (*stopping.stop_tokens, *ends) if 0 <= token < card.vocab_size)


def _grammar(constraint: Constraint | None, stopping: Stopping, card: ModelCard) -> GrammarState | None:
    """A grammar says where its text may end, and then some token must say so."""
    if constraint is None:
        return None
    if stopping.ignore_eos:
        raise InvalidRequest(field="ignore_eos", reason=f"{constraint.field} says where the answer ends")
    if not card.eos_tokens:
        raise InvalidRequest(field=constraint.field, reason="this model has no token that ends a text")
    check_size(constraint)
    return GrammarState(constraint)


def _check_sampling(sampling: Sampling, vocab_size: int) -> None:
    _check(0 <= sampling.temperature < math.inf, "temperature", sampling.temperature)
    _check(0 < sampling.top_p <= 1, "top_p", sampling.top_p)
    _check(sampling.top_k >= 0, "top_k", sampling.top_k)
    _check(0 <= sampling.seed <= MAX_SEED, "seed", sampling.seed)
    _check(0 <= sampling.min_p <= 1, "min_p", sampling.min_p)
    _check(abs(sampling.presence_penalty) <= MAX_PENALTY, "presence_penalty", sampling.presence_penalty)
    _check(abs(sampling.frequency_penalty) <= MAX_PENALTY, "frequency_penalty", sampling.frequency_penalty)
    least = 1 / MAX_PENALTY
    _check(
        least <= sampling.repetition_penalty <= MAX_PENALTY, "repetition_penalty", sampling.repetition_penalty
    )
    _check(len(sampling.logit_bias) <= MAX_NAMED_TOKENS, "logit_bias", len(sampling.logit_bias))
    for token, bias in sampling.logit_bias.items():
        _check(0 <= token < vocab_size, "logit_bias", token)
        _check(abs(bias) <= MAX_PENALTY, "logit_bias", bias)
    for field, number in (("logprobs", sampling.logprobs), ("prompt_logprobs", sampling.prompt_logprobs)):
        _check(number is None or 0 <= number <= MAX_ALTERNATIVES, field, number or 0)


def _sample_params(sampling: Sampling, vocab_size: int) -> SampleParams:
    return SampleParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=sampling.seed,
        min_p=sampling.min_p,
        presence=sampling.presence_penalty,
        frequency=sampling.frequency_penalty,
        repetition=sampling.repetition_penalty,
        bias=sampling.logit_bias,
        logprobs=_num_best(sampling.logprobs, vocab_size),
    )


def _num_best(wanted: int | None, vocab_size: int) -> int | None:
    return None if wanted is None else min(wanted, vocab_size)


def _check(is_right: bool, field: str, value: float) -> None:
    if not is_right:
        raise InvalidRequest(field=field, reason=f"{value} is out of its range")
