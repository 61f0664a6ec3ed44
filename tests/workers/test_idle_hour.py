"""Nothing that rests for an hour is forgotten that the next transfer needs."""

import asyncio
import re
from pathlib import Path
from typing import Any

from proto.names import new_id
from proto.roles import Role
from services.servers import Server
from tests.workers.harness import Client, Fleet, open_client, random_prompt
from tests.workers.passing_hours import heed_hours, let_an_hour_pass
from tests.workers.test_deaths import expected_tokens

COMMON: dict[str, Any] = {"num_blocks": 300, "step_tokens": 128, "push_kib": 1}
OWN_TOKENS = 17
"""What the decode worker has of a prompt before it asks: a block, which is read from there."""


async def prefill_remotely(client: Client, seed: int) -> list[int]:
    """Both verbs: a prompt whose beginning is pulled and whose rest is pushed; its tokens."""
    prompt = random_prompt(300, seed)
    await client.generate("decode", prompt[:OWN_TOKENS], max_tokens=1)
    stream = await client.generate("decode", prompt)
    assert (stream.final.prefill, stream.final.cached_tokens) == ("remote", OWN_TOKENS - 1)
    return stream.tokens


def test_the_first_transfer_after_an_idle_hour_works(
    nats_server: Server, etcd_server: Server, tiny: Path, tmp_path: Path, computing: Fleet
) -> None:
    fleet = Fleet(nats_server, etcd_server, f"test-{new_id()}", tmp_path)
    decoding: dict[str, Any] = {**COMMON, "remote_min_tokens": 24, "prefill_choice": "threshold"}

    async def run() -> None:
        await fleet.wait_ready("decode", "prefill")
        async with open_client(fleet, "tiny") as client:
            await client.wait_report("prefill", lambda report: True)
            before = await prefill_remotely(client, 1)
            for worker in fleet.workers:
                let_an_hour_pass(worker.process.pid)
            for _ in range(2):  # what was on its way in that hour is too old; the next is not
                await client.wait_report("prefill", lambda report: True)
                await client.wait_report("decode", lambda report: True)
            after = await prefill_remotely(client, 2)
            await client.wait_rest("decode", "prefill")
        assert [before, after] == await expected_tokens(computing, [random_prompt(300, n) for n in (1, 2)])
        assert all(re.search(r"the event loop was 3[5-9]\d\d", worker.log) for worker in fleet.workers)
        assert all(worker.ailments == {} for worker in fleet.workers)

    try:
        fleet.start("decode", Role.DECODE, tiny, spoil=heed_hours, **decoding)
        fleet.start("prefill", Role.PREFILL, tiny, spoil=heed_hours, **COMMON)
        asyncio.run(run())
    finally:
        fleet.close()
