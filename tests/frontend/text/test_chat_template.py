from datetime import datetime

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from frontend.text.chat_messages import Chat, ChatEnd, Message
from frontend.text.chat_template import compile_chat_template
from proto.errors import DeadlineExceeded, InvalidRequest, InvalidSetting

_CHATML = """{%- if messages[0].role != 'user' and messages[0].role != 'system' %}
    {{- raise_exception('a chat begins with the user') }}
{%- endif %}
{%- for message in messages %}
    {%- set name = message.role ~ '!' %}
    {% if loop.first %}
{{ bos_token }}
    {% endif %}
{{ '<|im_start|>' + name + '\\n' + message['content'] + '<|im_end|>' }}
    {%- if message.role == 'assistant' %}{% generation %}G{% endgeneration %}{% endif %}
    {%- if loop.index > 3 %}{% break %}{% endif %}
{%- endfor %}
{%- if tools %}{{ tools | tojson(indent=2) }}{% endif %}
{%- macro close(word, count=2) %}{{ word * count }}<{{ caller is defined }}>{% endmacro %}
{{ close('-=') }}{% set kept %}{{ none }} x{% endset %}{{ kept }}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

_USER: dict[str, object] = {"role": "user", "content": "안녕 <b> 👩‍👩‍👧‍👦"}
_TOOL: dict[str, object] = {"type": "function", "function": {"name": "weather", "description": "비 & <눈>"}}


def _render(
    source: str, *messages: dict[str, object], limit_s: float = 5.0, max_chars: int = 1_000_000
) -> str:
    template = compile_chat_template(source, {"bos_token": "<s>", "eos_token": "</s>"})
    return template.render(Chat(messages or (_USER,)), limit_s, max_chars)


def test_a_template_renders_as_in_transformers() -> None:
    messages: list[dict[str, object]] = [_USER, {"role": "assistant", "content": "hi"}, _USER, _USER, _USER]
    wanted = render_jinja_template(
        [messages], [_TOOL], chat_template=_CHATML, add_generation_prompt=True, bos_token="<s>"
    )[0]
    template = compile_chat_template(_CHATML, {"bos_token": "<s>"})
    assert template.render(Chat(messages, [_TOOL])) == wanted[0]


def test_text_parts_become_one_content() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    rendered = _render("{{ messages[0].content }}", {"role": "user", "content": parts})
    assert rendered == "one\ntwo"


@pytest.mark.parametrize("part", [{"type": "image_url", "image_url": {}}, {"type": "text"}, "bare", 7])
def test_parts_other_than_text_are_refused_by_name(part: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        _render("{{ messages[1].content }}", _USER, {"role": "user", "content": [part]})
    assert refused.value.values["field"] == "messages[1].content"


@pytest.mark.parametrize(
    ("arguments", "written"),
    [('{"city": "서울"}', '{"city": "서울"}'), ("", "{}"), ('{"a": 1', '"{\\"a\\": 1"'), ("[1]", '"[1]"')],
)
def test_arguments_of_tool_calls_reach_the_template_as_values_and_as_text_where_they_are_none(
    arguments: str, written: str
) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    message: dict[str, object] = {"role": "assistant", "content": None, "tool_calls": [call]}
    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}{{ 'content' in messages[0] }}"
    assert _render(source, message) == f"{written}False"


@pytest.mark.parametrize("calls", [7, [7], [{"function": None}]])
def test_broken_tool_calls_are_refused_by_name(calls: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        _render("x", {"role": "assistant", "tool_calls": calls})
    assert str(refused.value.values["field"]).startswith("messages[0].tool_calls")


def test_options_of_the_client_reach_the_template_and_replace_nothing() -> None:
    template = compile_chat_template(
        "{{ enable_thinking }} {{ bos_token }} {{ messages|length }}", {"bos_token": "B"}
    )
    options = {"enable_thinking": False, "bos_token": "x", "messages": []}
    assert template.render(Chat([_USER], options=options)) == "False B 1"


def test_the_date_is_known_to_templates() -> None:
    assert _render("{{ strftime_now('%Y') }}") in (str(datetime.now().year), str(datetime.now().year - 1))


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[7].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ missing.field }}",
        "{% include '/etc/passwd' %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ range(1000000) | list }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_what_a_template_refuses_or_may_not_do_is_the_callers_fault(source: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        _render(source)
    assert refused.value.values["field"] == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% macro f() %}{% endmacro %}{% for a in range(99999) %}{% for b in range(99999) %}{{ f() }}"
        "{% endfor %}{% endfor %}",
    ],
)
def test_a_template_that_does_not_end_is_stopped(source: str) -> None:
    with pytest.raises(DeadlineExceeded):
        _render(source, limit_s=0.05)


_GROWING = "{% set ns = namespace(s='ab') %}{% for a in range(60) %}"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{{ messages[0].content }}{% endfor %}",
        "{% for a in range(99999) %}bare text{% for b in range(99) %}bare text{% endfor %}{% endfor %}",
        _GROWING + "{% set ns.s = ns.s + ns.s %}{% endfor %}",
        _GROWING + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        _GROWING + "{% set ns.s = ns.s * 2 %}{% endfor %}",
        _GROWING + "{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}{% endfor %}",
        "{{ 'a' * 10 ** 12 }}",
        "{{ [1] * 10 ** 12 }}",
    ],
)
def test_a_template_that_writes_without_end_is_stopped(source: str) -> None:
    with pytest.raises(InvalidRequest, match="writes more than 1000000 characters"):
        _render(source)


def test_huge_numbers_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="too many digits"):
        _render("{{ 10 ** (10 ** 9) }}")


def test_a_prompt_of_exactly_the_limit_passes() -> None:
    assert _render("{{ 'a' * 5 }}bare", max_chars=9) == "aaaaabare"
    with pytest.raises(InvalidRequest):
        _render("{{ 'a' * 5 }}bare", max_chars=8)


def test_a_template_with_a_mistake_in_its_syntax_is_refused_when_compiled() -> None:
    with pytest.raises(InvalidSetting, match="chat template"):
        compile_chat_template("{% if %}", {})


_ASKED = "<user>The answer</><assistant>"
_TURNS = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content|trim }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.mark.parametrize(
    ("content", "prompt"),
    [
        ("The answer", _ASKED + "The answer"),
        ("The answer is ", _ASKED + "The answer is "),
        ("", _ASKED),
        (
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            _ASKED + "a\nb",
        ),
    ],
)
def test_a_last_message_goes_on_where_its_content_ends(content: object, prompt: str) -> None:
    messages: list[Message] = [
        {"role": "user", "content": "The answer"},
        {"role": "assistant", "content": content},
    ]
    template = compile_chat_template(_TURNS, {})
    assert template.render(Chat(messages, end=ChatEnd.WITHIN)) == prompt
    assert template.render(Chat(messages[:1], end=ChatEnd.CLOSED)) == "<user>The answer</>"


@pytest.mark.parametrize(
    "source", ["{{ messages[0].role }}", "{{ messages[0].content }}{{ messages[0].content }}"]
)
def test_a_template_that_does_not_write_a_message_once_cannot_go_on_with_it(source: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        compile_chat_template(source, {}).render(Chat([_USER], end=ChatEnd.WITHIN))
    assert refused.value.values["field"] == "continue_final_message"
