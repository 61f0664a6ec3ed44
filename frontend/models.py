"""What can be served now: cards from the directory, signs of life and tokenizer files from the bus."""

import asyncio
import logging
from typing import TypeVar

import msgspec

from frontend.parsing.speech import Speech, find_speech
from frontend.text.chat_template import ChatTemplate, compile_chat_template
from frontend.text.tokenizer import TextTokenizer, load_tokenizer
from proto import keys
from proto.cards import ModelCard, TextFiles, WorkerCard
from proto.codec import decode
from proto.errors import InternalFault, InvalidRequest, InvalidSetting, NoWorker, UnknownModel
from proto.reports import AnyBeat, LoadReport
from proto.roles import Role, WorkerState, newness
from services.directory import Changed, Directory, Entry, Listed, Removed
from services.liveness import Liveness
from services.objects import Objects
from services.tasks import open_tasks

log = logging.getLogger(__name__)

_Card = TypeVar("_Card")


class ModelText(msgspec.Struct, frozen=True):
    """What turns a model's text into tokens and back; no template for a model without one."""

    tokenizer: TextTokenizer
    template: ChatTemplate | None
    speech: Speech


class _TextKey(msgspec.Struct, frozen=True):
    """All of a card that its text is made of."""

    files: TextFiles
    tool_parser: str
    reasoning_parser: str


class ServedModel(msgspec.Struct, frozen=True):
    card: ModelCard
    text: ModelText


class ModelDirectory:
    """Belongs to one event loop. `follow` keeps it true."""

    def __init__(
        self,
        directory: Directory,
        objects: Objects,
        liveness: Liveness[AnyBeat],
        ns: str,
        files_limit_s: float,
        kept_bytes: int,
        max_kept: int,
    ) -> None:
        self._directory = directory
        self._objects = objects
        self._liveness = liveness
        self._ns = ns
        self._has_served = asyncio.Event()
        self._files_limit_s = files_limit_s
        self._kept_bytes = kept_bytes
        self._max_kept = max_kept
        self._cards: dict[str, ModelCard] = {}
        self._workers: dict[str, WorkerCard] = {}
        self._listed: set[str] = set()
        self._listed_models: set[str] = set()
        self._texts: dict[_TextKey, ModelText] = {}
        self._reading: dict[_TextKey, asyncio.Lock] = {}

    async def follow(self) -> None:
        """Without end."""
        self._liveness.on_change(self._apply_life)
        async with open_tasks() as tasks:
            tasks.create_task(self._follow_models(), name="models")
            tasks.create_task(self._follow_workers(), name="workers")

    @property
    def num_kept_bytes(self) -> int:
        """What the tokenizers of all models keep of chats."""
        return sum(text.tokenizer.num_kept_bytes for text in self._texts.values())

    def find(self, name: str) -> ModelCard:
        """The card of a model that a request may be sent to.

        Raises:
            UnknownModel: no card, and no worker.
            NoWorker: nobody serves it now, or no model is known yet.
        """
        card = self._cards.get(name)
        if card is None:
            raise UnknownModel(model=name) if self._cards else NoWorker(model=name)
        if not self._is_served(name):
            raise NoWorker(model=name)
        return card

    def served(self) -> list[ModelCard]:
        """By name: the models with a decode worker that takes work."""
        return [card for name, card in sorted(self._cards.items()) if self._is_served(name)]

    async def wait_served(self) -> None:
        """Returns once a model can be served, or could be at some time before."""
        await self._has_served.wait()

    async def load(self, card: ModelCard) -> ServedModel:
        """The card with its tokenizer and template, which are read once and kept.

        Raises:
            DeadlineExceeded, Disconnected: the object store does not give the files in time.
            InternalFault: what it gives is no tokenizer, or no template.
        """
        key = _TextKey(card.text, card.tool_parser, card.reasoning_parser)
        if key not in self._texts:
            async with self._reading.setdefault(key, asyncio.Lock()):
                try:
                    if key not in self._texts:
                        self._keep(key, await self._read_text(key))
                finally:
                    self._reading.pop(key, None)
        return ServedModel(card, self._texts[key])

    def _keep(self, key: _TextKey, text: ModelText) -> None:
        while len(self._texts) >= self._max_kept:
            del self._texts[next(iter(self._texts))]
        self._texts[key] = text

    async def _read_text(self, key: _TextKey) -> ModelText:
        files = key.files
        try:
            tokenizer_json = await self._objects.get(files.tokenizer, self._files_limit_s)
            source = b""
            if files.chat_template:
                source = await self._objects.get(files.chat_template, self._files_limit_s)
            return await asyncio.to_thread(_build_text, tokenizer_json, source, key, self._kept_bytes)
        except (InvalidRequest, InvalidSetting, UnicodeDecodeError) as error:
            raise InternalFault(reason=f"the model's text files: {error}") from error

    def _is_served(self, model: str) -> bool:
        return any(card.model == model and self._takes_work(card) for card in self._workers.values())

    def _takes_work(self, card: WorkerCard) -> bool:
        if not self._liveness.is_alive(card.worker):
            return False
        role, state = _newest(card, self._liveness.last(card.worker))
        return role is Role.DECODE and state is WorkerState.READY

    def _apply_life(self, process: str, is_alive: bool) -> None:
        if is_alive:
            self._note_served()
        else:
            self._forget_gone()

    def _note_served(self) -> None:
        if not self._has_served.is_set() and self.served():
            self._has_served.set()

    def _forget_gone(self) -> None:
        """A vanished key alone ends nothing: a worker is forgotten once its beats have ended too.

        And a model once no worker of it is known.
        """
        self._workers = {
            worker: card
            for worker, card in self._workers.items()
            if worker in self._listed or self._liveness.is_alive(worker)
        }
        kept = self._listed_models | {card.model for card in self._workers.values()}
        self._cards = {name: card for name, card in self._cards.items() if name in kept}
        self._note_served()

    async def _follow_models(self) -> None:
        async with self._directory.watch(keys.models(self._ns)) as changes:
            async for change in changes:
                match change:
                    case Listed(entries=entries):
                        self._listed_models.clear()
                        self._learn_models(entries)
                    case Changed(entry=entry):
                        self._learn_models([entry])
                    case Removed(key=key):
                        self._listed_models.discard(keys.model_of(key))
                self._forget_gone()

    def _learn_models(self, entries: list[Entry]) -> None:
        for card in _read_all(entries, ModelCard):
            self._cards[card.name] = card
            self._listed_models.add(card.name)

    async def _follow_workers(self) -> None:
        async with self._directory.watch(keys.workers(self._ns)) as changes:
            async for change in changes:
                match change:
                    case Listed(entries=entries):
                        self._listed = {keys.last_part(entry.key) for entry in entries}
                        self._workers |= {card.worker: card for card in _read_all(entries, WorkerCard)}
                    case Changed(entry=entry):
                        self._listed.add(keys.last_part(entry.key))
                        self._workers |= {card.worker: card for card in _read_all([entry], WorkerCard)}
                    case Removed(key=key):
                        self._listed.discard(keys.last_part(key))
                self._forget_gone()


def _newest(card: WorkerCard, report: AnyBeat | None) -> tuple[Role, WorkerState]:
    """What the newer of the two says."""
    if not isinstance(report, LoadReport) or report.incarnation != card.incarnation:
        return card.role, card.state
    words: list[WorkerCard | LoadReport] = [card, report]
    newest = max(words, key=lambda word: newness(word.epoch, word.change, word.state))
    return newest.role, newest.state


def _read_all(entries: list[Entry], kind: type[_Card]) -> list[_Card]:
    """The cards that can be read; one of a later version that cannot is as good as none."""
    cards = []
    for entry in entries:
        try:
            cards.append(decode(entry.value, kind))
        except InvalidRequest as error:
            log.warning("a card cannot be read: %s", error, extra={"key": entry.key})
    return cards


def _build_text(tokenizer_json: bytes, template_source: bytes, key: _TextKey, kept_bytes: int) -> ModelText:
    """Takes up to a second: not on the event loop."""
    special = {"bos_token": key.files.bos_token, "eos_token": key.files.eos_token}
    source = template_source.decode()
    template = compile_chat_template(source, special) if source else None
    tokenizer = load_tokenizer(tokenizer_json, kept_bytes)
    speech = find_speech(key.tool_parser, key.reasoning_parser, source, tokenizer.special_token)
    return ModelText(tokenizer, template, speech)
