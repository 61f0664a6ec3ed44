"""How the two workers of a pair are divided over ranks, and by which way KV goes between them."""

from typing import NamedTuple

from proto.cards import Strategy
from workers.ranks.grid import Grid

ONE, TP2, PP2, TP2_PP2, TP8 = Grid(), Grid(tp=2), Grid(pp=2), Grid(tp=2, pp=2), Grid(tp=8)
"""Of a model with 4 KV heads, of which eight slices hold each twice."""


class Pairing(NamedTuple):
    """A prefill worker and a decode worker."""

    prefill: Grid
    decode: Grid
    strategy: Strategy = "direct"


PAIRINGS = {
    "TP2 to PP2": Pairing(TP2, PP2),
    "one to TP2": Pairing(ONE, TP2),
    "PP2 to one": Pairing(PP2, ONE),
    "TP2 to one": Pairing(TP2, ONE),
    "TP2xPP2 to one": Pairing(TP2_PP2, ONE),
    "each head twice to one": Pairing(TP8, ONE),
    "one to each head twice": Pairing(ONE, TP8),
    "one to one by way of the host": Pairing(ONE, ONE, "host"),
    "one to TP2 by way of the host": Pairing(ONE, TP2, "host"),
    "TP2 to PP2 by way of the host": Pairing(TP2, PP2, "host"),
}
