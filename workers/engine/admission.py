"""What an engine refuses at its door: sequences that can never be served, settings that fit no pool."""

from proto.errors import InvalidRequest, InvalidSetting, PromptTooLong
from workers.engine.engine_settings import EngineSettings
from workers.engine.runner import Runner
from workers.engine.sequence import Sequence, SequenceKind, SequenceSpec


def check_geometry(runner: Runner, settings: EngineSettings) -> None:
    """Raises InvalidSetting when the runner's pool is not the one that the settings describe."""
    for field in ("block_size", "num_blocks"):
        wanted, found = getattr(settings, field), getattr(runner, field)
        if wanted != found:
            raise InvalidSetting(setting=field, reason=f"{wanted}, but the runner's pool has {found}")


def check_spec(spec: SequenceSpec, settings: EngineSettings, context_tokens: int) -> None:
    """Raises what `Engine.add` says of a spec that can never be served."""
    num_tokens = len(spec.tokens)
    if not 0 < spec.num_prompt <= num_tokens:
        reason = f"{spec.num_prompt} of {num_tokens} tokens; a sequence begins with one or more"
        raise InvalidRequest(field="num_prompt", reason=reason)
    if num_tokens > context_tokens - (spec.kind is SequenceKind.GENERATE):
        raise PromptTooLong(field="prompt", num_tokens=num_tokens, limit_tokens=context_tokens)
    if not _has_only_tokens_of(settings.vocab_size, spec):
        raise InvalidRequest(field="tokens", reason=f"token ids are from 0 to {settings.vocab_size - 1}")
    if spec.kind is SequenceKind.GENERATE and spec.max_tokens <= num_tokens - spec.num_prompt:
        reason = f"{spec.max_tokens} leaves nothing to generate"
        raise InvalidRequest(field="max_tokens", reason=reason)
    for field, tokens in (("stop_tokens", spec.stop_tokens), ("logit_bias", spec.sample.bias)):
        if any(not 0 <= token < settings.vocab_size for token in tokens):
            raise InvalidRequest(field=field, reason=f"token ids are from 0 to {settings.vocab_size - 1}")


def _has_only_tokens_of(vocab_size: int, spec: SequenceSpec) -> bool:
    if spec.highest_token is not None:
        return spec.highest_token < vocab_size
    return min(spec.tokens) >= 0 and max(spec.tokens) < vocab_size


def check_growth(sequence: Sequence, tokens: list[int], settings: EngineSettings) -> None:
    """Raises what `Engine.extend` says of tokens that cannot be those of a sequence that goes on."""
    if any(not 0 <= token < settings.vocab_size for token in tokens):
        raise InvalidRequest(field="tokens", reason=f"token ids are from 0 to {settings.vocab_size - 1}")
    if len(sequence.tokens) + len(tokens) >= sequence.token_limit:
        raise InvalidRequest(field="tokens", reason=f"{len(tokens)} more leave nothing to generate")
    if sequence.spec.stop_tokens.intersection(tokens):
        raise InvalidRequest(field="tokens", reason="a stop token is among them")
