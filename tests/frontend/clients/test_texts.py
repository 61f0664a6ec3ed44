"""Whatever its script, a text comes as it was written, streamed as whole: the model is led to say it."""

import pytest
from openai import OpenAI

TEXTS = {
    "korean": "안녕하세요, 세계! 한글은 아름답습니다.",
    "emoji": "family 👩‍👩‍👧‍👦 flag 🏳️‍🌈 hand 👋🏽 end",
    "right-to-left": "שלום עולם — مرحبا بالعالم \u200f(RTL)",
    "code": 'def f(x):\n\treturn {"a": [x, "\\n"]}  # ≤ 5\r\n',
    "combining": "é ñ Å क्षि ไทย",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_a_text_arrives_whole_and_streamed_as_it_was_said(client: OpenAI, model: str, text: str) -> None:
    messages = [{"role": "user", "content": f"Say: {text}"}]
    asked = {"model": model, "messages": messages, "extra_body": {"guided_choice": [text]}}
    whole = client.chat.completions.create(**asked)  # type: ignore[call-overload]
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in client.chat.completions.create(**asked, stream=True)  # type: ignore[call-overload]
    ]
    assert whole.choices[0].message.content == text
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert len([piece for piece in pieces if piece]) > 3, "it came in pieces"
    assert whole.choices[0].finish_reason == "stop"
