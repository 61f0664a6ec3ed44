"""The OpenAI API: its endpoints, their routes and their documentation."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from fastapi import FastAPI, Request
from fastapi_offline import FastAPIOffline
from starlette.responses import Response

from frontend.answer import Call
from frontend.generation import Generator
from frontend.http.answer_reply import AnswerReply
from frontend.http.body_reader import BodyLimits, receive_body
from frontend.http.documentation import Shape, document
from frontend.http.error_border import Endpoint, ErrorBorder
from frontend.http.replies import json_reply, request_id
from frontend.models import ModelDirectory
from frontend.openai.answers import ChatChunk, ChatCompletion, Completion, CompletionChunk
from frontend.openai.calls import FACTS_HEADER, chat_call, completion_call
from frontend.openai.chat_body import ChatBody, Message
from frontend.openai.completion_body import CompletionBody
from frontend.openai.fields import REFUSED_OF_CHAT, REFUSED_OF_COMPLETION, REFUSED_OF_TOKENIZE
from frontend.openai.model_list import ModelListObject, ModelObject, list_json, model_json
from frontend.openai.token_answers import say_text, say_tokens
from frontend.openai.tokenizing import DetokenizeBody, DetokenizeResult, TokenizeBody, TokenizeResult

MESSAGES = {"messages": Message}
CHAT = Shape(ChatCompletion, ChatBody, ChatChunk, REFUSED_OF_CHAT, MESSAGES)
COMPLETION = Shape(Completion, CompletionBody, CompletionChunk, REFUSED_OF_COMPLETION)
TOKENIZE = Shape(TokenizeResult, TokenizeBody, refused=REFUSED_OF_TOKENIZE, items=MESSAGES)
DETOKENIZE = Shape(DetokenizeResult, DetokenizeBody)
MODELS = Shape(ModelListObject, names_model=False)
MODEL = Shape(ModelObject)

Route = tuple[str, Callable[..., Awaitable[Response]], Shape]


class OpenAiApi:
    """The endpoints. Every error of the tree leaves them through `border`."""

    def __init__(self, generator: Generator, models: ModelDirectory, limits: BodyLimits) -> None:
        self._generator = generator
        self._reader = generator.reader
        self._models = models
        self._limits = limits
        self.border = ErrorBorder(is_last=lambda: not generator.is_admitting)

    async def chat(self, request: Request) -> Response:
        """The model's next message. The answer ends with `finish_reason` `stop` or `length`."""
        return self._answer(request, chat_call(await self._read(request), wants_facts=_wants_facts(request)))

    async def complete(self, request: Request) -> Response:
        """What follows a prompt, or each of several."""
        payload = await self._read(request)
        return self._answer(request, completion_call(payload, wants_facts=_wants_facts(request)))

    async def tokenize(self, request: Request) -> Response:
        """How many tokens a prompt or a chat has, and which."""
        return json_reply(request, await say_tokens(self._reader, await self._read(request)))

    async def detokenize(self, request: Request) -> Response:
        """The text of tokens."""
        return json_reply(request, await say_text(self._reader, await self._read(request)))

    async def list_models(self, request: Request) -> Response:
        """The models that can be served now."""
        return json_reply(request, list_json(self._models.served()))

    async def show_model(self, request: Request, model: str) -> Response:
        """One model that can be served now."""
        return json_reply(request, model_json(self._models.find(model)))

    async def show_health(self, request: Request) -> Response:
        """Where tools for vLLM look: no body, and 200 while requests are taken and some model is served."""
        is_ready = self._generator.is_admitting and bool(self._models.served())
        return Response(status_code=200 if is_ready else 503)

    def posts(self) -> Sequence[Route]:
        return (
            ("/v1/chat/completions", self.chat, CHAT),
            ("/v1/completions", self.complete, COMPLETION),
            ("/tokenize", self.tokenize, TOKENIZE),
            ("/detokenize", self.detokenize, DETOKENIZE),
        )

    def direct_posts(self) -> Mapping[str, Endpoint]:
        """Those of which there are many."""
        return {"/v1/chat/completions": self.chat, "/v1/completions": self.complete}

    def gets(self) -> Sequence[Route]:
        return (
            ("/v1/models", self.list_models, MODELS),
            ("/v1/models/{model:path}", self.show_model, MODEL),
        )

    async def _read(self, request: Request) -> bytes:
        return await receive_body(request, self._limits)

    def _answer(self, request: Request, call: Call) -> Response:
        return AnswerReply(self._generator, call, request_id(request))


def make_app(api: OpenAiApi) -> FastAPI:
    """All routes of `api`."""
    app = FastAPIOffline(
        title="kvmesh",
        summary="OpenAI's API, served by a mesh",
        redirect_slashes=False,
        redoc_url=None,
        static_url="/docs/static",
    )
    for path, endpoint, shape in api.posts():
        app.add_api_route(path, endpoint, methods=["POST"], **shape.arguments())
    for path, endpoint, shape in api.gets():
        app.add_api_route(path, endpoint, methods=["GET"], **shape.arguments())
        app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False, response_model=None)
    app.add_api_route("/health", api.show_health, include_in_schema=False, response_model=None)
    api.border.guard(app)
    document(app, [shape for _, _, shape in (*api.posts(), *api.gets())])
    return app


def _wants_facts(request: Request) -> bool:
    return request.headers.get(FACTS_HEADER) == "1"
