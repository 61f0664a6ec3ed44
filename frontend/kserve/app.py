"""The routes of the protocol under `/v2`, and the border where errors take its form: `{"error": "..."}`."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from frontend.answer import Call
from frontend.generation import Generator
from frontend.http.answer_reply import AnswerReply, Dialect
from frontend.http.body_reader import BodyLimits, ClientDisconnect, receive_body
from frontend.http.replies import JSON_HEADERS, Headers, error_reply, json_reply, request_id
from frontend.kserve.forms import VERSION, GenerateForm, InferForm, choose_outputs, error_json
from frontend.kserve.metadata import model_config, model_metadata, repository_index, server_metadata
from frontend.kserve.plans import read_generate, read_infer
from frontend.models import ModelDirectory
from proto.cards import ModelCard
from proto.errors import InternalFault, InvalidRequest, KvmeshError, UnknownModel

JSON_BYTES_HEADER = "inference-header-content-length"
KSERVE = Dialect(error_json)
_NUM_BYTES = re.compile("[0-9]{1,18}")  # Python reads no number of thousands of digits
_encode = msgspec.json.Encoder().encode


class InferReply(AnswerReply):
    """An answer whose tensors may lie behind its JSON."""

    def __init__(self, generator: Generator, call: Call, request_id: str, form: InferForm) -> None:
        super().__init__(generator, call, request_id, KSERVE)
        self._form = form

    def whole_headers(self) -> Headers:
        if self._form.json_bytes is None:
            return JSON_HEADERS
        length = str(self._form.json_bytes).encode()
        return [(b"content-type", b"application/octet-stream"), (JSON_BYTES_HEADER.encode(), length)]


class KserveApi:
    """The endpoints. What they raise leaves through `_handle_errors`."""

    def __init__(self, generator: Generator, models: ModelDirectory, limits: BodyLimits) -> None:
        self._generator = generator
        self._models = models
        self._limits = limits

    async def show_server(self, request: Request) -> Response:
        return json_reply(request, _encode(server_metadata()))

    async def is_live(self, request: Request) -> Response:
        return Response(status_code=200)

    async def is_ready(self, request: Request) -> Response:
        """The protocol wants 4xx for "not ready"."""
        is_ready = self._generator.is_admitting and bool(self._models.served())
        return Response(status_code=200 if is_ready else 400)

    async def list_models(self, request: Request) -> Response:
        return json_reply(request, _encode(repository_index(self._models.served())))

    async def show_model(self, request: Request) -> Response:
        return json_reply(request, _encode(model_metadata(self._model(request))))

    async def show_config(self, request: Request) -> Response:
        return json_reply(request, _encode(model_config(self._model(request))))

    async def is_model_ready(self, request: Request) -> Response:
        self._model(request)
        return Response(status_code=200)

    async def infer(self, request: Request) -> Response:
        """A text for each element of `text_input`."""
        model = self._model(request)
        asked = read_infer(model.name, await self._read(request), _json_bytes(request))
        wishes = choose_outputs(asked.outputs, asked.is_binary)
        form = InferForm(model.name, asked.id, asked.shape, wishes)
        call = Call(asked.plan, form, streams=False)
        return InferReply(self._generator, call, request_id(request), form)

    async def generate(self, request: Request) -> Response:
        return await self._generate(request, streams=False)

    async def generate_stream(self, request: Request) -> Response:
        return await self._generate(request, streams=True)

    async def _generate(self, request: Request, *, streams: bool) -> Response:
        model = self._model(request)
        asked = read_generate(model.name, await self._read(request), streams=streams)
        call = Call(asked.plan, GenerateForm(model.name, asked.id), streams)
        return AnswerReply(self._generator, call, request_id(request), KSERVE)

    def _model(self, request: Request) -> ModelCard:
        name, asked = request.path_params["model"], request.path_params.get("version", VERSION)
        card = self._models.find(name)
        if asked != VERSION:
            raise UnknownModel(model=f"{name}, version {asked}")
        return card

    async def _read(self, request: Request) -> bytes:
        return await receive_body(request, self._limits)


def add_kserve(app: FastAPI, generator: Generator, models: ModelDirectory, limits: BodyLimits) -> None:
    """Mutates: `app`, which serves the protocol from then on."""
    api = KserveApi(generator, models, limits)
    app.add_route("/v2", api.show_server, methods=["GET"], include_in_schema=False)
    app.mount("/v2", Starlette(routes=_routes(api), exception_handlers=_handlers(generator)))


def _routes(api: KserveApi) -> list[Route]:
    """Longest first: a model's name may hold slashes."""
    routes = [
        Route("/", api.show_server),
        Route("/health/live", api.is_live),
        Route("/health/ready", api.is_ready),
        Route("/repository/index", api.list_models, methods=["POST"]),
    ]
    for model in ("/models/{model:path}/versions/{version}", "/models/{model:path}"):
        routes += [
            Route(f"{model}/ready", api.is_model_ready),
            Route(f"{model}/config", api.show_config),
            Route(f"{model}/infer", api.infer, methods=["POST"]),
            Route(f"{model}/generate", api.generate, methods=["POST"]),
            Route(f"{model}/generate_stream", api.generate_stream, methods=["POST"]),
        ]
    return [
        *routes,
        Route("/models/{model:path}/versions/{version}", api.show_model),
        Route("/models/{model:path}", api.show_model),
    ]


def _handlers(generator: Generator) -> Mapping[Any, Any]:
    async def on_fault(request: Request, error: KvmeshError) -> Response:
        return error_reply(request, error, error_json(error), closes=not generator.is_admitting)

    async def on_http_error(request: Request, error: HTTPException) -> Response:
        said = _encode({"error": f"{error.status_code} {error.detail}"})
        return json_reply(request, said, error.status_code, dict(error.headers or {}))

    async def on_client_left(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)  # nobody reads it

    async def on_bug(request: Request, error: Exception) -> Response:
        fault = InternalFault(reason="see the log")
        return error_reply(request, fault, error_json(fault), closes=True)

    return {
        KvmeshError: on_fault,
        HTTPException: on_http_error,
        ClientDisconnect: on_client_left,
        Exception: on_bug,
    }


def _json_bytes(request: Request) -> int | None:
    """Raises InvalidRequest."""
    given = request.headers.get(JSON_BYTES_HEADER)
    if given is None:
        return None
    if not _NUM_BYTES.fullmatch(given):
        raise InvalidRequest(field=JSON_BYTES_HEADER, reason="a number of bytes")
    return int(given)
