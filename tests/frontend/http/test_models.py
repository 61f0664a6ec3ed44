"""Which models can be served: what cards and beats say together."""

import asyncio

import uvloop

from proto import keys
from proto.cards import ModelCard
from proto.codec import encode
from proto.roles import WorkerState
from tests.frontend.conftest import MODEL, Serve, Served
from tests.frontend.scripted_mesh import KV, Script, text_files


async def listed(served: Served) -> list[str]:
    reply = await served.http.get("/v1/models")
    return [model["id"] for model in reply.json()["data"]]


async def wait_listed(served: Served, models: list[str]) -> None:
    async with asyncio.timeout(15):
        while await listed(served) != models:
            pass


def test_vanished_keys_alone_do_not_empty_the_list_and_the_end_of_beats_does(serve: Serve) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: [50, 2])}, lost_after_s=3.0) as served:
            mesh = served.mesh
            await mesh.directory.disown(keys.worker(mesh.ns, "w0"))
            await mesh.directory.delete(keys.model(mesh.ns, MODEL))
            await mesh.directory.put(keys.model(mesh.ns, "other"), encode(other_card()))
            while (await served.http.get("/v1/models/other")).status_code == 404:
                pass  # until the frontend has seen a later change of the directory
            assert await listed(served) == [MODEL]
            assert (await served.chat()).status_code == 200
            mesh.kill("w0")
            await wait_listed(served, [])

    uvloop.run(body())


def other_card() -> ModelCard:
    return ModelCard("other", KV, text_files("0" * 64, ""), 64, 512, [2])


def test_a_report_that_says_draining_is_newer_than_the_card_that_says_ready(serve: Serve) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: [50, 2])}) as served:
            assert (await served.http.get("/health")).status_code == 200
            served.mesh.workers["w0"].state = WorkerState.DRAINING
            await wait_listed(served, [])
            assert (await served.http.get("/health")).status_code == 503
            served.mesh.workers["w0"].state = WorkerState.READY
            await wait_listed(served, [MODEL])

    uvloop.run(body())


def test_a_model_without_its_tokenizer_is_a_500_in_the_envelope_and_others_go_on(serve: Serve) -> None:
    async def body() -> None:
        async with serve({"w0": Script(lambda _: [50, 2])}) as served:
            broken = ModelCard(MODEL, KV, text_files("0" * 64, ""), 64, 512, [2])
            await served.mesh.directory.put(keys.model(served.mesh.ns, MODEL), encode(broken))
            async with asyncio.timeout(5):
                while (reply := await served.chat()).status_code == 200:
                    pass
            alive = await served.http.get("/v1/models")
        assert reply.status_code == 500
        assert reply.json()["error"]["type"] == "server_error"
        assert alive.status_code == 200

    uvloop.run(body())
