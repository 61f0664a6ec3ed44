"""What `/tokenize` and `/detokenize` answer, whatever door asks."""

from functools import partial

from frontend.models import ServedModel
from frontend.openai.tokenizing import prompt_of, read_detokenize, read_tokenize, text_json, tokens_json
from frontend.prompt_reader import PromptReader, check_tokens


async def say_tokens(reader: PromptReader, payload: bytes) -> bytes:
    """How many tokens a prompt or a chat has, and which. Raises as `PromptReader`, and InvalidRequest."""
    body = read_tokenize(payload)
    prompt, model = prompt_of(body), await _load(reader, body.model)
    if body.tools:
        model.text.speech.check_tools()
    add_special_tokens = body.add_special_tokens is not False
    tokens = await reader.tokens(model, prompt, add_special_tokens=add_special_tokens)
    with_pieces = bool(body.return_token_strs)
    context_tokens = model.card.context_tokens
    work = partial(tokens_json, model.text.tokenizer, tokens, context_tokens, with_pieces=with_pieces)
    return await reader.run(len(tokens), work)


async def say_text(reader: PromptReader, payload: bytes) -> bytes:
    """The text of tokens. Raises as `say_tokens`."""
    body = read_detokenize(payload)
    model = await _load(reader, body.model)
    check_tokens(body.tokens, model.card.vocab_size, "tokens")
    work = partial(text_json, model.text.tokenizer, body.tokens)
    return await reader.run(len(body.tokens), work)


async def _load(reader: PromptReader, name: str | None) -> ServedModel:
    return await (reader.load_only() if name is None else reader.load(name))
