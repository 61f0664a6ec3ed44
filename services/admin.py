"""The admin port of a process: is it alive, is it ready, what do its metrics say; and pages of its own."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated

import msgspec
from msgspec import Meta
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from proto.errors import InternalFault, KvmeshError, PayloadTooLarge
from services.faults import error_json, http_error_json, retry_after_s
from services.http_server import HttpServer, serve_http
from services.metrics import Metrics

MAX_BODY_BYTES = 65_536

log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[bytes]]
"""What a page answers, as JSON. A `KvmeshError` is answered as the error that it is."""
Check = Callable[[], str]
"""Why something is not well, in a few words; empty when it is. Cheap: reads what is known and asks nobody."""


class AdminSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where health and metrics are served."""

    host: Annotated[str, Meta(description="address that the admin port listens on")] = "127.0.0.1"
    port: Annotated[int, Meta(description="the admin port; 0: a free one", ge=0, le=65535)] = 0


class Health:
    """What must hold for a process to be alive (else it should be restarted), and to be ready (else spared).

    Checks may be added at any time by who owns what they look at. Not alive is not ready either, and nor is a
    process before `note_started`: its checks may not all be there yet.
    """

    def __init__(self) -> None:
        self._live: dict[str, Check] = {}
        self._ready: dict[str, Check] = {"start": lambda: "it is starting"}

    def note_started(self) -> None:
        """Everything is open, and every check has been added."""
        self._ready.pop("start", None)

    def require_to_live(self, name: str, check: Check) -> None:
        self._live[name] = check

    def require_to_be_ready(self, name: str, check: Check) -> None:
        self._ready[name] = check

    def ailments(self) -> dict[str, str]:
        """Why the process is not alive, by the names of checks; empty when it is."""
        return _failing(self._live)

    def obstacles(self) -> dict[str, str]:
        """Why it is not ready; empty when it is."""
        return _failing(self._live | self._ready)


def _failing(checks: Mapping[str, Check]) -> dict[str, str]:
    reasons = {name: check() for name, check in checks.items()}
    return {name: reason for name, reason in reasons.items() if reason}


class Admin:
    """The open port of a process, which may add pages at any time. See `open_admin`."""

    def __init__(self, app: Starlette, server: HttpServer) -> None:
        self._app = app
        self.url = server.url

    def add_page(self, path: str, method: str, handler: Handler, status: int = 200) -> None:
        """`handler` answers `method` on `path`, in which `{name}` stands for a part of it."""

        async def answer(request: Request) -> Response:
            try:
                return Response(await handler(request), status, media_type="application/json")
            except KvmeshError as error:
                return _refusal(error)
            except Exception as error:  # the border: one bad page must not end the process
                log.exception("a page could not be answered")
                return _refusal(InternalFault(reason=type(error).__name__))

        self._app.router.routes.append(Route(path, answer, methods=[method]))


async def read_body(request: Request) -> bytes:
    """
    Raises:
        PayloadTooLarge: more than any page takes.
    """
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise PayloadTooLarge(num_bytes=len(body), limit_bytes=MAX_BODY_BYTES)
    return body


def _refusal(error: KvmeshError) -> Response:
    wait_s = retry_after_s(error)
    headers = {} if wait_s is None else {"retry-after": str(wait_s)}
    return Response(error_json(error), error.status, headers, "application/json")


@asynccontextmanager
async def open_admin(settings: AdminSettings, health: Health, metrics: Metrics) -> AsyncIterator[Admin]:
    """Serves `/healthz`, `/readyz`, `/metrics` and what is added, for the time of the body.

    Raises:
        InvalidSetting: the port cannot be had.
    """
    app = _app(health, metrics)
    async with serve_http(app, settings.host, settings.port, setting="admin.port") as server:
        yield Admin(app, server)


def _app(health: Health, metrics: Metrics) -> Starlette:
    async def healthz(_: Request) -> Response:
        return _verdict(health.ailments())

    async def readyz(_: Request) -> Response:
        return _verdict(health.obstacles())

    async def scrape(_: Request) -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    async def refuse(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        body = http_error_json(error.status_code, error.detail)
        return Response(body, error.status_code, error.headers, "application/json")

    routes = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", scrape)]
    return Starlette(routes=routes, exception_handlers={HTTPException: refuse})


def _verdict(reasons: Mapping[str, str]) -> Response:
    body = {"status": "failing" if reasons else "ok", "reasons": dict(reasons)}
    return JSONResponse(body, status_code=503 if reasons else 200)
