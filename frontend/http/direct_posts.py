"""The endpoints whose answers are generated, served beneath FastAPI, which documents them and has the rest.

FastAPI's own way to an endpoint, through nine layers and an injector of parameters that these do not take,
costs as much as all else that is done for a request before it is tokenised.
"""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from frontend.http.error_border import Endpoint, ErrorBorder


class DirectPosts:
    """An ASGI application: a POST of one of `endpoints`, by path, goes there, and anything else to `app`."""

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, Endpoint], border: ErrorBorder) -> None:
        self._app = app
        self._endpoints = endpoints
        self._border = border

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = None
        if scope["type"] == "http" and scope["method"] == "POST":
            endpoint = self._endpoints.get(scope["path"])
        if endpoint is None:
            await self._app(scope, receive, send)
            return
        response = await self._border.run(endpoint, Request(scope, receive))
        await response(scope, receive, send)
