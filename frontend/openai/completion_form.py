"""A completion's answer as OpenAI's JSON: pieces of text, and whole ones."""

from collections.abc import Sequence

from frontend.form import WholeChoice
from frontend.openai.forms import AnswerForm, encode_json, prompt_field
from frontend.openai.logprobs import completion_logprobs
from frontend.shown_tokens import ShownToken


class CompletionForm(AnswerForm):
    id_prefix = b"cmpl-"
    chunk_object = b"text_completion"
    whole_object = b"text_completion"

    def opening(self, index: int) -> bytes:
        return b""

    def choice_frame(self, index: int) -> tuple[bytes, bytes, bytes]:
        return b'{"index":%d,"text":' % index, b',"logprobs":', b',"finish_reason":null}'

    def logprobs(self, tokens: Sequence[ShownToken]) -> bytes:
        return completion_logprobs(tokens)

    def ended_choice(self, index: int, finish: bytes) -> bytes:
        return b'{"index":%d,"text":"","logprobs":null,"finish_reason":%s}' % (index, finish)

    def whole_choice(self, choice: WholeChoice) -> bytes:
        return b'{"index":%d,"text":%s,"logprobs":%s,"finish_reason":%s%s}' % (
            choice.index,
            encode_json(choice.text),
            self._logprobs_of(choice),
            encode_json(choice.finish),
            prompt_field(choice),
        )

    def whole_extras(self, choices: Sequence[WholeChoice]) -> bytes:
        return b""
