"""The client's file, as a stranger has it: alone, in a process that can import nats-py and nothing else."""

import asyncio
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import kvmesh_client
import uvloop

from tests.frontend.scripted_mesh import Script
from tests.frontend.side_door.conftest import ASK, Dial

PROGRAM = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
import nats
from kvmesh_client import KvmeshClient, RequestRefused

async def main():
    connection = await nats.connect(sys.argv[2])
    client = KvmeshClient(connection, sys.argv[3])
    ask = {"model": sys.argv[4], "messages": [{"role": "user", "content": "Hello"}]}
    whole = await client.chat(**ask)
    text = ""
    async for chunk in client.stream_chat(**ask):
        text += chunk["choices"][0]["delta"].get("content", "")
    assert text == whole["choices"][0]["message"]["content"]
    try:
        await client.chat(**ask, temperature=9)
    except RequestRefused as error:
        print(error.param, len(text))
    await connection.close()

asyncio.run(main())
for stranger in ("proto", "services", "frontend", "router", "workers", "msgspec"):
    try:
        __import__(stranger)
    except ImportError:
        continue
    raise SystemExit(stranger)
"""


def test_it_runs_where_only_nats_py_is(dial: Dial, tmp_path: Path) -> None:
    nats = find_spec("nats")
    assert nats is not None
    assert nats.origin is not None
    (tmp_path / "nats").symlink_to(Path(nats.origin).parent)
    (tmp_path / "kvmesh_client.py").write_bytes(Path(kvmesh_client.__file__).read_bytes())

    async def body() -> None:
        async with dial({"w0": Script(lambda _: [*range(100, 160), 2])}) as dialled:
            arguments = (str(tmp_path), dialled.nats.url, dialled.ns, str(ASK["model"]))
            command = [sys.executable, "-I", "-S", "-c", PROGRAM, *arguments]
            process = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, timeout=60, check=False
            )
        assert process.returncode == 0, process.stderr
        assert process.stdout.split()[0] == "temperature"

    uvloop.run(body())
