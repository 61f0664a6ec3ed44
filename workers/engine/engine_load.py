"""What an engine carries and how fast it is, at one moment."""

import msgspec


class EngineLoad(msgspec.Struct, frozen=True):
    """A reading of one engine.

    Blocks: total = free + active + set aside, and `cached_blocks` of the free ones hold reusable KV; active
    are those of sequences and of readers' pins. `hit_tokens` of the `prompt_tokens` taken in were found in
    the cache.

    Units: `waiting_tokens` tokens that wait to be prefilled here (not those of awaiting sequences, whose KV
    comes from elsewhere), `job_tokens` those of them that are for another worker; `prefill_rate` tokens a
    second and `decode_step_s` seconds from token to token, 0 until measured. `num_steps`, `computed_tokens`
    (each that went through the model), `drafted_tokens` (those of them that were guesses) and
    `accepted_tokens` (guesses that were right), `num_preemptions`, `hit_tokens` and `prompt_tokens` count
    since the start.
    """

    num_running: int
    num_waiting: int
    num_awaiting: int
    num_held: int
    num_frozen: int
    waiting_tokens: int
    job_tokens: int
    total_blocks: int
    free_blocks: int
    cached_blocks: int
    active_blocks: int
    set_aside_blocks: int
    prefill_rate: float
    decode_step_s: float
    hit_tokens: int
    prompt_tokens: int
    num_steps: int
    computed_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    num_preemptions: int
