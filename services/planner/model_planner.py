"""One model's planner: at each look it decides, orders, and follows what it ordered to its end.

```
          begin                     the worker reports the new epoch
 nothing ───────► a move is on its way ───────► done
                     │    │      └─ the order is gone, it took too long ─► failed
                     │    └─ the worker is gone ─► lost
                     └─ take_back ─► the order is gone ─► taken back
```
What another planner ordered before this one led is followed likewise.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from proto.errors import InvalidRequest, KvmeshError
from proto.reports import LoadReport
from proto.roles import Order
from services.directory import Directory, Guard
from services.orders import place_order, take_back
from services.planner.explanation import explain
from services.planner.metrics import Outcome, PlannerMetrics
from services.planner.observation import PLANNER
from services.planner.picture import Move, Picture
from services.planner.planning import Decision, Planning

GRACE_S = 10.0
"""After a worker's own limit it is given so long to say how the move ended."""

log = logging.getLogger(__name__)


class Following(msgspec.Struct):
    """A move on its way. `was_seen`: in the directory. Units: seconds on the owner's clock."""

    move: Move
    epoch: int
    began_s: float
    was_seen: bool
    is_taken_back: bool = False


class ModelPlanner:
    """Belongs to one event loop; `look` is called one at a time."""

    def __init__(
        self,
        model: str,
        ns: str,
        planning: Planning,
        directory: Directory,
        metrics: PlannerMetrics,
        let_go_s: float,
    ) -> None:
        self._model = model
        self._ns = ns
        self._planning = planning
        self._directory = directory
        self._metrics = metrics
        self._let_go_s = let_go_s
        self._following: Following | None = None
        self._thought: Move | None = None

    def unseen(self) -> Order | None:
        """What was ordered and is not heard of from the directory yet."""
        following = self._following
        if following is None or following.was_seen:
            return None
        return Order(following.move.worker, following.move.to, following.epoch, placed_by=PLANNER)

    def show(self, picture: Picture) -> None:
        """Tells metrics what is seen and wanted, whoever leads."""
        self._metrics.show_picture(self._model, picture)
        self._metrics.show_plan(
            self._model, self._planning.best_split(picture), self._planning.wanted(picture)
        )

    def stand_by(self) -> None:
        """Somebody else leads, and follows what is on its way."""
        self._following = None

    def follow(
        self, orders: Mapping[str, Order], reports: Mapping[str, LoadReport], picture: Picture, now_s: float
    ) -> bool:
        """Takes in how the move on its way goes; whether it has ended. Another planner's is taken on."""
        following = self._following
        if following is None:
            self._following = self._adopted(orders, picture, now_s)
            return False
        move, report = following.move, reports.get(following.move.worker)
        order = orders.get(move.worker)
        is_standing = order is not None and order.epoch == following.epoch
        following.was_seen = following.was_seen or is_standing
        if report is None:
            self._end(following, "lost", now_s)
        elif report.epoch >= following.epoch:
            self._end(following, "done" if report.role is move.to else "failed", now_s)
        elif following.was_seen and not is_standing:
            self._end(following, "taken_back" if following.is_taken_back else "failed", now_s)
        elif now_s > following.began_s + self._let_go_s + GRACE_S:
            self._end(following, "failed", now_s)
        return self._following is None

    def _adopted(self, orders: Mapping[str, Order], picture: Picture, now_s: float) -> Following | None:
        for way in picture.under_way:
            if way.is_ours and way.move.worker in orders:
                epoch = orders[way.move.worker].epoch
                fields = {"model": self._model, "worker": way.move.worker, "to": way.move.to}
                log.info("a move of an earlier planner is followed", extra=fields)
                return Following(way.move, epoch, began_s=now_s, was_seen=True)
        return None

    def _end(self, following: Following, outcome: Outcome, now_s: float) -> None:
        self._following = None
        move, took_s = following.move, now_s - following.began_s
        if outcome == "done":
            self._planning.note_done(move, now_s)
        elif outcome == "taken_back":
            self._planning.note_taken_back(now_s)
        else:
            self._planning.note_failed(move, now_s)
        self._metrics.moved(self._model, move, outcome, took_s)
        fields = {"model": self._model, "worker": move.worker, "to": move.to, "took_s": round(took_s, 3)}
        log.info("a move has ended: %s", outcome, extra=fields)

    async def act(self, picture: Picture, lead: Callable[[], Awaitable[Guard]], now_s: float) -> None:
        """Decides and orders. `lead` is asked right before an order: the condition to place it under."""
        decision = self._planning.decide(picture, now_s)
        following = self._following
        if decision.action == "begin" and decision.move is not None and following is None:
            log.info(
                "a move begins: %s", decision.reason, extra=self._explain(decision.move, decision, picture)
            )
            await self._begin(decision.move, decision.reason, lead, now_s)
        elif decision.action == "take_back" and following is not None and not following.is_taken_back:
            await self._take_back(following, decision, picture)

    def think(self, picture: Picture, now_s: float) -> None:
        """Decides and says so, as in a dry run: each thought once, for as long as it stays the same."""
        decision = self._planning.decide(picture, now_s)
        thought = decision.move if decision.action == "begin" else None
        if thought is not None and (self._thought is None or self._thought.to is not thought.to):
            self._metrics.moved(self._model, thought, "dry_run", 0.0)
            log.info("a dry run: %s", decision.reason, extra=self._explain(thought, decision, picture))
        if thought is not None or decision.action == "hold":
            self._thought = thought

    async def _begin(
        self, move: Move, reason: str, lead: Callable[[], Awaitable[Guard]], now_s: float
    ) -> None:
        """An order that was not placed is an end like others."""
        try:
            order = await self._order(move, reason, await lead())
        except KvmeshError as error:
            log.warning("not ordered: %s", error, extra={"model": self._model, "worker": move.worker})
            self._planning.note_failed(move, now_s)
            self._metrics.moved(self._model, move, "refused", 0.0)
        else:
            self._following = Following(move, order.epoch, now_s, was_seen=False)

    async def _order(self, move: Move, reason: str, lead: Guard) -> Order:
        return await place_order(
            self._directory,
            self._ns,
            move.worker,
            move.to,
            limit_s=self._let_go_s,
            placed_by=PLANNER,
            reason=reason,
            only_if=[lead],
        )

    async def _take_back(self, following: Following, decision: Decision, picture: Picture) -> None:
        terms = self._explain(following.move, decision, picture)
        try:
            await take_back(self._directory, self._ns, following.move.worker)
        except InvalidRequest as error:
            log.info("too late to take back: %s", error, extra=terms)
        except KvmeshError as error:
            log.warning("not taken back: %s", error, extra=terms)
            return
        else:
            log.info("a move is taken back: %s", decision.reason, extra=terms)
        following.is_taken_back = True

    def _explain(self, move: Move, decision: Decision, picture: Picture) -> dict[str, str | int | float]:
        best = self._planning.best_split(picture)
        return {"model": self._model, **explain(move, decision, picture, best)}
