"""In which combinations: the axes of the matrix, and its cells."""

from dataclasses import dataclass
from enum import Enum
from itertools import product


class Where(Enum):
    """Who computes the KV of a prompt."""

    LOCAL = "local"
    REMOTE = "remote"


class Load(Enum):
    """Who is there at the same time. `PREEMPTED` is more at once than the pool holds."""

    ALONE = "alone"
    TOGETHER = "together"
    PREEMPTED = "preempted"


class Warmth(Enum):
    """How much of the prompt the decode worker has before it is asked."""

    COLD = "cold"
    HALF = "half"
    WARM = "warm"


class Delivery(Enum):
    """How the answer comes."""

    WHOLE = "whole"
    STREAMED = "streamed"


@dataclass(frozen=True)
class Cell:
    """One combination."""

    where: Where
    load: Load
    warmth: Warmth
    delivery: Delivery

    def __str__(self) -> str:
        return "-".join(axis.value for axis in (self.where, self.load, self.warmth, self.delivery))


def _all_cells() -> list[Cell]:
    """All but one kind: where a pool is too small nobody can say how much stays warm; half adds nothing."""
    cells = [Cell(*axes) for axes in product(Where, Load, Warmth, Delivery)]
    return [cell for cell in cells if (cell.load, cell.warmth) != (Load.PREEMPTED, Warmth.HALF)]


CELLS = _all_cells()
