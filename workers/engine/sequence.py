"""A sequence: what its caller hands in, and where the engine is with it.

```
          add(await_kv)            land, recall              plan                finished, cancelled, failed
            ──────► AWAITING ─────────────────► WAITING ─────────────► RUNNING ─────────────────────► ENDED
          add ───────────────────────────────────►  ▲                  │  │                             ▲
                                                     └──── preempted ──┘  └── PREFILL, all computed ──► HELD
                     freeze            thaw
   any of the three ───────► FROZEN ─────────► WAITING
```
"""

from enum import Enum
from typing import Literal

import msgspec

from proto.logprobs import record_bytes
from workers.engine.grammar_state import GrammarState
from workers.engine.guesses import Guesses
from workers.engine.hash_chain import HashChain
from workers.engine.runner import SampleParams
from workers.engine.token_counts import TokenCounts


class SequenceKind(Enum):
    """GENERATE samples until it ends. PREFILL computes KV for all its tokens, samples nothing, is held."""

    GENERATE = "generate"
    PREFILL = "prefill"


class SequenceState(Enum):
    """See the drawing above. A sequence owns blocks in any state but ENDED."""

    AWAITING = "awaiting"
    WAITING = "waiting"
    RUNNING = "running"
    HELD = "held"
    FROZEN = "frozen"
    ENDED = "ended"


class SequenceSpec(msgspec.Struct, frozen=True):
    """What a caller hands in.

    `tokens` are the prompt and what earlier attempts generated; the first `num_prompt` are the client's.
    `max_tokens` counts generated tokens, earlier attempts' included. `stop_tokens` hold the end-of-sequence
    ids too, unless the client wants none, and none of them is among the first `min_tokens` generated ones.
    `prompt_logprobs`: how many of the likeliest tokens to name with the log-probability of each of the
    prompt's; None: say nothing of it. `salt` is `proto.blockhash.block_salt`'s. A lower `priority` goes
    first. `grammar` is this sequence's own, and may still be compiled while it awaits KV. A PREFILL is asked
    for no token, and ignores all that says how and when. `highest_token` is the highest id of `tokens`, where
    whoever unpacked them knows it: to look at each of 100,000 again takes the event loop two milliseconds.
    `hashes` are those of its first full blocks, as far as somebody has them: what is lacking is hashed when
    it is needed, while the engine's lock is held.
    """

    sequence: str
    kind: SequenceKind
    tokens: list[int]
    num_prompt: int
    sample: SampleParams
    max_tokens: int
    stop_tokens: frozenset[int]
    salt: bytes
    priority: int = 0
    min_tokens: int = 0
    prompt_logprobs: int | None = None
    grammar: GrammarState | None = None
    highest_token: int | None = None
    hashes: list[bytes] = []

    @property
    def wants_scores(self) -> bool:
        """Whether the logits of all of the prompt are wanted: it is prefilled whole, and here.

        What its tokens are worth goes out with the first generated one, so who has that has it, too.
        """
        return self.prompt_logprobs is not None and len(self.tokens) == self.num_prompt


class SequenceKv(msgspec.Struct, frozen=True):
    """A sequence as whoever goes on with it elsewhere needs it: all its tokens, and where their KV lies.

    The KV of its first `num_computed` tokens is computed; `blocks` are those that were asked for.
    """

    tokens: list[int]
    num_computed: int
    blocks: list[int]


class Sequence(msgspec.Struct, eq=False):
    """One sequence inside the engine.

    `blocks[i]` holds tokens `[i * block_size, (i + 1) * block_size)`; the KV of the first `num_computed`
    tokens is in them, and the first `num_stored` blocks were offered to the prefix cache. `token_limit` is
    the length at which it ends. `rank` orders sequences: the lowest is served first and preempted last.
    `prompt_logprobs` are the records of the prompt's tokens so far, until they go out with the first token.
    """

    spec: SequenceSpec
    chain: HashChain
    rank: tuple[int, int]
    token_limit: int
    tokens: list[int]
    blocks: list[int] = []
    num_computed: int = 0
    num_stored: int = 0
    state: SequenceState = SequenceState.AWAITING
    is_landed: bool = False
    is_in_step: bool = False
    is_cancelled: bool = False
    is_preempted: bool = False
    prompt_logprobs: bytes = b""
    token_counts: TokenCounts | None = None
    guesses: Guesses | None = None

    @property
    def name(self) -> str:
        return self.spec.sequence

    @property
    def num_pending(self) -> int:
        """Tokens whose KV is not computed yet."""
        return len(self.tokens) - self.num_computed

    @property
    def is_complete(self) -> bool:
        """Whether all KV of a PREFILL is there; a GENERATE always has a token to compute."""
        return self.num_computed == len(self.tokens)

    @property
    def max_cached_tokens(self) -> int:
        """The most that need not be computed: a token whose logits are wanted must be."""
        if self.wants_scores:
            return self.num_scored
        return len(self.tokens) - (self.spec.kind is SequenceKind.GENERATE)

    @property
    def wants_scores(self) -> bool:
        """As its spec, until its first token is here."""
        return self.spec.prompt_logprobs is not None and len(self.tokens) == self.spec.num_prompt

    @property
    def num_scored(self) -> int:
        """Tokens of the prompt that have a record; the first never gets one."""
        return len(self.prompt_logprobs) // record_bytes(self.spec.prompt_logprobs or 0)

    @property
    def num_banned(self) -> int:
        """So many tokens must come before an end."""
        return max(0, self.spec.num_prompt + self.spec.min_tokens - len(self.tokens))

    @property
    def banned(self) -> frozenset[int]:
        """Tokens that must not come next."""
        return self.spec.stop_tokens if self.num_banned else frozenset()

    @property
    def admission_rank(self) -> tuple[int, bool, int]:
        """The order of the waiting: of equals, those whose KV has landed first, since it lies idle."""
        priority, arrival = self.rank
        return priority, not self.is_landed, arrival

    def note_scores(self, start: int, records: bytes) -> None:
        """Adds the records of the tokens after `start`; those that were computed before count once."""
        known = (self.num_scored - start) * record_bytes(self.spec.prompt_logprobs or 0)
        self.prompt_logprobs += records[known:]

    def take_prompt_logprobs(self) -> bytes:
        taken, self.prompt_logprobs = self.prompt_logprobs, b""
        return taken

    def count_tokens(self) -> TokenCounts | None:
        """How often each of its tokens came, if its draws depend on that.

        Mutates: its counts, which take in the tokens that are new.
        """
        sample = self.spec.sample
        if not sample.penalises:
            return None
        if self.token_counts is None:
            num_prompt = self.spec.num_prompt
            seen = self.tokens[:num_prompt] if sample.repetition != 1.0 else []
            self.token_counts = TokenCounts(seen, num_prompt)
        self.token_counts.catch_up(self.tokens)
        return self.token_counts

    def append(self, token: int) -> Literal["stop", "length"] | None:
        """Adds a sampled token; says whether the sequence ends with it, and why."""
        self.tokens.append(token)
        if token in self.spec.stop_tokens:
            return "stop"
        return "length" if len(self.tokens) >= self.token_limit else None
