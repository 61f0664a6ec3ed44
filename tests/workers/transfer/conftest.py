"""One pair of processes for all tests that hurt neither."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from tests.workers.transfer.scene import PeerProcess, Scene, open_scene

NUM_BLOCKS = 8


class Exchange:
    """A scene and a peer, and the loop they live on."""

    def __init__(self, runner: asyncio.Runner, scene: Scene, child: PeerProcess) -> None:
        self._runner = runner
        self._scene = scene
        self._child = child

    def run(self, body: Callable[[Scene, PeerProcess], Awaitable[None]]) -> None:
        """Runs `body` with both pools zeroed."""

        async def run() -> None:
            for block in range(NUM_BLOCKS):
                self._scene.pool.clear(block)
                self._child.clear(block)
            self._scene.moved.clear()
            await body(self._scene, self._child)

        self._runner.run(run())


@pytest.fixture(scope="session")
def exchange() -> Iterator[Exchange]:
    with asyncio.Runner() as runner:
        opened = open_scene(NUM_BLOCKS)
        scene = runner.run(opened.__aenter__())
        try:
            yield Exchange(runner, scene, runner.run(scene.start_peer()))
        finally:
            runner.run(opened.__aexit__(None, None, None))
