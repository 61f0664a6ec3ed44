"""The admin port of a process: is it alive, is it ready, what do its metrics say."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated

import msgspec
from msgspec import Meta
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.http_server import HttpAddress, serve_http
from services.metrics import Metrics

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


@asynccontextmanager
async def open_admin(settings: AdminSettings, health: Health, metrics: Metrics) -> AsyncIterator[HttpAddress]:
    """Serves `/healthz`, `/readyz` and `/metrics` for the time of the body.

    Raises:
        InvalidSetting: the port cannot be had.
    """
    app = _app(health, metrics)
    async with serve_http(app, settings.host, settings.port, setting="admin.port") as address:
        yield address


def _app(health: Health, metrics: Metrics) -> Starlette:
    async def healthz(_: Request) -> Response:
        return _verdict(health.ailments())

    async def readyz(_: Request) -> Response:
        return _verdict(health.obstacles())

    async def scrape(_: Request) -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", scrape)])


def _verdict(reasons: Mapping[str, str]) -> Response:
    body = {"status": "failing" if reasons else "ok", "reasons": dict(reasons)}
    return JSONResponse(body, status_code=503 if reasons else 200)
