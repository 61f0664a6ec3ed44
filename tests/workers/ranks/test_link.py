"""A link carries messages whole and in order, both ways, and says when its other end is gone."""

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from proto.errors import InternalFault
from workers.model.chunk import Chunk
from workers.ranks.link import Link
from workers.ranks.messages import Allocate, Beat, LayersDone, Step

WAIT_S = 20.0


@dataclass
class Heard:
    """What one end got."""

    steps: list[Step] = field(default_factory=list)
    layers: list[LayersDone] = field(default_factory=list)
    num_closed: int = 0
    closed: threading.Event = field(default_factory=threading.Event)

    def close(self) -> None:
        self.num_closed += 1
        self.closed.set()


def pair(leader: Heard, follower: Heard) -> tuple[Link, Link]:
    ours, theirs = socket.socketpair()
    to_follower, to_leader = Link(ours, "rank 1", leader.close), Link(theirs, "the leader", follower.close)
    to_follower.on(LayersDone, leader.layers.append)
    to_leader.on(Step, follower.steps.append)
    return to_follower, to_leader


def step(tokens: list[int]) -> Step:
    return Step([Chunk(tokens, 3, [5, 6], 1)], wants_layers=True)


def test_messages_of_any_size_come_whole_and_in_order_both_ways() -> None:
    ours, theirs = Heard(), Heard()
    to_follower, to_leader = pair(ours, theirs)
    sent = [step(list(range(size))) for size in (1, 70_000, 2, 300_000)]
    back = [LayersDone(number, 2) for number in range(5)]
    to_follower.on(Beat, lambda _: to_follower.hang_up())
    with to_follower, to_leader:
        for message in back:
            to_leader.send(message)
        for large in sent:
            to_follower.send(large)
        to_leader.send(Beat())
        assert ours.closed.wait(WAIT_S)
        assert theirs.closed.wait(WAIT_S)
    assert (theirs.steps, ours.layers) == (sent, back)


def test_threads_may_send_at_once() -> None:
    ours, theirs = Heard(), Heard()
    to_follower, to_leader = pair(ours, theirs)

    def send_twenty(number: int) -> None:
        for _ in range(20):
            to_follower.send(step([number] * 5_000))

    with to_follower, to_leader:
        senders = [threading.Thread(target=send_twenty, args=(number,)) for number in range(4)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        to_follower.hang_up()
        assert theirs.closed.wait(WAIT_S)
    assert len(theirs.steps) == 80
    assert all(len(set(each.chunks[0].tokens)) == 1 for each in theirs.steps)


def test_an_end_that_is_gone_is_told_once_and_to_every_sender() -> None:
    ours, theirs = Heard(), Heard()
    to_follower, to_leader = pair(ours, theirs)
    with to_follower:
        with to_leader:
            pass
        assert ours.closed.wait(WAIT_S)
        with pytest.raises(InternalFault, match="rank 1 has hung up"):
            to_follower.send(Beat())
    assert (ours.num_closed, theirs.num_closed) == (1, 1)


def test_a_sender_that_waits_for_a_reader_is_freed_by_hanging_up() -> None:
    ours, theirs = Heard(), Heard()
    to_follower, to_leader = pair(ours, theirs)
    begun, told, hold = threading.Event(), threading.Event(), threading.Event()

    def read_one(_: Step) -> None:
        begun.set()
        hold.wait(WAIT_S)

    def fill() -> None:
        with pytest.raises(InternalFault):
            while True:
                to_follower.send(step([7] * 50_000))
        told.set()

    to_leader.on(Step, read_one)
    with to_follower, to_leader:
        filling = threading.Thread(target=fill)
        filling.start()
        assert begun.wait(WAIT_S)
        to_follower.hang_up()
        assert told.wait(WAIT_S)
        hold.set()
        filling.join()


@pytest.mark.parametrize("spoil", [lambda end: end.sendall(b"\0\0\0\1"), lambda end: end.sendall(b"\0")])
def test_a_message_cut_short_ends_the_link_without_it(spoil: Callable[[socket.socket], None]) -> None:
    heard = Heard()
    ours, theirs = socket.socketpair()
    link = Link(ours, "rank 1", heard.close)
    link.on(Allocate, lambda _: pytest.fail("it came"))
    with link:
        spoil(theirs)
        theirs.close()
        assert heard.closed.wait(WAIT_S)
