"""A request on its way to a worker: choose, note, tell the other routers, offer; if refused, elsewhere."""

import asyncio
import time
from collections.abc import Collection

import msgspec

from proto.cards import ModelCard
from proto.codec import encode
from proto.control import Explained
from proto.errors import (
    DeadlineExceeded,
    Disconnected,
    GoElsewhere,
    KvmeshError,
    NoResponder,
    NoWorker,
    from_fault,
)
from proto.requests import (
    GENERATE_REPLIES,
    Choice,
    Decision,
    GenerateReply,
    GenerateRequest,
    Refused,
    Routed,
    RoutedRequest,
)
from proto.subjects import choice as choice_subject
from proto.subjects import worker_generate
from proto.tokens import count_tokens
from router.chooser import Ask, Chooser
from router.explaining import explain
from router.hashed_prompt import SLICE_BLOCKS, HashedPrompt
from router.hearing import Hearing
from router.predictions import Promise
from router.settings import RouterSettings
from router.waiting_room import Wish
from services.bus import Bus
from services.metrics import RouterMetrics


class Pending(msgspec.Struct, frozen=True, eq=False):
    """A request at this router. Units: `arrived_s`, `until_s` on this process's clock."""

    request: GenerateRequest
    model: ModelCard
    prompt: HashedPrompt
    headers: dict[str, str]
    arrived_s: float
    until_s: float

    @property
    def wish(self) -> Wish:
        return Wish(self.request.priority, self.arrived_s, self.until_s)

    @property
    def max_tokens(self) -> int:
        """Tokens still to be generated."""
        return max(1, self.request.stopping.max_tokens - count_tokens(self.request.generated))


class Reservation(msgspec.Struct, frozen=True):
    """A choice that was made and noted, and not offered yet."""

    choice: Choice
    promise: Promise


class Forwarder:
    """Belongs to one event loop. `router` is this router's incarnation, which numbers its decisions."""

    def __init__(
        self,
        router: str,
        settings: RouterSettings,
        bus: Bus,
        chooser: Chooser,
        hearing: Hearing,
        metrics: RouterMetrics,
    ) -> None:
        self._router = router
        self._settings = settings
        self._bus = bus
        self._chooser = chooser
        self._hearing = hearing
        self._metrics = metrics
        self._number = 0

    def try_reserve(self, pending: Pending, exclude: Collection[str]) -> Reservation | None:
        """Chooses a worker, and notes it at once; None while every eligible one is full.

        Raises:
            NoWorker: none is ready that is not in `exclude`.
            InvalidRequest, GoElsewhere: the worker that the request wants cannot take it.
        """
        prompt = pending.prompt
        ask = Ask(pending.max_tokens, exclude, pending.request.wanted_worker)
        chosen = self._chooser.try_choose(pending.model, prompt, ask)
        if chosen is None:
            return None
        self._number += 1
        decision = Decision(
            router=self._router,
            number=self._number,
            worker=chosen.worker,
            epoch=chosen.epoch,
            prefix_tokens=chosen.hit_tokens,
            cost_s=chosen.cost_s,
            policy=chosen.policy,
            prefill_prefixes=chosen.prefill_prefixes,
        )
        new_tokens = prompt.num_tokens - chosen.hit_tokens
        choice = Choice(decision, pending.request.request, pending.model.name, new_tokens, prompt.hashes)
        self._metrics.prompt_blocks.inc(len(prompt.keys))
        self._metrics.promised_blocks.inc(chosen.hit_tokens // prompt.block_size)
        return Reservation(choice, self._hearing.note(choice))

    def explain(self, pending: Pending, limit: int) -> Explained:
        """As `try_reserve` would choose, term by term; nothing is chosen or noted.

        Raises:
            NoWorker, InvalidRequest, GoElsewhere: as `try_reserve`.
        """
        ask = Ask(pending.max_tokens, pending.request.exclude, pending.request.wanted_worker)
        scores, chosen = self._chooser.explain(pending.model, pending.prompt, ask)
        return explain(self._router, pending.prompt, scores, chosen, limit)

    async def try_forward(self, pending: Pending, reservation: Reservation) -> Routed | None:
        """Offers the request to the reserved worker, and to others if it is refused; None when they are full.

        Who is gone or going says so at once: however many leave together, the request goes on to who stays.

        Raises:
            KvmeshError: the last refusal; at once one that others would repeat.
        """
        exclude = set(pending.request.exclude)
        num_offers = 0
        while True:
            try:
                return await self._offer(pending, reservation)
            except KvmeshError as error:
                self._metrics.not_taken(error.code)
                refusal = error
            if isinstance(refusal, NoResponder | GoElsewhere):
                self._chooser.suspect(reservation.promise.worker)
            elif not refusal.retriable or isinstance(refusal, Disconnected):
                raise refusal
            else:
                num_offers += 1
            if num_offers >= self._settings.num_offers or _has_expired(pending):
                raise refusal
            exclude.add(reservation.promise.worker)
            again = self._try_again(pending, exclude, refusal)
            if again is None:
                return None
            reservation = again

    def _try_again(self, pending: Pending, exclude: set[str], refusal: KvmeshError) -> Reservation | None:
        """As `try_reserve`; but where nobody else is left, the refusal says more than `NoWorker`."""
        try:
            return self.try_reserve(pending, exclude)
        except NoWorker:
            raise refusal from None

    async def _offer(self, pending: Pending, reservation: Reservation) -> Routed:
        """
        Raises:
            DeadlineExceeded: no answer in time. The worker may have taken it, so what it was promised stays.
            KvmeshError: it has not taken it.
        """
        worker = reservation.promise.worker
        try:
            reply = await self._ask(pending, reservation.choice)
        except DeadlineExceeded:
            self._chooser.suspect(worker)
            raise
        except KvmeshError:
            self._hearing.withdraw(reservation.promise)
            raise
        if isinstance(reply, Refused):
            self._hearing.withdraw(reservation.promise)
            raise from_fault(reply.fault)
        return Routed(reservation.choice.decision)

    async def _ask(self, pending: Pending, choice: Choice) -> GenerateReply:
        """The worker's answer. The other routers hear of it at once, before it."""
        if len(pending.prompt.keys) > SLICE_BLOCKS:  # to choose took a while, and so will the copies
            await asyncio.sleep(0)
        ns, left_s = self._settings.mesh.ns, max(0.0, pending.until_s - time.monotonic())
        request = msgspec.structs.replace(pending.request, deadline_s=left_s)
        payload = encode(RoutedRequest(request, choice.decision))
        await self._bus.publish(choice_subject(ns, choice.model), encode(choice))
        subject, limit_s = worker_generate(ns, choice.decision.worker), self._settings.offer_limit_s
        answer = await self._bus.request(subject, payload, limit_s, pending.headers)
        return GENERATE_REPLIES.decode(answer)


def _has_expired(pending: Pending) -> bool:
    return time.monotonic() >= pending.until_s
