"""Token ids in, token ids out: what a client that brings its own tokens sees."""

from typing import Any

import pytest
import uvloop
from kvmesh_client import RequestRefused

from proto.tokens import unpack_tokens
from tests.frontend.conftest import MODEL
from tests.frontend.scripted_mesh import Script
from tests.frontend.side_door.conftest import Dial

ANSWER = [*range(100, 160), 2]
ASK: dict[str, Any] = {"model": MODEL, "prompt": [5, 6, 7]}


@pytest.mark.parametrize("per_frame", [1, 7])
def test_tokens_come_as_they_are_streamed_and_whole(dial: Dial, per_frame: int) -> None:
    async def body() -> None:
        async with dial({"w0": Script(lambda _: ANSWER, per_frame=per_frame)}) as dialled:
            whole = await dialled.client.generate(**ASK)
            options = {"include_usage": True}
            chunks = [c async for c in dialled.client.stream_generate(**ASK, stream_options=options)]
            routed = dialled.served.mesh.routed
        assert [unpack_tokens(request.prompt) for request in routed] == [[5, 6, 7], [5, 6, 7]]
        choice = whole["choices"][0]
        assert (choice["tokens"], choice["finish_reason"]) == (ANSWER[:-1], "stop")
        assert whole["usage"]["completion_tokens"] == len(ANSWER)
        ended = [chunk["choices"][0] for chunk in chunks[:-1]]
        assert [token for part in ended for token in part["tokens"]] == ANSWER[:-1]
        assert [part["finish_reason"] for part in ended if part["finish_reason"]] == ["stop"]
        assert chunks[-1]["usage"] == whole["usage"]

    uvloop.run(body())


def test_several_prompts_and_what_their_tokens_are_worth(dial: Dial) -> None:
    async def body() -> None:
        async with dial({"w0": Script(lambda _: ANSWER)}) as dialled:
            asked: dict[str, Any] = {
                "model": MODEL,
                "prompt": [[5, 6], [7]],
                "max_tokens": 4,
                "logprobs": 2,
                "kvmesh": True,
            }
            whole = await dialled.client.generate(**asked)
        assert [choice["index"] for choice in whole["choices"]] == [0, 1]
        assert [facts["worker"] for facts in whole["kvmesh"]] == ["w0", "w0"]
        for choice in whole["choices"]:
            assert (choice["tokens"], choice["finish_reason"]) == (ANSWER[:4], "length")
            told = choice["logprobs"]
            assert [round(one["logprob"], 4) for one in told] == [-token / 100 for token in choice["tokens"]]
            assert [len(one["top"]) for one in told] == [2] * 4

    uvloop.run(body())


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "text"}, "prompt"),
    ({"prompt": [[1], "text"]}, "prompt"),
    ({"prompt": [512]}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"stop": "x"}, "stop"),
    ({"echo": True}, "echo"),
    ({"no_such": 1}, "no_such"),
]


def test_what_has_no_meaning_in_tokens_is_refused_by_name(dial: Dial) -> None:
    async def body() -> None:
        async with dial({"w0": Script(lambda _: ANSWER)}) as dialled:
            for fields, param in REFUSED:
                with pytest.raises(RequestRefused) as refused:
                    await dialled.client.generate(**{**ASK, **fields})
                assert refused.value.param == param, fields

    uvloop.run(body())
