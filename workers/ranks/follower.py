"""The process of a follower: it loads its share, and computes what its leader says, until the link is closed.

Its one argument is the number of the open file that its end of the link is. What it cannot do it tells, as
its last word; the leader then ends the whole worker.
"""

import logging
import queue
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from proto.errors import InternalFault, KvmeshError, to_fault
from services.environment import check_packages
from services.logs import set_up_logs
from services.niceness import yield_to_others
from services.process import EXIT_FAILED, end_now
from workers.ranks.apart import RanksApart
from workers.ranks.link import Link
from workers.ranks.messages import Allocate, Beat, Failed, Hello, LayersDone, Load, Loaded, Ready, Step
from workers.roles.proof import own_identity

if TYPE_CHECKING:
    from workers.engine.paged_decoder import PagedDecoder

BEAT_S = 0.5
EXIT_APART = 3

log = logging.getLogger(__name__)

Inbox = queue.SimpleQueue[Load | Allocate | Step | None]
Order = TypeVar("Order", Load, Allocate, Step)


def main() -> int:
    """The exit code."""
    check_packages()
    inbox: Inbox = queue.SimpleQueue()
    link = Link(socket.socket(fileno=int(sys.argv[1])), "the leader", lambda: inbox.put(None))
    link.on(Load, inbox.put)
    link.on(Allocate, inbox.put)
    link.on(Step, inbox.put)
    with link:
        try:
            link.send(Hello(own_identity()))
            _follow(link, inbox)
        except _LeaderGone:
            return 0
        except RanksApart as error:
            log.info("%s", error)
            return EXIT_APART
        except KvmeshError as error:
            with suppress(InternalFault):  # nobody is there to hear it
                link.send(Failed(to_fault(error)))
            return EXIT_FAILED


class _LeaderGone(Exception):
    """The link was closed: the end of every follower that has done nothing wrong."""


def _follow(link: Link, inbox: Inbox) -> NoReturn:
    load = _take(inbox, Load)
    set_up_logs(load.logs, "worker", f"{load.worker}/{load.rank}")
    # Only here: the leader hears of this process before torch and NIXL are imported, which takes seconds.
    from workers.ranks.exchange import open_exchange
    from workers.ranks.ordered_transfers import OrderedTransfers
    from workers.ranks.rank_loading import load_rank, make_stage

    with _beating(link):  # a thread that yields to nobody
        yield_to_others(load.niceness)
        loaded = load_rank(Path(load.folder), load.grid, load.rank, load.settings)
        found = loaded.measure()
        link.send(Loaded(found.device, found.block_bytes, found.memory.total_bytes, found.memory.free_bytes))
        pool_NIGLKPD = loaded.allocate(_take(inbox, Allocate).num_blocks)
        layout = loaded.describe(pool_NIGLKPD)
        link.send(Ready(layout))
        meeting = open_exchange(load.grid, load.rank, Path(load.rendezvous), loaded.device, load.stall_s)
        with meeting as exchange, OrderedTransfers(link, layout):
            decoder = loaded.page(make_stage(loaded, load.grid, exchange), pool_NIGLKPD)
            while True:
                _compute(link, decoder, _take(inbox, Step))


def _compute(link: Link, decoder: "PagedDecoder", step: Step) -> None:
    def on_layers(first_layer: int, num_layers: int) -> None:
        link.send(LayersDone(first_layer, num_layers))

    decoder.compute(step.chunks, on_layers if step.wants_layers else None)
    decoder.wait_for_device()


def _take(inbox: Inbox, kind: type[Order]) -> Order:
    """The next order, which the leader gives in their order."""
    order = inbox.get()
    if order is None:
        raise _LeaderGone
    if not isinstance(order, kind):
        raise InternalFault(reason=f"{type(order).__name__} came, and no {kind.__name__}")
    return order


@contextmanager
def _beating(link: Link) -> Iterator[None]:
    """The leader hears a sign of life now and then, whatever this process computes meanwhile."""
    ending = threading.Event()

    def beat() -> None:
        with suppress(InternalFault):  # the leader is gone
            while not ending.wait(BEAT_S):
                link.send(Beat())

    thread = threading.Thread(target=beat, name="beats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


if __name__ == "__main__":
    end_now(main())
