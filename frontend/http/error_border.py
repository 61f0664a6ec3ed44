"""The border where every error becomes OpenAI's envelope, whatever way a request has come."""

import logging
from collections.abc import Awaitable, Callable

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from frontend.http.body_reader import ClientDisconnect
from frontend.http.replies import error_reply, json_reply
from proto.errors import InternalFault, KvmeshError
from services.faults import error_json, http_error_json

log = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]


class ErrorBorder:
    """`is_last`: whether a connection shall not be used again after an error."""

    def __init__(self, is_last: Callable[[], bool]) -> None:
        self._is_last = is_last

    def guard(self, app: FastAPI) -> None:
        """Mutates: `app`, whose errors end here."""
        app.add_exception_handler(KvmeshError, self._on_fault)
        app.add_exception_handler(HTTPException, self._on_http_error)
        app.add_exception_handler(ClientDisconnect, self._on_client_left)
        app.add_exception_handler(Exception, self._on_bug)

    async def run(self, endpoint: Endpoint, request: Request) -> Response:
        """The response of `endpoint`, or that to its error."""
        try:
            return await endpoint(request)
        except KvmeshError as error:
            return await self._on_fault(request, error)
        except ClientDisconnect as error:
            return await self._on_client_left(request, error)
        except Exception as error:
            log.exception("a request failed")
            return await self._on_bug(request, error)

    async def _on_fault(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, KvmeshError)
        return error_reply(request, error, error_json(error), closes=self._is_last())

    async def _on_http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        body = http_error_json(error.status_code, str(error.detail))
        return json_reply(request, body, error.status_code, dict(error.headers or {}))

    async def _on_client_left(self, request: Request, error: Exception) -> Response:
        return Response(status_code=499)  # nobody reads it

    async def _on_bug(self, request: Request, error: Exception) -> Response:
        fault = InternalFault(reason="see the log")
        return error_reply(request, fault, error_json(fault), closes=True)
