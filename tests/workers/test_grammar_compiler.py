"""Each sequence gets a grammar of its own, or the reason why there is none."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from proto.constraints import Constraint
from proto.errors import InvalidRequest, to_fault
from services.models.folder import ModelFolder
from tests.services.grammars.walks import MASKS, tokens_in
from tests.tiny_model import EOS_TOKEN_IDS
from workers.engine.grammar_state import GrammarState
from workers.grammars import GrammarCompiler, open_grammar_compiler

WORD = Constraint("regex", "[a-z]{2}", "guided_regex")
VOCAB = 512


def with_compiler(tokenizer: Path, body: Callable[[GrammarCompiler], Awaitable[None]]) -> None:
    folder = ModelFolder(
        path=tokenizer.parent,
        name="m",
        tokenizer_path=tokenizer,
        tokenizer_digest="",
        chat_template="",
        bos_token="",
        eos_token="",
        eos_tokens=list(EOS_TOKEN_IDS),
        context_tokens=64,
        vocab_size=VOCAB,
    )

    async def life() -> None:
        async with asyncio.timeout(60), open_grammar_compiler(folder) as compiler:
            await body(compiler)

    asyncio.run(life())


def allowed(state: GrammarState, generated: list[int]) -> set[int]:
    matcher = state.follow(generated, 0)
    assert matcher is not None
    (mask,) = MASKS.fill([matcher])
    return set(tokens_in(mask))


def test_sequences_of_one_constraint_each_have_their_own_place_in_it(tiny: Path) -> None:
    async def body(compiler: GrammarCompiler) -> None:
        states = [GrammarState(WORD) for _ in range(2)]
        await asyncio.gather(*map(compiler.compile, states))
        first = allowed(states[0], [])
        letter = min(first)
        after = allowed(states[0], [letter])
        assert allowed(states[1], []) == first, "it has not moved"
        assert allowed(states[1], [letter]) == after

    with_compiler(tiny / "tokenizer.json", body)


def test_a_constraint_that_cannot_be_compiled_leaves_its_reason_with_the_sequence(tiny: Path) -> None:
    async def body(compiler: GrammarCompiler) -> None:
        state = GrammarState(Constraint("regex", "(", "guided_regex"))
        with pytest.raises(InvalidRequest, match="unclosed group") as caught:
            await compiler.compile(state)
        assert state.follow([], 0) is None
        assert state.fault == to_fault(caught.value)

    with_compiler(tiny / "tokenizer.json", body)


def test_a_model_whose_tokens_cannot_be_spelt_takes_no_constraint(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordPiece({"a": 0, "##b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))

    async def body(compiler: GrammarCompiler) -> None:
        with pytest.raises(InvalidRequest, match="not with this model") as caught:
            await compiler.compile(GrammarState(WORD))
        assert caught.value.values["field"] == "guided_regex"

    with_compiler(path, body)
