"""From the body of a request to a call, for any door that takes OpenAI's JSON."""

import time
from collections.abc import Callable

from frontend.answer import Call
from frontend.form import Form
from frontend.openai.bodies import RequestBody
from frontend.openai.chat_body import read_chat
from frontend.openai.chat_form import ChatForm
from frontend.openai.chat_plan import plan_chat
from frontend.openai.completion_body import read_completion
from frontend.openai.completion_form import CompletionForm
from frontend.openai.completion_plan import plan_completion
from frontend.openai.forms import AnswerHead
from frontend.plan import Plan
from proto.names import new_id

FACTS_HEADER = "x-kvmesh-facts"
"""`1`: the client asks for the `kvmesh` extension beside its body, as by `kvmesh` in it."""


def chat_call(payload: bytes, *, wants_facts: bool) -> Call:
    """`wants_facts`: by `FACTS_HEADER`. Raises InvalidRequest."""
    body = read_chat(payload)
    return make_call(body, plan_chat(body), ChatForm, wants_facts=wants_facts)


def completion_call(payload: bytes, *, wants_facts: bool) -> Call:
    """As `chat_call`."""
    body = read_completion(payload)
    return make_call(body, plan_completion(body), CompletionForm, wants_facts=wants_facts)


def make_call(
    body: RequestBody, plan: Plan, make_form: Callable[[AnswerHead], Form], *, wants_facts: bool
) -> Call:
    options = body.stream_options
    head = AnswerHead(
        new_id(),
        plan.model,
        int(time.time()),
        shows_usage=options is not None and bool(options.include_usage),
        shows_running_usage=options is not None and bool(options.continuous_usage_stats),
        shows_facts=bool(body.kvmesh) or wants_facts,
        shows_tier=body.service_tier is not None,
        may_call=plan.tools is not None,
    )
    return Call(plan, make_form(head), bool(body.stream))
