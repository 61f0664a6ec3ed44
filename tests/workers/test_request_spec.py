import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.cards import KvClass, ModelCard, TextFiles
from proto.errors import InvalidRequest
from proto.requests import GenerateRequest, Sampling, Stopping
from proto.tokens import pack_tokens
from workers.engine.admission import check_spec
from workers.engine.engine_settings import EngineSettings
from workers.request_spec import plan_sequence

_VOCAB = 50
_CARD = ModelCard("m", KvClass("digest", "float32", 4), TextFiles(""), 64, _VOCAB, [2])
_RULES = EngineSettings(num_blocks=32, block_size=4, context_tokens=64, vocab_size=_VOCAB)
_TOKENS = st.integers(0, _VOCAB - 1) | st.sampled_from([_VOCAB, 2**31, 2**32 - 1])


@given(st.lists(_TOKENS, min_size=1, max_size=12), st.lists(_TOKENS, max_size=4))
def test_a_request_is_refused_exactly_if_a_token_of_it_is_not_the_models(
    prompt: list[int], generated: list[int]
) -> None:
    request = GenerateRequest(
        request="r",
        attempt=0,
        model="m",
        client="c",
        prompt=pack_tokens(prompt),
        sampling=Sampling(),
        stopping=Stopping(9),
        deadline_s=1.0,
        offset=len(generated),
        generated=pack_tokens(generated),
    )
    spec = plan_sequence(request, _CARD)
    assert spec.tokens == prompt + generated
    if max(spec.tokens) < _VOCAB:
        check_spec(spec, _RULES, context_tokens=64)
    else:
        with pytest.raises(InvalidRequest, match="token ids"):
            check_spec(spec, _RULES, context_tokens=64)
