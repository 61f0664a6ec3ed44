"""The question to a router: finds the model, its tokenizer and a router, and asks."""

from tokenizers import Tokenizer

from proto import keys, subjects
from proto.cards import ModelCard
from proto.codec import decode, encode
from proto.control import CONTROL_REPLIES, Explained, ExplainRoute
from proto.errors import InternalFault, InvalidSetting, NoResponder, UnknownModel, from_fault
from proto.names import new_id
from proto.requests import GenerateRequest, Refused, Sampling, Stopping
from proto.tokens import pack_tokens
from services.bus import Bus
from services.directory import Directory
from services.objects import ObjectSettings, open_objects
from services.route.route_settings import RouteSettings


async def ask_route(settings: RouteSettings, bus: Bus, directory: Directory, ns: str) -> Explained:
    """
    Raises:
        InvalidSetting: no prompt, or no model, was named.
        UnknownModel: there is none of this name.
        NoResponder: there is no router.
        KvmeshError: the router's refusal, or no answer in time.
    """
    model = await _find_model(settings, directory, ns)
    request = GenerateRequest(
        request=new_id(),
        attempt=0,
        model=model.name,
        client="kvmesh-route",
        prompt=pack_tokens(await _tokens_of(settings, model, bus, ns)),
        sampling=Sampling(),
        stopping=Stopping(settings.max_tokens),
        deadline_s=settings.limit_s,
        salt=settings.salt,
        wanted_worker=settings.worker_id,
    )
    subject = subjects.router_control(ns, await _find_router(directory, ns))
    answer = await bus.request(subject, encode(ExplainRoute(request, settings.limit)), settings.limit_s)
    reply = CONTROL_REPLIES.decode(answer)
    if isinstance(reply, Refused):
        raise from_fault(reply.fault)
    if not isinstance(reply, Explained):
        raise InternalFault(reason=f"a router answered ExplainRoute with {type(reply).__name__}")
    return reply


async def _find_model(settings: RouteSettings, directory: Directory, ns: str) -> ModelCard:
    cards = [decode(entry.value, ModelCard) for entry in await directory.list(keys.models(ns))]
    if not settings.model:
        if len(cards) != 1:
            names = ", ".join(sorted(card.name for card in cards)) or "none"
            raise InvalidSetting(setting="route.model", reason=f"name one of the models there are: {names}")
        return cards[0]
    for card in cards:
        if card.name == settings.model:
            return card
    raise UnknownModel(model=settings.model)


async def _find_router(directory: Directory, ns: str) -> str:
    entries = await directory.list(keys.routers(ns))
    if not entries:
        raise NoResponder(subject="routers")
    return keys.last_part(entries[0].key)


async def _tokens_of(settings: RouteSettings, model: ModelCard, bus: Bus, ns: str) -> list[int]:
    """The prompt's token ids; text becomes those that a completion's prompt has."""
    if bool(settings.prompt) == bool(settings.tokens):
        raise InvalidSetting(setting="route.prompt", reason="give a prompt as text or as token ids")
    if settings.tokens:
        return settings.tokens
    objects = await open_objects(bus, ObjectSettings(), subjects.objects_bucket(ns))
    tokenizer = Tokenizer.from_buffer(await objects.get(model.text.tokenizer, settings.limit_s))
    ids: list[int] = tokenizer.encode(settings.prompt).ids
    return ids
