"""Round trips with `tritonclient[http]`, and what is refused in the protocol's form."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest
import uvloop
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from proto.errors import InvalidRequest, to_fault
from proto.streams import End
from tests.frontend.conftest import CONTEXT_TOKENS, MODEL, Serve, Served, events
from tests.frontend.scripted_mesh import Script

ANSWER = [*range(100, 140), 2]
SCRIPTS = {"w0": Script(lambda _: ANSWER)}
_T = TypeVar("_T")


async def with_triton(served: Served, work: Callable[[InferenceServerClient], _T]) -> _T:
    """Triton's client blocks: it has a thread of its own."""

    def run() -> _T:
        with InferenceServerClient(served.url.removeprefix("http://"), network_timeout=30.0) as client:
            return work(client)

    return await asyncio.to_thread(run)


def text_input(*texts: str, binary: bool = True) -> list[InferInput]:
    tensor = InferInput("text_input", [len(texts)], "BYTES")
    tensor.set_data_from_numpy(np.array([t.encode() for t in texts], dtype=np.object_), binary_data=binary)
    return [tensor]


async def completions(served: Served, **fields: Any) -> list[dict[str, Any]]:
    """What OpenAI's API says of the same prompts."""
    reply = await served.http.post("/v1/completions", json={"model": MODEL, **fields})
    choices: list[dict[str, Any]] = reply.json()["choices"]
    return choices


def test_server_and_model_say_what_they_are(serve: Serve) -> None:
    def ask(client: InferenceServerClient) -> list[Any]:
        return [
            client.is_server_live(),
            client.is_server_ready(),
            client.is_model_ready(MODEL),
            client.is_model_ready(MODEL, "1"),
            client.is_model_ready("no/such"),
            client.is_model_ready(MODEL, "2"),
            client.get_server_metadata(),
            client.get_model_metadata(MODEL),
            client.get_model_config(MODEL, "1"),
            client.get_model_repository_index(),
        ]

    async def body() -> None:
        async with serve(SCRIPTS) as served:
            said = await with_triton(served, ask)
        assert said[:6] == [True, True, True, True, False, False]
        server, model, config, index = said[6:]
        assert server["name"] == "kvmesh"
        assert {"binary_tensor_data", "generate"} <= set(server["extensions"])
        assert model["name"] == config["name"] == index[0]["name"] == MODEL
        assert [tensor["name"] for tensor in model["inputs"]] == ["text_input"]
        assert [tensor["name"] for tensor in config["output"]] == [t["name"] for t in model["outputs"]]
        assert config["parameters"]["context_tokens"]["string_value"] == str(CONTEXT_TOKENS)

    uvloop.run(body())


def test_infer_gives_what_completions_give_in_bytes_and_in_json(serve: Serve) -> None:
    texts = ("Once upon a time", "日本 Übermäßig 👩‍👩‍👧")

    def infer(client: InferenceServerClient) -> list[Any]:
        parameters = {"max_tokens": 20, "seed": 7}
        wish = InferRequestedOutput("text_output", binary_data=False)
        return [
            client.infer(MODEL, text_input(*texts), parameters=parameters, request_id="mine"),
            client.infer(MODEL, text_input(*texts, binary=False), outputs=[wish], parameters=parameters),
        ]

    async def body() -> None:
        async with serve(SCRIPTS) as served:
            expected = await completions(served, prompt=list(texts), max_tokens=20, seed=7)
            binary, plain = await with_triton(served, infer)
        said = [text.decode() for text in binary.as_numpy("text_output")]
        assert said == [choice["text"] for choice in expected]
        assert list(plain.as_numpy("text_output")) == said
        assert [reason.decode() for reason in binary.as_numpy("finish_reason")] == ["length", "length"]
        assert list(binary.as_numpy("num_output_tokens")) == [20, 20]
        response = binary.get_response()
        assert (response["id"], response["model_name"], response["model_version"]) == ("mine", MODEL, "1")
        assert [output["name"] for output in plain.get_response()["outputs"]] == ["text_output"]

    uvloop.run(body())


def test_generate_streamed_and_whole_give_what_completions_give(serve: Serve) -> None:
    asked = {"text_input": "Once upon a time", "max_tokens": 30, "parameters": {"temperature": 0}}

    async def body() -> None:
        async with serve(SCRIPTS) as served:
            expected = (await completions(served, prompt="Once upon a time", max_tokens=30))[0]
            path = f"/v2/models/{MODEL}"
            whole = await served.http.post(f"{path}/generate", json={**asked, "id": "mine"})
            headers = {"x-request-id": "mine-too"}
            streamed = await served.http.post(f"{path}/generate_stream", json=asked, headers=headers)
            again = await served.http.post(f"{path}/versions/1/generate", json=asked)
        answer = whole.json()
        assert answer["text_output"] == expected["text"] == again.json()["text_output"]
        assert (answer["finish_reason"], answer["id"]) == ("length", "mine")
        found = events(streamed.text)
        assert "".join(event["text_output"] for event in found) == expected["text"]
        assert [event["finish_reason"] for event in found if "finish_reason" in event] == ["length"]
        assert all(event["model_name"] == MODEL for event in found)
        assert streamed.headers["x-request-id"] == "mine-too"

    uvloop.run(body())


REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    ("generate", {"text_input": "a", "no_such": 1}, 400, "no_such"),
    ("generate", {"text_input": "a", "parameters": {"no_such": 1}}, 400, "no_such"),
    ("generate", {"text_input": "a", "max_tokens": 1, "parameters": {"max_tokens": 2}}, 400, "max_tokens"),
    ("generate", {"text_input": "a", "parameters": {"stream": True}}, 400, "stream"),
    ("generate", {"text_input": ["a"]}, 400, "text_input"),
    ("generate", {"text_input": ""}, 400, "text_input"),
    ("generate", {"text_input": "a", "temperature": 9}, 400, "temperature"),
    ("generate_stream", {"text_input": "word " * 400}, 400, str(CONTEXT_TOKENS)),
    ("infer", {"inputs": []}, 400, "text_input"),
    ("infer", {"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}, 400, "x:"),
    ("infer", {"inputs": [], "no_such": 1}, 400, "no_such"),
    ("infer", {"inputs": [{"name": 5, "shape": [1], "datatype": "BYTES"}]}, 400, "inputs[0].name: "),
]


def test_what_is_wrong_is_named_in_the_protocols_form(serve: Serve) -> None:
    async def body() -> None:
        async with serve(SCRIPTS) as served:
            for endpoint, asked, status, said in REFUSED:
                reply = await served.http.post(f"/v2/models/{MODEL}/{endpoint}", json=asked)
                assert reply.status_code == status, (endpoint, asked, reply.text)
                assert list(reply.json()) == ["error"]
                assert said in reply.json()["error"]
            for path in ("/v2/models/no/such", "/v2/models/no/such/config", "/v2/no/such"):
                reply = await served.http.get(path)
                assert reply.status_code == 404
                assert list(reply.json()) == ["error"]
            reply = await served.http.post(f"/v2/models/{MODEL}")
            assert (reply.status_code, list(reply.json())) == (405, ["error"])
        assert len(served.mesh.routed) == 0

    uvloop.run(body())


def infer_json(*inputs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"inputs": list(inputs), **fields}


def test_inputs_outputs_and_parameters_of_infer_are_checked_by_name(serve: Serve) -> None:
    good = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["a"]}
    asked = [
        (infer_json({**good, "shape": [2]}), "text_input"),
        (infer_json({**good, "parameters": {"odd": 1}}), "text_input.odd"),
        (infer_json({**good, "parameters": {"binary_data_size": 5}}), "text_input"),
        (infer_json(good, good), "text_input"),
        (infer_json(good, outputs=[{"name": "odd"}]), "odd"),
        (infer_json(good, outputs=[{"name": "text_output", "parameters": {"odd": 1}}]), "text_output.odd"),
        (infer_json(good, parameters={"sequence_id": 3}), "sequence_id"),
        (infer_json(good, parameters={"binary_data_output": "yes"}), "binary_data_output"),
    ]

    async def body() -> None:
        async with serve(SCRIPTS) as served:
            for fields, name in asked:
                reply = await served.http.post(f"/v2/models/{MODEL}/infer", json=fields)
                assert reply.status_code == 400, fields
                assert reply.json()["error"].startswith(f"{name}: ")
            with pytest.raises(InferenceServerException, match="temperature"):
                await with_triton(
                    served, lambda client: client.infer(MODEL, text_input("a"), parameters={"temperature": 9})
                )

    uvloop.run(body())


def test_a_length_of_the_json_that_is_no_number_of_bytes_is_refused(serve: Serve) -> None:
    async def body() -> None:
        async with serve(SCRIPTS) as served:
            for said in ("-1", "1.5", "0x1", "²", "9" * 5000):
                headers = {b"inference-header-content-length": said.encode("latin-1")}
                path = f"/v2/models/{MODEL}/infer"
                reply = await served.http.post(path, content=b"{}", headers=headers)
                assert reply.status_code == 400, said
                assert reply.json()["error"].startswith("inference-header-content-length: ")

    uvloop.run(body())


def test_limits_are_those_of_the_other_api(serve: Serve) -> None:
    async def body() -> None:
        script = Script(lambda _: ANSWER, stop_at=3)
        async with serve({"w0": script}, body_limit_bytes=2000, live_limit=1) as served:
            path = f"/v2/models/{MODEL}/generate"
            large = await served.http.post(path, json={"text_input": "x" * 3000})
            async with served.http.stream("POST", f"{path}_stream", json={"text_input": "a"}):
                second = await served.http.post(path, json={"text_input": "b"})
        assert (large.status_code, second.status_code) == (413, 429)
        assert second.headers["retry-after"] == "1"
        assert "2000" in large.json()["error"]

    uvloop.run(body())


def test_an_error_within_a_stream_is_its_last_event_and_a_client_that_leaves_is_cancelled(
    serve: Serve,
) -> None:
    async def body() -> None:
        wrong = End(None, fault=to_fault(InvalidRequest(field="seed", reason="wrong")))
        script = Script(lambda _: [50, 51], end=wrong)
        async with serve({"w0": script}) as served:
            path = f"/v2/models/{MODEL}/generate_stream"
            failed = await served.http.post(path, json={"text_input": "a"})
            script.stop_at = 1
            worker = served.mesh.workers["w0"]
            task = asyncio.ensure_future(served.http.post(path, json={"text_input": "b"}))
            await worker.wait_until(lambda: len(worker.requests) == 2, limit_s=15)
            task.cancel()
            request = worker.requests[-1]
            await worker.wait_until(lambda: (request.request, 0) in worker.cancelled, limit_s=15)
        last = events(failed.text)[-1]
        assert last == {"error": "seed: wrong"}

    uvloop.run(body())


def test_it_can_be_shut(serve: Serve) -> None:
    async def body() -> None:
        async with serve(SCRIPTS, kserve=False) as served:
            reply = await served.http.get("/v2/health/live")
        assert reply.status_code == 404
        assert json.loads(reply.text)["error"]["type"] == "invalid_request_error"

    uvloop.run(body())
