"""The program of a `TokenizeProcess`: texts come in, their tokens go out, one question after the other.

It keeps the tokenizers that were asked for last, up to the number in its argument. Of one that it lacks it
says so, and is asked again, with the tokenizer.
"""

import sys
from array import array
from collections import OrderedDict

import msgspec

from frontend.text.segments import TokenArray
from frontend.text.tokenizer import TextTokenizer, load_tokenizer
from services.pipe_messages import try_read_message, write_message


class Question(msgspec.Struct, frozen=True, array_like=True):
    """For the tokens of each of `texts`. `digest` names the tokenizer, `source` is its file, or nothing."""

    digest: bytes
    add_special_tokens: bool
    texts: list[str]
    source: bytes = b""


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """The tokens of each text, as the bytes of an array; None: the tokenizer is lacking."""

    tokens: list[bytes] | None


def main() -> None:
    kept = _Kept(int(sys.argv[1]))
    questions, replies = msgspec.msgpack.Decoder(Question), msgspec.msgpack.Encoder()
    while (message := try_read_message(sys.stdin.buffer)) is not None:
        write_message(sys.stdout.buffer, replies.encode(_answer(questions.decode(message), kept)))


def read_tokens(data: bytes) -> TokenArray:
    tokens = array("I")
    tokens.frombytes(data)
    return tokens


class _Kept:
    """The tokenizers seen last, at most `max_kept`."""

    def __init__(self, max_kept: int) -> None:
        self._max_kept = max_kept
        self._tokenizers: OrderedDict[bytes, TextTokenizer] = OrderedDict()

    def try_find(self, question: Question) -> TextTokenizer | None:
        """None: it is not kept, and did not come along."""
        if question.source:
            self._tokenizers[question.digest] = load_tokenizer(question.source)
            if len(self._tokenizers) > self._max_kept:
                self._tokenizers.popitem(last=False)
        elif question.digest in self._tokenizers:
            self._tokenizers.move_to_end(question.digest)
        return self._tokenizers.get(question.digest)


def _answer(question: Question, kept: _Kept) -> Reply:
    tokenizer = kept.try_find(question)
    if tokenizer is None:
        return Reply(None)
    batch = tokenizer.encode_batch(question.texts, question.add_special_tokens)
    return Reply([tokens.tobytes() for tokens in batch])


if __name__ == "__main__":
    main()
