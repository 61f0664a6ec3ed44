"""`kvmesh route` against a real router: text and token ids, the table and the JSON, and what is refused."""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace
from rich.console import Console

from proto import keys, subjects
from proto.codec import encode
from proto.control import Explained
from proto.errors import InvalidRequest, InvalidSetting, UnknownModel
from proto.tokens import unpack_tokens
from services.objects import ObjectSettings, open_objects
from services.route.route_settings import RouteSettings
from services.route.show import show_route
from tests.router.scene import Mesh, Play
from tests.router.scripted_worker import MODEL, prompt_of

TOKENIZER = {
    "version": "1.0",
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1, "b": 2}, "unk_token": "[UNK]"},
    "pre_tokenizer": {"type": "Whitespace"},
}


async def show(mesh: Mesh, **fields: object) -> str:
    output = io.StringIO()
    settings = RouteSettings(
        nats=mesh.settings.bus.url, etcd=mesh.settings.directory.endpoints[0], ns=mesh.ns
    )
    await show_route(replace(settings, **fields), Console(file=output, width=120), asyncio.Event())
    return output.getvalue()


def test_every_worker_is_a_line_and_the_holder_is_chosen(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        holder = await mesh.worker("w0")
        await mesh.worker("w1")
        await mesh.router()
        prompt = prompt_of(7, 640)
        await holder.store(prompt)
        await mesh.bus.flush(1.0)
        tokens = unpack_tokens(prompt)
        choice, header, first, second = (await show(mesh, tokens=tokens, explain=True)).splitlines()
        assert choice.startswith("640 tokens go to w0 (kv, by router ")
        assert header.split()[:4] == ["worker", "verdict", "hit", "load"]
        assert first.split()[:3] == ["w0", "chosen", "639"]
        assert second.split()[:3] == ["w1", "eligible", "0"]
        assert len((await show(mesh, tokens=tokens)).splitlines()) == 1
        told = json.loads(await show(mesh, tokens=tokens, json=True, worker_id="w1"))
        assert set(told) == {*Explained.__struct_fields__, "type"}
        assert told["worker"] == "w1"
        assert holder.offered == 0

    play(scene)


def test_text_is_tokenised_as_the_model_says(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        objects = await open_objects(mesh.bus, ObjectSettings(), subjects.objects_bucket(mesh.ns))
        digest = await objects.put_if_absent(json.dumps(TOKENIZER).encode())
        card = replace(MODEL, text=replace(MODEL.text, tokenizer=digest))
        await mesh.directory.put(keys.model(mesh.ns, MODEL.name), encode(card))
        await mesh.worker("w0")
        await mesh.router()
        assert (await show(mesh, prompt="a b a")).startswith("3 tokens go to w0")

    play(scene)


Ask = Callable[[Mesh], Awaitable[object]]


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (show, InvalidSetting),
        (lambda mesh: show(mesh, tokens=[1], prompt="a"), InvalidSetting),
        (lambda mesh: show(mesh, tokens=[1], model="no/such"), UnknownModel),
        (lambda mesh: show(mesh, tokens=[1], worker_id="w9"), InvalidRequest),
    ],
)
def test_what_cannot_be_asked_is_refused(play: Play, ask: Ask, error: type[Exception]) -> None:
    async def scene(mesh: Mesh) -> None:
        await mesh.worker("w0")
        await mesh.router()
        with pytest.raises(error):
            await ask(mesh)

    play(scene)
