"""KV of another kind: refused when its worker comes, with what differs, and not when one waits for it."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from proto.names import new_id
from proto.roles import Role
from services.process import EXIT_WRONG_SETTING
from tests.tiny_model import write_tiny
from tests.workers.harness import START_S, Fleet, Worker, until
from workers.model.int8_projection import has_dot_products


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"dtype": "bfloat16"}, r"dtype 'float32', not 'bfloat16'"),
        pytest.param(
            {"weights": "int8"},
            r"weights_digest '(\w+)', not '\1-int8'",
            marks=pytest.mark.skipif(not has_dot_products(), reason="no 8-bit dot products"),
        ),
    ],
    ids=str,
)
def test_a_second_worker_of_a_model_in_other_numbers_ends_with_both_named(
    computing: Fleet, tiny: Path, fields: dict[str, Any], said: str
) -> None:
    worker = computing.start(f"w-{new_id()}", Role.DECODE, tiny, num_blocks=8, **fields)
    assert worker.process.wait(START_S) == EXIT_WRONG_SETTING
    assert re.search(f"the workers that serve 'tiny' have {said}", worker.log)


def test_two_whose_kv_cannot_move_say_so_when_they_first_hear_of_each_other(
    computing: Fleet, tmp_path: Path
) -> None:
    """They serve two models, so that both may be there."""
    model = write_tiny(tmp_path / f"other-{new_id()}")
    newcomer = computing.start(f"w-{new_id()}", Role.DECODE, model, dtype="bfloat16", num_blocks=8)

    async def run() -> None:
        await computing.wait_ready(newcomer.name)
        for worker, other in ((computing.worker("local"), newcomer.name), (newcomer, "local")):

            async def has_said(worker: Worker = worker, other: str = other) -> bool:
                said = [line for line in worker.log.splitlines() if f"no KV moves to or from {other}" in line]
                return any("float32" in line and "bfloat16" in line for line in said)

            await until(f"{worker.name} tells of {other}", has_said)

    try:
        asyncio.run(run())
    finally:
        newcomer.process.kill()
