"""The OpenAI API: routes, their documentation, and the border where every error becomes an envelope."""

import logging
import re
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.responses import Response

from frontend.generation import Generator, Plan
from frontend.http.answer_reply import AnswerReply
from frontend.http.body_reader import ClientDisconnect, read_body
from frontend.http.replies import JSON_HEADERS, REQUEST_ID_HEADER, error_headers
from frontend.models import ModelDirectory
from frontend.openai.bodies import ChatBody, CompletionBody, read_chat, read_completion
from frontend.openai.forms import AnswerForm, ChatForm, CompletionForm, make_head
from frontend.openai.model_list import list_json, model_json
from frontend.openai.plans import plan_chat, plan_completion
from proto.errors import InternalFault, KvmeshError
from proto.names import new_id
from services.faults import error_json, http_error_json

log = logging.getLogger(__name__)

FACTS_HEADER = "x-kvmesh-facts"
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class BodyLimits(msgspec.Struct, frozen=True):
    """Units: bytes, and seconds that a client may take to send them."""

    num_bytes: int
    limit_s: float


class OpenAiApi:
    """The endpoints. Every error of the tree leaves them through `_reply_error`."""

    def __init__(self, generator: Generator, models: ModelDirectory, limits: BodyLimits) -> None:
        self._generator = generator
        self._models = models
        self._limits = limits

    async def chat(self, request: Request) -> Response:
        """The model's next message. The answer ends with `finish_reason` `stop` or `length`."""
        body = read_chat(await self._read(request))
        return self._answer(request, body, plan_chat(body), ChatForm)

    async def complete(self, request: Request) -> Response:
        """What follows a prompt, or each of several."""
        body = read_completion(await self._read(request))
        return self._answer(request, body, plan_completion(body), CompletionForm)

    async def list_models(self, request: Request) -> Response:
        """The models that can be served now."""
        return _json(request, list_json(self._models.served()))

    async def show_model(self, request: Request, model: str) -> Response:
        """One model that can be served now."""
        return _json(request, model_json(self._models.find(model)))

    async def _read(self, request: Request) -> bytes:
        return await read_body(request, self._limits.num_bytes, self._limits.limit_s)

    def _answer(
        self, request: Request, body: ChatBody | CompletionBody, plan: Plan, form: type[AnswerForm]
    ) -> Response:
        options = body.stream_options
        head = make_head(
            new_id(),
            plan.model,
            shows_usage=options is not None and bool(options.include_usage),
            shows_facts=bool(body.kvmesh) or request.headers.get(FACTS_HEADER) == "1",
        )
        request_id = _request_id(request)
        return AnswerReply(self._generator, plan, form(head), request_id, streams=bool(body.stream))


def make_app(generator: Generator, models: ModelDirectory, limits: BodyLimits) -> FastAPI:
    app = FastAPI(title="kvmesh", summary="OpenAI's API, served by a mesh", redirect_slashes=False)
    api = OpenAiApi(generator, models, limits)
    for path, endpoint, body in (
        ("/v1/chat/completions", api.chat, ChatBody),
        ("/v1/completions", api.complete, CompletionBody),
    ):
        app.add_api_route(
            path, endpoint, methods=["POST"], response_model=None, openapi_extra=_body_schema(body)
        )
    app.add_api_route("/v1/models", api.list_models, methods=["GET"], response_model=None)
    app.add_api_route("/v1/models/{model:path}", api.show_model, methods=["GET"], response_model=None)
    _handle_errors(app, generator)
    _document_bodies(app)
    return app


def _body_schema(body: type[msgspec.Struct]) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{body.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _document_bodies(app: FastAPI) -> None:
    """FastAPI documents pydantic's models; ours are msgspec's."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
            _, bodies = msgspec.json.schema_components(
                [ChatBody, CompletionBody], ref_template="#/components/schemas/{name}"
            )
            schema.setdefault("components", {}).setdefault("schemas", {}).update(bodies)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _handle_errors(app: FastAPI, generator: Generator) -> None:
    async def on_fault(request: Request, error: Exception) -> Response:
        assert isinstance(error, KvmeshError)
        return _reply_error(request, error, closes=not generator.is_admitting)

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        body = http_error_json(error.status_code, str(error.detail))
        return _json(request, body, error.status_code, dict(error.headers or {}))

    async def on_client_left(request: Request, error: Exception) -> Response:
        return Response(status_code=499)  # nobody reads it

    async def on_bug(request: Request, error: Exception) -> Response:
        return _reply_error(request, InternalFault(reason="see the log"), closes=True)

    app.add_exception_handler(KvmeshError, on_fault)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(ClientDisconnect, on_client_left)
    app.add_exception_handler(Exception, on_bug)


def _request_id(request: Request) -> str:
    """The client's, if it can stand in a header and a log; else one made here."""
    given = request.headers.get(REQUEST_ID_HEADER, "")
    return given if _REQUEST_ID.fullmatch(given) else new_id()


def _reply_error(request: Request, error: KvmeshError, *, closes: bool) -> Response:
    headers = {name.decode(): value.decode() for name, value in error_headers(error, closes=closes)}
    if error.status == 413:
        headers["connection"] = "close"  # the rest of the body is still on its way
    return _json(request, error_json(error), error.status, headers)


def _json(
    request: Request, body: bytes, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    plain = {name.decode(): value.decode() for name, value in JSON_HEADERS}
    return Response(body, status, {**plain, **(headers or {}), REQUEST_ID_HEADER: _request_id(request)})
