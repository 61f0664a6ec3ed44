"""Tokens are shown with the text that they are in, however that is held back, and never without it."""

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.shown_tokens import ShownTokens
from frontend.text.detokenizer import Detokenizer
from frontend.text.stop_strings import StopStrings
from frontend.text.tokenizer import TextTokenizer, load_tokenizer
from frontend.token_scores import TokenScore

SPECIAL = 1
TEXTS = st.text("abST answer\u00e9\u65e5\U0001f469", max_size=16)
STOPS = st.lists(st.text("abSTwer\u65e5", min_size=1, max_size=4), max_size=3)


class Told:
    """What a client sees of one answer: its text, and the tokens that came with it."""

    def __init__(self, tokenizer: TextTokenizer, stops: list[str]) -> None:
        self.text = ""
        self.tokens: list[int] = []
        self.is_stopped = False
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(stops)
        self._shown = ShownTokens()

    def push(self, token: int) -> None:
        text = self._detokenizer.push((token,))
        own = TokenScore(token, b"", -1.0, 1)
        self._shown.push(own, [], len(text), ends_within=self._detokenizer.is_within_character)
        cut = self._stops.push(text)
        self.text += cut.text
        self.is_stopped = cut.stop is not None
        take = self._shown.take_cut if self.is_stopped else self._shown.take
        self.tokens += [shown.own.token for shown in take(len(cut.text))]

    def end(self) -> None:
        """What is held back is no stop string; no character is cut here."""
        held = self._stops.flush()
        self.text += held
        self.tokens += [shown.own.token for shown in self._shown.take(len(held))]

    def spell(self, tokens: list[int]) -> bytes:
        return b"".join(map(self._tokenizer.token_bytes, tokens))

    def check(self, pushed: list[int]) -> None:
        """All tokens whose text is here are, and only these; after a cut also the one that was cut."""
        assert self.tokens == pushed[: len(self.tokens)]
        spelled = self.spell(self.tokens)
        if self.is_stopped:
            assert spelled.decode("utf-8", "ignore").startswith(self.text)
            with_text = [token for token in self.tokens if token != SPECIAL]
            assert not with_text or len(self.spell(with_text[:-1])) < len(self.text.encode())
        else:
            assert self.text.encode().startswith(spelled)
        if not self.is_stopped and len(self.tokens) < len(pushed):
            with suppress(UnicodeDecodeError):  # else its last character is not complete
                following = (spelled + self.spell(pushed[len(self.tokens) :][:1])).decode()
                assert not self.text.startswith(following)


@settings(max_examples=150, deadline=None)
@given(text=TEXTS, stops=STOPS, specials=st.sets(st.integers(0, 20)), in_bytes=st.booleans())
def test_every_token_is_shown_once_in_order_as_soon_as_its_text_is(
    tokenizer_json: bytes, text: str, stops: list[str], specials: set[int], in_bytes: bool
) -> None:
    tokenizer = load_tokenizer(tokenizer_json)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    if in_bytes:  # characters of several bytes come in parts anyhow
        tokens = [one_byte(tokenizer, byte) for byte in text.encode()]
    for place in sorted(specials, reverse=True):
        tokens[place:place] = [SPECIAL]
    told = Told(tokenizer, stops)
    for number, token in enumerate(tokens, start=1):
        told.push(token)
        told.check(tokens[:number])
        if told.is_stopped:
            return
    told.end()
    told.check(tokens)
    assert (told.text, told.tokens) == (text, tokens)


def one_byte(tokenizer: TextTokenizer, byte: int) -> int:
    return next(token for token in range(512) if tokenizer.token_bytes(token) == bytes([byte]))
