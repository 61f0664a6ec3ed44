"""Which model a server serves, and how many token ids it has."""

import asyncio

import msgspec

from proto.errors import DeadlineExceeded, InternalFault, InvalidSetting
from services.replay.http_call import Server, call

LIMIT_S = 10.0
_MAX_LIST_BYTES = 2**24


class ServedModel(msgspec.Struct, frozen=True):
    """A model that a server lists. `vocab_size` 0: it does not say."""

    id: str
    vocab_size: int = 0


class _ModelList(msgspec.Struct):
    data: list[ServedModel]


async def find_model(server: Server, name: str) -> ServedModel:
    """The model called `name`, or with an empty name the first one.

    Raises:
        InvalidSetting: it is not served there.
        NoResponder, Disconnected, DeadlineExceeded, InternalFault: there is no OpenAI API.
    """
    models = await _list_models(server)
    found = next((model for model in models if name in ("", model.id)), None)
    if found is None:
        served = ", ".join(model.id for model in models) or "no model"
        raise InvalidSetting(setting="--model", reason=f"{server.host}:{server.port} serves {served}")
    return found


async def _list_models(server: Server) -> list[ServedModel]:
    body = bytearray()
    peer = f"{server.host}:{server.port}"

    def on_body(status: int, data: bytes) -> None:
        body.extend(data)
        if status != 200 or len(body) > _MAX_LIST_BYTES:
            raise InternalFault(reason=f"{peer} lists no models (status {status})")

    try:
        async with asyncio.timeout(LIMIT_S):
            await call(server, server.request("GET", "/v1/models"), on_body)
        return msgspec.json.decode(body, type=_ModelList).data
    except TimeoutError as error:
        raise DeadlineExceeded(what=f"the list of models of {peer}", limit_s=LIMIT_S) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InternalFault(reason=f"{peer} lists no models: {error}") from error
