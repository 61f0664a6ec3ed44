"""What `/openapi.json` says is so: answers have the shapes that it documents, and its page stands alone."""

import json
import re
from typing import Any

import msgspec
import pytest
import uvloop

from frontend.openai.answers import ChatChunk, ChatCompletion, Completion, CompletionChunk
from proto.errors import Overloaded
from services.faults import ErrorEnvelope
from tests.frontend.conftest import MODEL, Serve, check_whole, events
from tests.frontend.scripted_mesh import Script

QUIET = {"w0": Script(lambda _: [50, 51, 2])}
CHAT = {"messages": [{"role": "user", "content": "x"}]}
EVERYTHING = {"n": 2, "kvmesh": True, "service_tier": "default"}


LOGPROBS = {**CHAT, "logprobs": True, "top_logprobs": 2}
ECHO = {"prompt": "x", "logprobs": 1, "echo": True}
SHAPES: list[tuple[str, list[dict[str, Any]], type[msgspec.Struct], type[msgspec.Struct]]] = [
    ("/v1/chat/completions", [CHAT, LOGPROBS], ChatCompletion, ChatChunk),
    ("/v1/completions", [{"prompt": "x"}, ECHO], Completion, CompletionChunk),
]


@pytest.mark.parametrize(("path", "calls", "whole", "chunk"), SHAPES)
def test_answers_have_the_shapes_that_are_documented(
    serve: Serve,
    path: str,
    calls: list[dict[str, Any]],
    whole: type[msgspec.Struct],
    chunk: type[msgspec.Struct],
) -> None:
    async def body() -> None:
        async with serve(QUIET) as served:
            for asked in ({"model": MODEL, **call} for call in calls):
                for extra in ({}, EVERYTHING, {**EVERYTHING, "prompt_logprobs": 1}):
                    check_whole(whole, (await served.http.post(path, json={**asked, **extra})).text)
                for extra in ({}, {**EVERYTHING, "stream_options": {"include_usage": True}}):
                    streamed = await served.http.post(path, json={**asked, **extra, "stream": True})
                    for event in events(streamed.text)[:-1]:
                        check_whole(chunk, json.dumps(event))
            served.mesh.refusal = Overloaded(reason="the queue is full", retry_after_s=7)
            refused = await served.http.post(path, json={"model": MODEL, **calls[0]})
            check_whole(ErrorEnvelope, refused.text)

    uvloop.run(body())


def test_every_route_is_documented_and_what_is_refused_is_named(serve: Serve) -> None:
    async def body() -> None:
        async with serve(QUIET) as served:
            described = (await served.http.get("/openapi.json")).json()
        assert set(described["paths"]) == {
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/models",
            "/v1/models/{model}",
            "/tokenize",
            "/detokenize",
        }
        schemas = described["components"]["schemas"]
        references = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(described)))
        assert references <= schemas.keys()
        assert schemas["CompletionBody"]["properties"]["suffix"]["enum"] == [None, ""]
        for path, operations in described["paths"].items():
            for operation in operations.values():
                assert {"200", "500", "503"} <= operation["responses"].keys(), path
                assert "422" not in operation["responses"]

    uvloop.run(body())


def test_the_page_of_the_routes_loads_nothing_from_elsewhere(serve: Serve) -> None:
    async def body() -> None:
        async with serve(QUIET) as served:
            page = await served.http.get("/docs")
            loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
            replies = [await served.http.get(path) for path in loaded]
        assert page.status_code == 200
        assert len(loaded) >= 3
        assert not [path for path in loaded if not path.startswith("/")]
        assert {reply.status_code for reply in replies} == {200}

    uvloop.run(body())
