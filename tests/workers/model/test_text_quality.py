"""The default model in fewer bits says a text nearly as well as in 32."""

import pytest

from services.models.catalog import DEFAULT_MODEL
from services.models.folder import ModelFolder, resolve_model
from tests.workers.model.text_quality import Reading, load_decoder, read_text, text_tokens
from workers.model.int8_projection import has_dot_products

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not has_dot_products(), reason="no 8-bit dot products in this processor"),
]

SHORT_TOKENS = 256


@pytest.fixture(scope="module")
def folder() -> ModelFolder:
    return resolve_model(DEFAULT_MODEL)


def check(full: Reading, other: Reading) -> None:
    assert full.perplexity < 35
    assert other.perplexity < 1.03 * full.perplexity
    assert other.agreement(full) > 0.9


def test_weights_of_8_bits_say_a_text_nearly_as_well_as_whole_ones(folder: ModelFolder) -> None:
    tokens = text_tokens(folder)[:SHORT_TOKENS]
    check(*(read_text(load_decoder(folder, kind), tokens) for kind in ("float32", "int8")))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_every_kind_says_the_whole_text_nearly_as_well(folder: ModelFolder, kind: str) -> None:
    tokens = text_tokens(folder)
    check(read_text(load_decoder(folder, "float32"), tokens), read_text(load_decoder(folder, kind), tokens))
