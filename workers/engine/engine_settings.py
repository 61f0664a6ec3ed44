"""What an operator may say about an engine."""

from typing import Annotated

import msgspec
from msgspec import Meta

from proto.errors import InvalidSetting


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The limits of one engine, never changed after its start."""

    num_blocks: Annotated[int, Meta(ge=1, description="Blocks of KV in the pool.")]
    context_tokens: Annotated[int, Meta(ge=2, description="Most tokens of a sequence, prompt and answer.")]
    block_size: Annotated[int, Meta(ge=1, description="Tokens a block.")] = 16
    vocab_size: Annotated[int, Meta(ge=1, description="Token ids are below this.")] = 1 << 32
    step_tokens: Annotated[int, Meta(ge=2, description="Most tokens computed in one step.")] = 256
    prefill_step_tokens: Annotated[
        int, Meta(ge=0, description="Most tokens of a step in which nothing decodes; at least step_tokens.")
    ] = 0
    max_sequences: Annotated[int, Meta(ge=1, description="Most sequences computed at once.")] = 64
    max_waiting: Annotated[int, Meta(ge=1, description="Most sequences that wait for their turn.")] = 512
    watermark_share: Annotated[
        float, Meta(ge=0, lt=1, description="Share of the pool that new sequences leave for running ones.")
    ] = 0.01
    step_stall_s: Annotated[float, Meta(gt=0, description="Seconds after which a step counts as hung.")] = (
        30.0
    )
    max_failed_steps: Annotated[int, Meta(ge=1, description="Failed steps in a row that end the engine.")] = 3

    def __post_init__(self) -> None:
        least = self.max_sequences + self.block_size
        if self.step_tokens < least:
            reason = f"{self.step_tokens} is under max_sequences + block_size = {least}: prefill would starve"
            raise InvalidSetting(setting="step_tokens", reason=reason)

    def most_tokens(self, num_decodes: int) -> int:
        """Of a step with so many sequences that decode: these wait for the whole of it."""
        return self.step_tokens if num_decodes else max(self.step_tokens, self.prefill_step_tokens)
