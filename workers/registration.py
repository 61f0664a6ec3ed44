"""What a worker puts into the directory: the model's card, its own, and the way to its memory."""

import logging
import time

import msgspec

from proto import keys, subjects
from proto.cards import AgentCard, KvClass, ModelCard, TextFiles, WorkerCard
from proto.codec import decode, encode
from proto.errors import Conflict, InvalidSetting
from services.bus import open_bus
from services.directory import Directory
from services.lease import LeaseKeeper
from services.models.folder import ModelFolder
from services.objects import Objects, open_objects
from workers.roles.term import Term
from workers.settings import WorkerSettings

log = logging.getLogger(__name__)


async def publish_model(
    settings: WorkerSettings, process: str, directory: Directory, folder: ModelFolder, kv_class: KvClass
) -> ModelCard:
    """The model's card, as the directory has it; the first worker puts it there, with the files it names.

    A card that nobody serves any more gives way. Files go over a connection of their own, so that nothing of
    `process` waits behind them.

    Raises:
        InvalidSetting: other workers serve this model with KV, text or parsers that differ.
    """
    ns = settings.mesh.ns
    async with open_bus(settings.bus, f"{process}-bulk") as bulk:
        objects = await open_objects(bulk, settings.objects, subjects.objects_bucket(ns))
        ours = await _card(objects, settings, folder, kv_class)
        return await _publish(directory, ns, ours)


async def _publish(directory: Directory, ns: str, ours: ModelCard) -> ModelCard:
    key = keys.model(ns, ours.name)
    while True:
        entry = await directory.get(key)
        if entry is None:
            if await directory.create(key, encode(ours)):
                return ours
            continue
        theirs = decode(entry.value, ModelCard)
        try:
            check_alike(ours, theirs)
            return theirs
        except InvalidSetting:
            if await _is_served(directory, ns, ours.name):
                raise
        try:
            await directory.swap(key, encode(ours), entry.revision)
        except Conflict:
            continue
        log.info("the model's card was replaced", extra={"model": ours.name})
        return ours


async def _card(
    objects: Objects, settings: WorkerSettings, folder: ModelFolder, kv_class: KvClass
) -> ModelCard:
    tokenizer = await objects.put_if_absent(folder.tokenizer_path.read_bytes())
    template = await objects.put_if_absent(folder.chat_template.encode()) if folder.chat_template else ""
    return ModelCard(
        name=folder.name,
        kv_class=kv_class,
        text=TextFiles(tokenizer, template, folder.bos_token, folder.eos_token),
        context_tokens=folder.context_tokens,
        vocab_size=folder.vocab_size,
        eos_tokens=folder.eos_tokens,
        created_s=int(time.time()),
        tool_parser=settings.tool_parser,
        reasoning_parser=settings.reasoning_parser,
    )


def check_alike(ours: ModelCard, theirs: ModelCard) -> None:
    """
    Raises:
        InvalidSetting: workers with these two cards must not serve one model together.
    """
    for field in ("block_size", "dtype", "weights_digest"):
        _check_equal(ours.name, field, getattr(ours.kv_class, field), getattr(theirs.kv_class, field))
    for field in ("context_tokens", "tool_parser", "reasoning_parser"):
        _check_equal(ours.name, field, getattr(ours, field), getattr(theirs, field))
    for field in ("tokenizer", "chat_template", "bos_token", "eos_token"):
        _check_equal(ours.name, field, getattr(ours.text, field), getattr(theirs.text, field))


def _check_equal(model: str, field: str, mine: str | int, other: str | int) -> None:
    if mine != other:
        reason = f"the workers that serve {model!r} have {field} {other!r}, not {mine!r}"
        raise InvalidSetting(setting="worker.model", reason=reason)


async def _is_served(directory: Directory, ns: str, model: str) -> bool:
    entries = await directory.list(keys.workers(ns))
    return any(decode(entry.value, WorkerCard).model == model for entry in entries)


class Registration:
    """This worker's own keys. They live by `lease`: they vanish with it, and come back after any outage."""

    def __init__(self, lease: LeaseKeeper, ns: str, card: WorkerCard, agent: AgentCard) -> None:
        self._lease = lease
        self._ns = ns
        self._card = card
        self._agent = agent

    async def publish_agent(self) -> None:
        """Before the card: whoever is chosen can be reached."""
        await self._lease.own(keys.agent(self._ns, self._card.worker), encode(self._agent))

    async def publish(self, term: Term) -> None:
        """The card as the term has it now."""
        await self._lease.own(keys.worker(self._ns, self._card.worker), encode(self.card(term)))

    def card(self, term: Term) -> WorkerCard:
        return msgspec.structs.replace(
            self._card, role=term.role, epoch=term.epoch, state=term.state, change=term.change
        )

    async def withdraw(self) -> None:
        """No new work. The way to the memory stays until the process ends."""
        await self._lease.disown(keys.worker(self._ns, self._card.worker))
