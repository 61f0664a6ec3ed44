"""A request on its way from a frontend through a router to a worker, in tokens only."""

from typing import Literal

from proto.codec import Decoder
from proto.constraints import Constraint
from proto.errors import Fault
from proto.struct import WireStruct

MAX_SEED = (1 << 63) - 1


class Sampling(WireStruct, frozen=True):
    """How the next token is drawn.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 are off. The frontend always sets `seed`,
    also when the client gave none, so that an attempt elsewhere draws as this one would have. Presence and
    frequency penalties count the generated tokens, over all attempts; the repetition penalty, off at 1, the
    prompt's too. `logit_bias` is by token id. `logprobs` and `prompt_logprobs` say how many of the likeliest
    tokens to name with the log-probability of each generated token, and of each token of the prompt; None:
    say nothing of them.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None
    prompt_logprobs: int | None = None


class Stopping(WireStruct, frozen=True):
    """When a sequence ends. Stop strings are text, and so the frontend's.

    Units: `max_tokens` and `min_tokens` count all tokens generated for the request, over all attempts; no
    token that ends it is among the first `min_tokens`.
    """

    max_tokens: int
    stop_tokens: list[int] = []
    ignore_eos: bool = False
    min_tokens: int = 0


class KvSource(WireStruct, frozen=True):
    """Where an earlier attempt of the request runs, with its KV: an incarnation of a worker."""

    worker: str
    incarnation: str
    attempt: int


class GenerateRequest(WireStruct, frozen=True):
    """One attempt at a request.

    `prompt` and `generated` are packed tokens (see `tokens`); `generated` is what earlier attempts gave, and
    `offset` its length: the attempt's first frame begins there. `client` is the frontend whose stream subject
    takes the frames. `exclude` names workers not to be chosen, `wanted_worker` the only one that may be. The
    lowest `priority` goes first. Only a frontend issues attempts. `source` runs the request now and hands it
    over: such an attempt is sent or refused, never queued.

    Units: `deadline_s` seconds left for the whole request when this was sent.
    """

    request: str
    attempt: int
    model: str
    client: str
    prompt: bytes
    sampling: Sampling
    stopping: Stopping
    deadline_s: float
    offset: int = 0
    generated: bytes = b""
    salt: str = ""
    priority: int = 0
    exclude: list[str] = []
    wanted_worker: str = ""
    source: KvSource | None = None
    constraint: Constraint | None = None

    @property
    def wants_scores(self) -> bool:
        """Whether the logits of all of the prompt are wanted, so that its worker computes all of it.

        What the prompt's tokens are worth comes with the first generated one, and so never again after it.
        """
        return self.sampling.prompt_logprobs is not None and self.offset == 0


class Decision(WireStruct, frozen=True):
    """A router's choice. `number` counts the choices of this router's incarnation.

    Units: `prefix_tokens` tokens that the router believes cached at the worker, `prefill_prefixes` at those
    prefill workers that have some, by name, the most first; `cost_s` the score.
    """

    router: str
    number: int
    worker: str
    epoch: int
    prefix_tokens: int
    cost_s: float = 0.0
    policy: str = "kv"
    prefill_prefixes: dict[str, int] = {}


class RoutedRequest(WireStruct, frozen=True):
    request: GenerateRequest
    decision: Decision


class Routed(WireStruct, frozen=True, tag="routed"):
    """A worker has taken the request; its frames are on their way."""

    decision: Decision


class Queued(WireStruct, frozen=True, tag="queued"):
    """Held at this router until a worker has room. Units: `wait_s` expected."""

    router: str
    wait_s: float


class Refused(WireStruct, frozen=True, tag="refused"):
    """An answer, with its reason."""

    fault: Fault


RouteReply = Routed | Queued | Refused
ROUTE_REPLIES = Decoder[RouteReply](RouteReply)


class Accepted(WireStruct, frozen=True, tag="accepted"):
    """The worker's word to the router; its word to the frontend is the first frame."""

    worker: str


GenerateReply = Accepted | Refused
GENERATE_REPLIES = Decoder[GenerateReply](GenerateReply)


class Choice(WireStruct, frozen=True):
    """A choice as the other routers hear it.

    `hashes` are the prompt's block hashes, 16 bytes each, which the worker will hold soon.
    Units: `new_tokens` uncached tokens promised to the worker.
    """

    decision: Decision
    request: str
    model: str
    new_tokens: int
    hashes: bytes = b""


FinishReason = Literal["stop", "length", "cancelled"]
PrefillPlace = Literal["local", "remote"]
