"""A frontend on a scripted mesh, with a tiny model's tokenizer, and OpenAI's own client before it."""

import asyncio
import hashlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from openai import AsyncOpenAI

from frontend.service import serve_frontend
from frontend.settings import FrontendSettings
from frontend.text.tokenizer import TextTokenizer, load_tokenizer
from proto.cards import ModelCard
from proto.names import new_id
from proto.requests import GenerateRequest
from services.admin import AdminSettings
from services.bus import BusSettings
from services.directory import DirectorySettings
from services.mesh_settings import MeshSettings
from services.objects import ObjectSettings
from services.servers import Server
from services.tasks import open_tasks
from tests.frontend.scripted_mesh import KV, Script, ScriptedMesh, scripted_mesh, text_files
from tests.tiny_model import CHAT_TEMPLATE, write_tiny

CONTEXT_TOKENS = 256
MODEL = "org/Tiny-1.0"


@dataclass
class Served:
    """A frontend that serves, and what stands on both its sides."""

    mesh: ScriptedMesh
    url: str
    http: httpx.AsyncClient
    openai: AsyncOpenAI
    tokenizer: TextTokenizer
    admin_url: str
    shutdown: asyncio.Event
    life: asyncio.Task[None]
    settings: FrontendSettings

    async def ready(self) -> None:
        """Returns once the model can be served."""
        async with asyncio.timeout(10):
            while MODEL not in (await self.http.get("/v1/models")).text:
                pass

    async def chat(self, **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], **fields}
        return await self.http.post("/v1/chat/completions", json=body)


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture(scope="session")
def tokenizer_json(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder: Path = tmp_path_factory.mktemp("tiny")
    write_tiny(folder, heads=2, kv_heads=1, layers=1, hidden=16)
    return (folder / "tokenizer.json").read_bytes()


@pytest.fixture
def serve(nats_server: Server, etcd_server: Server, namespace: str, tokenizer_json: bytes) -> Serve:
    """`async with serve({"w0": Script(...)}) as served:` a frontend on a mesh of scripted workers."""

    @asynccontextmanager
    async def serve(
        scripts: dict[str, Script],
        nats: Server = nats_server,
        lost_after_s: float = 8.0,
        template: str = CHAT_TEMPLATE,
        **settings: Any,
    ) -> AsyncIterator[Served]:
        files = [tokenizer_json, template.encode()]
        digests = [hashlib.sha256(data).hexdigest() for data in files]
        card = ModelCard(MODEL, KV, text_files(*digests), CONTEXT_TOKENS, 512, [2, 0])
        admin_port = find_free_port()
        chosen = FrontendSettings(
            admin=AdminSettings(port=admin_port),
            mesh=MeshSettings(ns=namespace, beat_s=0.2, lost_after_s=lost_after_s, drain_limit_s=5.0),
            bus=BusSettings(url=nats.url),
            directory=DirectorySettings(endpoints=[etcd_server.url]),
            objects=ObjectSettings(storage="memory", max_bytes=8 * 2**20),
            port=0,
            **settings,
        )
        shutdown, opened = asyncio.Event(), asyncio.get_running_loop().create_future()
        async with (
            scripted_mesh(nats, etcd_server, namespace, card, files, scripts) as mesh,
            open_tasks() as tasks,
        ):
            life = tasks.create_task(
                serve_frontend(chosen, new_id(), shutdown, opened.set_result), name="frontend"
            )
            url = await opened
            async with (
                httpx.AsyncClient(base_url=url, timeout=30) as http,
                AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30) as openai,
            ):
                admin_url = f"http://127.0.0.1:{admin_port}"
                tokenizer = load_tokenizer(tokenizer_json)
                served = Served(mesh, url, http, openai, tokenizer, admin_url, shutdown, life, chosen)
                if scripts:
                    await served.ready()
                try:
                    yield served
                finally:
                    shutdown.set()
                    await asyncio.wait({life}, timeout=10)  # in good order, also when the test has failed

    return serve


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def says(text: str, tokenizer_json: bytes) -> Callable[[GenerateRequest], list[int]]:
    """What a scripted worker answers: `text`, and the end."""
    tokens = load_tokenizer(tokenizer_json).encode(text, add_special_tokens=False)
    return lambda _: [*tokens, 2]


def text_of(chunks: Iterable[Any]) -> str:
    """What the chunks of a streamed chat say together."""
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


def check_whole(shape: type[msgspec.Struct], text: str) -> None:
    """Exactly that: what is read as `shape` and written again has lost nothing."""
    read = msgspec.json.decode(text, type=shape)
    assert json.loads(msgspec.json.encode(read)) == json.loads(text)


def events(body: str) -> list[Any]:
    """The data of a stream's events; `[DONE]` as a string."""
    lines = [line.removeprefix("data: ") for line in body.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]
