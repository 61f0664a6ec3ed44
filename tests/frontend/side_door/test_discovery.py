"""The side door as a service in NATS' micro-service convention, read by the client's own types of it."""

import json
from typing import Any

import uvloop
from nats.aio.client import Client
from nats.micro.service import ServiceInfo, ServicePing, ServiceStats

from tests.frontend.scripted_mesh import Script
from tests.frontend.side_door.conftest import ASK, Dial, Dialled, refused

ANSWER = [*range(100, 130), 2]


async def asked(connection: Client, subject: str, ns: str) -> dict[str, Any]:
    """What this namespace's frontend answers: others may share the server."""
    inbox = connection.new_inbox()
    subscription = await connection.subscribe(inbox)
    await connection.publish(subject, b"", reply=inbox)
    while True:
        said: dict[str, Any] = json.loads((await subscription.next_msg(timeout=15)).data)
        if said["metadata"].get("ns") == ns:
            return said


async def by_every_name(dialled: Dialled, verb: str, instance: str) -> dict[str, Any]:
    names = ("", ".kvmesh", f".kvmesh.{instance}")
    said = [await asked(dialled.connection, f"$SRV.{verb}{name}", dialled.ns) for name in names]
    assert said[0] == said[1] == said[2]
    return said[0]


def test_it_is_found_told_and_measured_as_any_micro_service(dial: Dial) -> None:
    async def body() -> None:
        async with dial({"w0": Script(lambda _: ANSWER)}) as dialled:
            ping = ServicePing.from_dict(await asked(dialled.connection, "$SRV.PING", dialled.ns))
            info = ServiceInfo.from_dict(await by_every_name(dialled, "INFO", ping.id))
            await dialled.client.chat(**ASK)
            await refused(dialled.client, temperature=9)
            said = await by_every_name(dialled, "STATS", ping.id)
        assert ping.name == info.name == "kvmesh"
        endpoints = {endpoint.name: endpoint for endpoint in info.endpoints}
        assert endpoints["chat"].subject == dialled.subject("chat")
        assert endpoints["chat"].queue_group == endpoints["models"].queue_group == "frontends"
        assert endpoints["cancel"].queue_group == ""
        stats = {e.name: e for e in ServiceStats.from_dict(said).endpoints}
        assert (stats["chat"].num_requests, stats["chat"].num_errors) == (2, 1)
        assert stats["chat"].last_error == "invalid_request"
        assert stats["chat"].processing_time >= stats["chat"].average_processing_time > 0
        assert stats["completions"].num_requests == 0
        assert stats["chat"].data == {}

    uvloop.run(body())
