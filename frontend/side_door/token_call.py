"""From the body of a request in tokens to a call: a completion's, without what is about text."""

from functools import partial

import msgspec

from frontend.answer import Call
from frontend.openai.calls import make_call
from frontend.openai.completion_body import read_completion
from frontend.openai.completion_plan import plan_completion
from frontend.side_door.token_form import TokenForm
from proto.errors import InvalidRequest

_ABOUT_TEXT = ("stop", "echo", "prompt_logprobs")


def token_call(payload: bytes, *, wants_facts: bool) -> Call:
    """`prompt` is token ids, or a list of such. Raises InvalidRequest."""
    body = read_completion(payload)
    for field in _ABOUT_TEXT:
        if getattr(body, field) not in (None, False, []):
            raise InvalidRequest(field=field, reason="not where tokens are asked for, which have no text")
    plan = plan_completion(body)
    if any(isinstance(prompt, str) for prompt in plan.prompts):
        raise InvalidRequest(field="prompt", reason="token ids, or a list of such")
    make_form = partial(TokenForm, shows_scores=plan.sampling.logprobs is not None)
    plan = msgspec.structs.replace(plan, tells_tokens=True)
    return make_call(body, plan, make_form, wants_facts=wants_facts)
