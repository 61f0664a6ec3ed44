"""What a client asks for, in whatever dialect it said so."""

from collections.abc import Sequence

import msgspec

from frontend.parsing.tools import Tools
from frontend.text.chat_messages import Chat
from proto.constraints import Constraint
from proto.requests import Sampling

Prompt = Chat | str | list[int]


class Plan(msgspec.Struct, frozen=True):
    """What a client asks for, checked as far as it can be without the model.

    Each prompt has `num_each` choices, which stand side by side. `prompt_field` is how the client names its
    prompts; `echoes` has each answer begin with its prompt, `tells_tokens` has it be tokens, without text.
    `max_tokens` None: all that the context holds; 0: nothing. `seed` None: any, over that of `sampling`;
    `wanted_worker` the only worker that may serve it. `tools` are what the answer to a chat may call.
    """

    model: str
    prompts: Sequence[Prompt]
    prompt_field: str
    num_each: int = 1
    echoes: bool = False
    tells_tokens: bool = False
    max_tokens: int | None = None
    sampling: Sampling = Sampling()
    seed: int | None = None
    stops: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    salt: str = ""
    priority: int = 0
    wanted_worker: str = ""
    constraint: Constraint | None = None
    tools: Tools | None = None
