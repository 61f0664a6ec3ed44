"""The role of a worker over HTTP: asked, ordered and taken back on the admin port."""

from collections.abc import Callable

import msgspec
from starlette.requests import Request

from proto.errors import InvalidRequest
from proto.roles import DrainMode, Role, RoleProgress, SwitchRole
from services.admin import Admin, read_body
from workers.roles.role_switch import RoleSwitch

ORDERED = 202
"""The status of an order: it is placed, not yet fulfilled."""

FindSwitch = Callable[[str], RoleSwitch]
"""The switch of the worker of this name. Raises: InvalidRequest: there is none here."""


class RoleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is posted. Units: as in `SwitchRole`."""

    role: Role
    mode: DrainMode = DrainMode.MOVE
    limit_s: float = 30.0
    reason: str = ""


def add_role_pages(admin: Admin, path: str, find: FindSwitch) -> None:
    """`GET`, `POST` and `DELETE` on `path`, whose part `{worker}`, if it has one, names the worker."""

    async def show(request: Request) -> bytes:
        return _as_json(_found(request).progress())

    async def order(request: Request) -> bytes:
        body = _read(await read_body(request))
        ask = SwitchRole(body.role, body.mode, body.limit_s, reason=body.reason)
        return _as_json(await _found(request).order(ask))

    async def take_back(request: Request) -> bytes:
        return _as_json(await _found(request).take_back())

    def _found(request: Request) -> RoleSwitch:
        return find(request.path_params.get("worker", ""))

    admin.add_page(path, "GET", show)
    admin.add_page(path, "POST", order, ORDERED)
    admin.add_page(path, "DELETE", take_back)


def _read(body: bytes) -> RoleBody:
    """
    Raises:
        InvalidRequest: it is no order.
    """
    try:
        return msgspec.json.decode(body, type=RoleBody)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(field="body", reason=str(error)) from None


def _as_json(progress: RoleProgress) -> bytes:
    return msgspec.json.encode(progress)
