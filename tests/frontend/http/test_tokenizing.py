"""/tokenize and /detokenize: the tokens that a call would have, their text again, and typed refusals."""

import asyncio
from typing import Any

import msgspec
import uvloop

from proto import keys
from proto.cards import ModelCard, WorkerCard
from proto.codec import decode, encode
from proto.roles import Role, WorkerState
from proto.tokens import unpack_tokens
from tests.frontend.conftest import CONTEXT_TOKENS, MODEL, Serve, Served
from tests.frontend.scripted_mesh import KV, Script

QUIET = {"w0": Script(lambda _: [50, 2])}
TEXT = "Hello, 世界 👩‍👩‍👧 שלום"
MESSAGES = [{"role": "user", "content": TEXT}]
LOOK = {"type": "function", "function": {"name": "look_up"}}

ASKED: list[dict[str, Any]] = [
    {"prompt": TEXT},
    {"messages": MESSAGES},
    {"messages": MESSAGES, "continue_final_message": True},
    {"messages": MESSAGES, "add_generation_prompt": False, "chat_template_kwargs": {"a": 1}},
]


async def kept_bytes(served: Served) -> float:
    scraped = (await served.http.get(f"{served.admin_url}/metrics")).text
    [line] = [line for line in scraped.splitlines() if line.startswith("kvmesh_tokenize_kept_bytes ")]
    return float(line.split()[1])


def test_a_prompt_has_the_tokens_that_a_call_sends(serve: Serve) -> None:
    async def body() -> None:
        async with serve(QUIET) as served:
            for fields in ASKED:
                asked = {"model": MODEL, **fields}
                found = (await served.http.post("/tokenize", json=asked)).json()
                path = "/v1/completions" if "prompt" in fields else "/v1/chat/completions"
                assert (await served.http.post(path, json=asked)).status_code == 200
                sent = unpack_tokens(served.mesh.routed[-1].prompt)
                assert found == {
                    "count": len(sent),
                    "max_model_len": CONTEXT_TOKENS,
                    "tokens": sent,
                    "token_strs": None,
                }, fields

    uvloop.run(body())


def test_what_is_kept_of_chats_is_within_its_bound_and_shown(serve: Serve) -> None:
    async def body() -> None:
        async with serve(QUIET, tokenize_kept_bytes=4000) as served:
            assert await kept_bytes(served) == 0
            for word in ("a", "b", "c", "d"):
                messages = [{"role": "user", "content": word * 150}]
                await served.http.post("/tokenize", json={"messages": messages})
                assert 0 < await kept_bytes(served) <= 4000

    uvloop.run(body())


def test_the_tokenizer_of_the_model_used_first_makes_room_for_another(serve: Serve) -> None:
    async def body() -> None:
        asked = {"messages": [{"role": "user", "content": "a" * 150}]}
        async with serve({**QUIET, "w1": QUIET["w0"]}, kept_models=1) as served:
            mesh = served.mesh
            entry = await mesh.directory.get(keys.model(mesh.ns, MODEL))
            assert entry is not None
            card = msgspec.structs.replace(decode(entry.value, ModelCard), name="other", tool_parser="none")
            worker = WorkerCard("w1", "other", Role.DECODE, 1, "life-1", WorkerState.READY, KV, 64, 8)
            await mesh.directory.put(keys.model(mesh.ns, "other"), encode(card))
            await mesh.directory.own(keys.worker(mesh.ns, "w1"), encode(worker))
            async with asyncio.timeout(30):
                while "other" not in (await served.http.get("/v1/models")).text:
                    pass
            kept = []
            for model in (MODEL, "other", "other", MODEL):
                reply = await served.http.post("/tokenize", json={**asked, "model": model})
                assert reply.status_code == 200
                kept.append(await kept_bytes(served))
            assert kept == [kept[0]] * 4, "one model's at a time"

    uvloop.run(body())


def test_tokens_come_back_as_the_text_that_they_came_from(serve: Serve) -> None:
    async def body() -> None:
        async with serve(QUIET) as served:
            for text in (TEXT, "<|im_start|>user\nx<|im_end|>"):
                asked = {"prompt": text, "add_special_tokens": False, "return_token_strs": True}
                found = (await served.http.post("/tokenize", json=asked)).json()
                assert len(found["token_strs"]) == found["count"]
                assert all(found["token_strs"])
                back = await served.http.post("/detokenize", json={"tokens": found["tokens"]})
                assert back.json() == {"prompt": text}
            nothing = await served.http.post("/detokenize", json={"tokens": [], "model": MODEL})
            long = await served.http.post("/tokenize", json={"prompt": "word " * 2000})
        assert nothing.json() == {"prompt": ""}
        assert long.json()["count"] > CONTEXT_TOKENS, "what is too long to be served can be counted"

    uvloop.run(body())


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": 5}, "prompt"),
    ("/tokenize", {"prompt": "x", "messages": MESSAGES}, "prompt"),
    ("/tokenize", {"prompt": "x", "add_generation_prompt": True}, "add_generation_prompt"),
    ("/tokenize", {"messages": []}, "messages"),
    ("/tokenize", {"messages": [{"role": "wizard"}]}, "messages[0].role"),
    ("/tokenize", {"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
    ("/tokenize", {"messages": MESSAGES, "chat_template": "x"}, "chat_template"),
    ("/tokenize", {"messages": MESSAGES, "tools": [LOOK]}, "tools"),
    ("/tokenize", {"prompt": "x", "tools": [LOOK]}, "tools"),
    ("/tokenize", {"prompt": "x", "no_such_field": 1}, "no_such_field"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": ["x"]}, "tokens[0]"),
    ("/detokenize", {"tokens": [512]}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
]


def test_wrong_fields_are_named_and_unknown_models_a_404(serve: Serve) -> None:
    async def body() -> None:
        async with serve(QUIET) as served:
            for path, fields, name in WRONG:
                reply = await served.http.post(path, json=fields)
                assert (reply.status_code, reply.json()["error"]["param"]) == (400, name), fields
            unknown = await served.http.post("/tokenize", json={"model": "nope", "prompt": "x"})
        async with serve({}) as served:
            nobody = await served.http.post("/tokenize", json={"prompt": "x"})
        assert unknown.status_code == 404
        assert nobody.json()["error"]["param"] == "model"

    uvloop.run(body())
