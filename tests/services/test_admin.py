"""The admin port: health with its reasons, readiness, metrics, and the real port."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from proto.errors import InvalidSetting, Overloaded
from services.admin import MAX_BODY_BYTES, AdminSettings, Health, open_admin, read_body
from services.http_server import serve_http
from services.metrics import Metrics


@asynccontextmanager
async def _admin(health: Health, metrics: Metrics) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        open_admin(AdminSettings(), health, metrics) as address,
        httpx.AsyncClient(base_url=address.url) as client,
    ):
        yield client


def test_health_follows_its_checks_and_says_why_it_fails() -> None:
    async def body() -> None:
        health, reasons = Health(), {"etcd": "", "engine": ""}
        health.require_to_be_ready("directory", lambda: reasons["etcd"])
        health.require_to_live("engine", lambda: reasons["engine"])
        async with _admin(health, Metrics("router", "r-1")) as client:
            assert (await client.get("/readyz")).json()["reasons"] == {"start": "it is starting"}
            health.note_started()
            for path in ("/healthz", "/readyz"):
                answer = await client.get(path)
                assert (answer.status_code, answer.json()) == (200, {"status": "ok", "reasons": {}})
            reasons["etcd"] = "out of reach"
            assert (await client.get("/healthz")).status_code == 200
            answer = await client.get("/readyz")
            assert answer.status_code == 503
            assert answer.json() == {"status": "failing", "reasons": {"directory": "out of reach"}}
            reasons["engine"] = "no step for 20 s"
            answer = await client.get("/healthz")
            assert answer.status_code == 503
            assert answer.json()["reasons"] == {"engine": "no step for 20 s"}
            assert set((await client.get("/readyz")).json()["reasons"]) == {"directory", "engine"}

    asyncio.run(body())


def test_a_process_adds_pages_whose_errors_are_answered_as_what_they_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def echo(request: Request) -> bytes:
        if request.path_params["name"] == "bug":
            raise ZeroDivisionError
        if request.path_params["name"] == "full":
            raise Overloaded(reason="full", retry_after_s=7)
        return await read_body(request)

    async def body() -> None:
        async with (
            open_admin(AdminSettings(), Health(), Metrics("router", "r-1")) as admin,
            httpx.AsyncClient(base_url=admin.url) as client,
        ):
            assert (await client.post("/echo/it")).status_code == 404
            admin.add_page("/echo/{name}", "POST", echo, 202)
            answer = await client.post("/echo/it", content=b"[1]")
            assert (answer.status_code, answer.json()) == (202, [1])
            answers = [await client.post(f"/echo/{name}") for name in ("full", "bug")]
            answers.append(await client.post("/echo/it", content=bytes(MAX_BODY_BYTES + 1)))
            answers.append(await client.get("/echo/it"))
        assert [answer.status_code for answer in answers] == [429, 500, 413, 405]
        assert [answer.json()["error"]["code"] for answer in answers] == [
            "overloaded",
            "internal",
            "payload_too_large",
            "method_not_allowed",
        ]
        assert answers[0].headers["retry-after"] == "7"

    asyncio.run(body())
    assert "a page could not be answered" in caplog.text


def test_metrics_are_served_as_prometheus_reads_them() -> None:
    async def body() -> None:
        metrics = Metrics("router", "r-1")
        metrics.counter("things_total", "things").inc(3)
        async with _admin(Health(), metrics) as client:
            answer = await client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        assert "kvmesh_things_total 3.0" in answer.text
        assert 'kvmesh_process_info{kind="router",process="r-1"} 1.0' in answer.text

    asyncio.run(body())


def test_a_taken_port_is_a_wrong_setting() -> None:
    async def body(port: int) -> None:
        with pytest.raises(InvalidSetting, match=r"admin\.port: .*in use"):
            async with open_admin(AdminSettings(port=port), Health(), Metrics("router", "r-1")):
                pass

    with socket.create_server(("127.0.0.1", 0)) as taken:
        asyncio.run(body(taken.getsockname()[1]))


def test_a_server_leaves_signals_to_its_process() -> None:
    async def body() -> None:
        before = signal.getsignal(signal.SIGTERM)
        async with _admin(Health(), Metrics("router", "r-1")) as client:
            assert (await client.get("/healthz")).status_code == 200
            assert signal.getsignal(signal.SIGTERM) is before

    asyncio.run(body())


def test_a_closing_server_lets_an_open_request_end_and_takes_no_new_one() -> None:
    async def body() -> None:
        arrived, go_on = asyncio.Event(), asyncio.Event()

        async def slow(_: Request) -> Response:
            arrived.set()
            await go_on.wait()
            return PlainTextResponse("whole")

        app = Starlette(routes=[Route("/slow", slow)])
        async with httpx.AsyncClient() as client, asyncio.TaskGroup() as tasks:
            async with serve_http(app, "127.0.0.1", 0, setting="http.port", drain_limit_s=5) as address:
                asked = tasks.create_task(client.get(f"{address.url}/slow"), name="slow request")
                await arrived.wait()
                asyncio.get_running_loop().call_later(0.2, go_on.set)
            assert (await asked).text == "whole"
            with pytest.raises(httpx.ConnectError):
                await client.get(f"{address.url}/slow")

    asyncio.run(body())
