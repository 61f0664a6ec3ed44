"""Every key in the directory: `/kvmesh/{ns}/…`, one function each; for what lies there see `cards`."""

from proto.names import escape, unescape


def root(ns: str) -> str:
    return f"/kvmesh/{ns}/"


def models(ns: str) -> str:
    return f"/kvmesh/{ns}/models/"


def model(ns: str, name: str) -> str:
    """No lease: `ModelCard`."""
    return models(ns) + escape(name)


def workers(ns: str) -> str:
    return f"/kvmesh/{ns}/workers/"


def worker(ns: str, name: str) -> str:
    """Leased: `WorkerCard`."""
    return workers(ns) + name


def agents(ns: str) -> str:
    return f"/kvmesh/{ns}/agents/"


def agent(ns: str, worker_id: str) -> str:
    """Leased: `AgentCard`."""
    return agents(ns) + worker_id


def orders(ns: str) -> str:
    return f"/kvmesh/{ns}/orders/"


def order(ns: str, worker_id: str) -> str:
    """No lease: `Order`."""
    return orders(ns) + worker_id


def orders_of(ns: str, model_name: str) -> str:
    """No lease: a decimal counter that every order and drain of this model bumps."""
    return f"/kvmesh/{ns}/orders-of/{escape(model_name)}"


def frontends(ns: str) -> str:
    return f"/kvmesh/{ns}/frontends/"


def frontend(ns: str, name: str) -> str:
    """Leased: `Presence`."""
    return frontends(ns) + name


def routers(ns: str) -> str:
    return f"/kvmesh/{ns}/routers/"


def router(ns: str, name: str) -> str:
    """Leased: `Presence`."""
    return routers(ns) + name


def planners(ns: str) -> str:
    return f"/kvmesh/{ns}/planners/"


def planner(ns: str, name: str) -> str:
    """Leased: `Presence`. The one that is there longest gives orders."""
    return planners(ns) + name


def last_part(key: str) -> str:
    """The id at the end of a key."""
    return key.rpartition("/")[2]


def model_of(key: str) -> str:
    """The model name at the end of a `model` key."""
    return unescape(last_part(key))
