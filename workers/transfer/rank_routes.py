"""Which rank of one worker writes which layers and heads to which rank of another.

```
source, TP2: a rank holds half the heads        target, PP2: a rank holds half the layers

  rank 0, heads 0-1 ──── layers 0-2 ────► rank 0 ◄──── layers 0-2 ──── rank 1, heads 2-3
            └─────────── layers 3-5 ────► rank 1 ◄──── layers 3-5 ───────────┘
```

Ranks may hold the same: where ranks outnumber KV heads, several hold the same head. Each rank of the target
is then written to by one of them alone, and they share the targets out among them.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from proto.layout import HeadRange, LayerRange, PoolLayout, parts_of_pools

MAX_PAIRS_OF_WORKERS: Final = 256
"""As many routes from worker to worker are remembered."""


class RankRoute(NamedTuple):
    """What goes from rank `source` of one worker to rank `target` of another: these heads of these layers."""

    source: int
    target: int
    layers: LayerRange
    heads: HeadRange


@lru_cache(MAX_PAIRS_OF_WORKERS)
def plan_routes(sources: tuple[PoolLayout, ...], targets: tuple[PoolLayout, ...]) -> tuple[RankRoute, ...]:
    """The routes between two workers, given by the pools of their ranks, in the order of the ranks.

    Pure: both workers find the same. Each layer and head that a rank of the target holds comes to that rank
    by exactly one route, if a rank of the source holds it; `check_convertible` says whether one does. Two
    ranks may have more than one route between them, none of which shares a layer and head with another.
    """
    load = [0] * len(sources)
    routes: list[RankRoute] = []
    for number, target in enumerate(targets):
        routes += _routes_to(number, target, sources, load)
    return tuple(routes)


def _routes_to(
    number: int, target: PoolLayout, sources: Sequence[PoolLayout], load: list[int]
) -> list[RankRoute]:
    """Of those that hold a part, one that has to send least so far.

    Mutates: `load`, how many heads of layers each rank has to send.
    """
    found: list[RankRoute] = []
    for layers, heads in parts_of_pools((target, *sources)):
        holders = [rank for rank, pool in enumerate(sources) if pool.holds(layers, heads)]
        if not holders or not target.holds(layers, heads):
            continue
        source = min(holders, key=load.__getitem__)
        load[source] += layers.num_layers * heads.num_heads
        found.append(RankRoute(source, number, layers, heads))
    return _join_layers(_join_heads(found))


def _join_heads(routes: list[RankRoute]) -> list[RankRoute]:
    """Those of neighbouring heads of the same layers become one."""
    found: list[RankRoute] = []
    for route in sorted(routes, key=lambda route: (route.source, route.layers, route.heads)):
        last = found[-1] if found else route
        if (last.source, last.layers, last.heads.end) == (route.source, route.layers, route.heads.first):
            heads = HeadRange(last.heads.first, last.heads.num_heads + route.heads.num_heads)
            found[-1] = last._replace(heads=heads)
        else:
            found.append(route)
    return found


def _join_layers(routes: list[RankRoute]) -> list[RankRoute]:
    """Those of neighbouring layers with the same heads become one."""
    found: list[RankRoute] = []
    for route in sorted(routes, key=lambda route: (route.source, route.heads, route.layers)):
        last = found[-1] if found else route
        if (last.source, last.heads, last.layers.end) == (route.source, route.heads, route.layers.first):
            layers = LayerRange(last.layers.first, last.layers.num_layers + route.layers.num_layers)
            found[-1] = last._replace(layers=layers)
        else:
            found.append(route)
    return found
