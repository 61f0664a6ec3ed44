"""Every subject on the bus: `kvmesh.{ns}.…`, one function each.

Namespaces and ids are checked where they are made (`names.check_id`); model names are escaped here.
"""

from proto.names import escape

ANY = "*"


FRONTENDS = "frontends"
"""The queue group of those that answer what any NATS client asks."""


def openai(ns: str, endpoint: str) -> str:
    """Any NATS client -> frontends (queue group): OpenAI JSON. `cancel` alone is heard by all of them."""
    return f"kvmesh.{ns}.openai.{endpoint}"


def tokens(ns: str) -> str:
    """Any NATS client that brings its own tokens -> frontends (queue group): JSON with token ids."""
    return f"kvmesh.{ns}.tokens"


def is_ours(subject: str) -> bool:
    """Whether it is the mesh's or NATS' own, so that nothing a stranger asks for is sent there."""
    return subject.startswith(("kvmesh.", "$"))


def route(ns: str, model: str) -> str:
    """Frontend -> routers (queue group), request/reply: `GenerateRequest` -> `RouteReply`."""
    return f"kvmesh.{ns}.route.{escape(model)}"


def route_any(ns: str) -> str:
    """What a router of every model subscribes to."""
    return f"kvmesh.{ns}.route.{ANY}"


def router_control(ns: str, router: str) -> str:
    return f"kvmesh.{ns}.router.{router}.control"


def choice(ns: str, model: str) -> str:
    """Routers -> routers: `Choice`."""
    return f"kvmesh.{ns}.choice.{escape(model)}"


def choice_any(ns: str) -> str:
    return f"kvmesh.{ns}.choice.{ANY}"


def worker_generate(ns: str, worker: str) -> str:
    """Router -> worker, request/reply: `RoutedRequest` -> `GenerateReply`."""
    return f"kvmesh.{ns}.worker.{worker}.generate"


def worker_control(ns: str, worker: str) -> str:
    """Anyone -> worker, request/reply: `ControlRequest` -> `ControlReply`."""
    return f"kvmesh.{ns}.worker.{worker}.control"


def stream(ns: str, client: str) -> str:
    """Workers -> one frontend: `StreamMessage`."""
    return f"kvmesh.{ns}.stream.{client}"


def kv(ns: str, worker: str) -> str:
    """Worker -> routers: `KvEvents`."""
    return f"kvmesh.{ns}.kv.{worker}"


def kv_any(ns: str) -> str:
    return f"kvmesh.{ns}.kv.{ANY}"


def beat(ns: str, process: str) -> str:
    """Every process -> all who care: `AnyBeat`."""
    return f"kvmesh.{ns}.beat.{process}"


def beat_any(ns: str) -> str:
    return f"kvmesh.{ns}.beat.{ANY}"


def prefill(ns: str, model: str) -> str:
    """Decode -> prefill, JetStream work queue: `PrefillJob`."""
    return f"kvmesh.{ns}.prefill.{escape(model)}"


def prefill_any(ns: str) -> str:
    return f"kvmesh.{ns}.prefill.{ANY}"


def prefill_stream(ns: str) -> str:
    """The name of the JetStream stream behind `prefill`."""
    return f"KVMESH_{ns}_PREFILL"


def objects_bucket(ns: str) -> str:
    """The name of the object store that holds tokenizer files."""
    return f"KVMESH_{ns}_OBJECTS"


def last_token(subject: str) -> str:
    """The id at the end of a subject such as `beat` or `kv`."""
    return subject.rpartition(".")[2]
