"""A worker as the others see it: what it says of itself, and whether it may leave its role."""

from collections.abc import Callable

from proto.roles import Order, SwitchRole
from services.directory import Directory
from services.orders import (
    IsLost,
    PlacedOrder,
    begin_order,
    bump_orders,
    give_up_order,
    place_order,
    take_back,
)
from workers.registration import Registration
from workers.roles.term import Term


class Standing:
    """Made once the worker is registered.

    Args:
        on_news: has those hear of the term who hear beats.
        is_lost: tells who beats no more, so that no model is left to it alone.

    Raises, from every call:
        Disconnected, DeadlineExceeded: the directory is out of reach. What was to be announced will be.
    """

    def __init__(
        self,
        term: Term,
        registration: Registration,
        directory: Directory,
        ns: str,
        on_news: Callable[[], None],
        is_lost: IsLost,
    ) -> None:
        self._term = term
        self._registration = registration
        self._directory = directory
        self._ns = ns
        self._on_news = on_news
        self._is_lost = is_lost

    async def announce(self) -> None:
        """All hear of the term as it is now."""
        self._on_news()
        await self._registration.publish(self._term)

    async def check_may_drain(self) -> None:
        """Its card says that it drains. Raises as `bump_orders`."""
        card = self._registration.card(self._term)
        await bump_orders(self._directory, self._ns, card, self._is_lost)

    async def place(self, ask: SwitchRole) -> Order:
        """As `place_order`."""
        return await place_order(
            self._directory,
            self._ns,
            self._term.worker,
            ask.role,
            mode=ask.mode,
            limit_s=ask.limit_s,
            placed_by=ask.placed_by,
            reason=ask.reason,
            is_lost=self._is_lost,
        )

    async def take_back(self) -> None:
        """As `services.orders.take_back`."""
        await take_back(self._directory, self._ns, self._term.worker)

    async def begin(self, placed: PlacedOrder) -> PlacedOrder:
        """As `begin_order`."""
        card = self._registration.card(self._term)
        return await begin_order(self._directory, self._ns, placed, card, self._is_lost)

    async def give_up(self, placed: PlacedOrder) -> None:
        """As `give_up_order`."""
        await give_up_order(self._directory, self._ns, placed, self._registration.card(self._term))
