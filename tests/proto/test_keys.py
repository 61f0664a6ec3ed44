"""Keys stay what they are: the directory outlives every process."""

import re

from hypothesis import given
from hypothesis import strategies as st

from proto import keys

MODEL = "org/Model-1.5"


def test_keys_stay_what_they_are() -> None:
    assert {
        "root": keys.root("ns"),
        "models": keys.models("ns"),
        "model": keys.model("ns", MODEL),
        "workers": keys.workers("ns"),
        "worker": keys.worker("ns", "w1"),
        "agents": keys.agents("ns"),
        "agent": keys.agent("ns", "w1"),
        "orders": keys.orders("ns"),
        "order": keys.order("ns", "w1"),
        "orders_of": keys.orders_of("ns", MODEL),
        "frontends": keys.frontends("ns"),
        "frontend": keys.frontend("ns", "f1"),
        "routers": keys.routers("ns"),
        "router": keys.router("ns", "r1"),
        "planners": keys.planners("ns"),
        "planner": keys.planner("ns", "p1"),
    } == {
        "root": "/kvmesh/ns/",
        "models": "/kvmesh/ns/models/",
        "model": "/kvmesh/ns/models/org=2fModel-1=2e5",
        "workers": "/kvmesh/ns/workers/",
        "worker": "/kvmesh/ns/workers/w1",
        "agents": "/kvmesh/ns/agents/",
        "agent": "/kvmesh/ns/agents/w1",
        "orders": "/kvmesh/ns/orders/",
        "order": "/kvmesh/ns/orders/w1",
        "orders_of": "/kvmesh/ns/orders-of/org=2fModel-1=2e5",
        "frontends": "/kvmesh/ns/frontends/",
        "frontend": "/kvmesh/ns/frontends/f1",
        "routers": "/kvmesh/ns/routers/",
        "router": "/kvmesh/ns/routers/r1",
        "planners": "/kvmesh/ns/planners/",
        "planner": "/kvmesh/ns/planners/p1",
    }


@given(st.text(min_size=1))
def test_a_model_is_found_again_in_its_key(model: str) -> None:
    key = keys.model("ns", model)
    assert re.fullmatch(r"/kvmesh/ns/models/[A-Za-z0-9_=-]+", key)
    assert keys.model_of(key) == model


def test_the_id_at_the_end_of_a_key_is_found() -> None:
    assert keys.last_part(keys.worker("ns", "w1")) == "w1"
