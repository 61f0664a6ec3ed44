"""The one error tree, and its form on the wire.

```
KvmeshError
├── CallerFault         the caller's: never retriable, 4xx
│   ├── InvalidRequest      a field is wrong
│   ├── PromptTooLong       more tokens than the context holds
│   ├── UnknownModel        no such model
│   ├── PayloadTooLarge     more bytes than the bus or the body limit takes
│   ├── BodyTooSlow         the body of a request did not come in time
│   ├── Cancelled           somebody took the request back
│   └── InvalidSetting      a setting or command line is wrong
├── Unavailable         ours for now: retriable, 429 or 503
│   ├── NoWorker            no ready worker for this model
│   ├── NoResponder         nobody listens on a subject
│   ├── Overloaded          every queue that could take it is full
│   ├── GoElsewhere         this worker takes no such work now
│   ├── WorkerNotReady      the worker that the request names takes none now
│   ├── WorkerLost          the worker died and no other could go on
│   ├── Disconnected        bus or directory is out of reach
│   └── Conflict            somebody else changed it first
├── TransferFault       the KV plane's: retriable, the work falls back
│   ├── GrantRefused        the owner gives no blocks for this job
│   ├── PinLost             what was read may have changed meanwhile
│   ├── PeerGone            the other side's memory is out of reach
│   │   └── NothingPosted       and nothing was on its way when that was found
│   └── LayoutMismatch      two pools cannot be converted
├── DeadlineExceeded    a wait ended at its deadline, 504
└── InternalFault       a bug: 500
```

Errors carry fields; the sentence is made from them. `retriable` is a fact of the class.
On the wire an error is a `Fault`: the class's `code` and its fields.
"""

from typing import ClassVar

import msgspec

from proto.struct import WireStruct


class KvmeshError(Exception):
    """Root of the tree, never raised itself.

    Subclasses declare `code` and `fields`; the constructor takes exactly those fields, by name.
    """

    code: ClassVar[str]
    status: ClassVar[int] = 500
    retriable: ClassVar[bool] = False
    sentence: ClassVar[str] = "something went wrong"
    fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **values: str | int | float) -> None:
        if set(values) != set(self.fields):
            raise TypeError(f"{type(self).__name__} takes {self.fields}, not {tuple(values)}")
        self.values = values
        super().__init__(self.sentence.format(**values))


class CallerFault(KvmeshError):
    """The caller asked for something that cannot be; asking again changes nothing."""

    code = "caller_fault"
    status = 400


class InvalidRequest(CallerFault):
    code = "invalid_request"
    sentence = "{field}: {reason}"
    fields = ("field", "reason")


class PromptTooLong(CallerFault):
    code = "context_length_exceeded"
    sentence = (
        "the prompt has {num_tokens} tokens; this model's context holds {limit_tokens}, answer included"
    )
    fields = ("field", "num_tokens", "limit_tokens")


class UnknownModel(CallerFault):
    code = "model_not_found"
    status = 404
    sentence = "the model {model!r} does not exist"
    fields = ("model",)


class PayloadTooLarge(CallerFault):
    code = "payload_too_large"
    status = 413
    sentence = "{num_bytes} bytes are more than the limit of {limit_bytes}"
    fields = ("num_bytes", "limit_bytes")


class BodyTooSlow(CallerFault):
    code = "request_timeout"
    status = 408
    sentence = "the body of the request did not come within {limit_s} s"
    fields = ("limit_s",)


class Cancelled(CallerFault):
    code = "cancelled"
    status = 499
    sentence = "the request was cancelled"
    fields = ()


class InvalidSetting(CallerFault):
    code = "invalid_setting"
    sentence = "{setting}: {reason}"
    fields = ("setting", "reason")


class Unavailable(KvmeshError):
    """Nothing is wrong with the request; the mesh cannot take it now."""

    code = "unavailable"
    status = 503
    retriable = True


class NoWorker(Unavailable):
    code = "no_worker"
    sentence = "no worker is ready for the model {model!r}"
    fields = ("model",)


class NoResponder(Unavailable):
    code = "no_responder"
    sentence = "nobody listens on {subject}"
    fields = ("subject",)


class Overloaded(Unavailable):
    """`retry_after_s`: seconds after which another try may do better."""

    code = "overloaded"
    status = 429
    sentence = "overloaded: {reason}"
    fields = ("reason", "retry_after_s")


class GoElsewhere(Unavailable):
    code = "go_elsewhere"
    sentence = "worker {worker} takes no such work now: {reason}"
    fields = ("worker", "reason")


class WorkerNotReady(Unavailable):
    code = "worker_not_ready"
    sentence = "worker {worker}, which the request names, takes no requests now: it is {state}"
    fields = ("worker", "state")


class WorkerLost(Unavailable):
    code = "worker_lost"
    sentence = "{num_lost} workers were lost while they served this request"
    fields = ("num_lost",)


class Disconnected(Unavailable):
    code = "disconnected"
    sentence = "{peer} is out of reach"
    fields = ("peer",)


class Conflict(Unavailable):
    code = "conflict"
    status = 409
    sentence = "{key} was changed by somebody else"
    fields = ("key",)


class TransferFault(KvmeshError):
    """A movement of KV failed; the work behind it falls back to local prefill or recompute."""

    code = "transfer_fault"
    status = 503
    retriable = True


class GrantRefused(TransferFault):
    code = "grant_refused"
    sentence = "no grant for job {job}: {reason}"
    fields = ("job", "reason")


class PinLost(TransferFault):
    code = "pin_lost"
    sentence = "pin {pin} ended before the read did"
    fields = ("pin",)


class PeerGone(TransferFault):
    code = "peer_gone"
    sentence = "the memory of {peer} is out of reach: {reason}"
    fields = ("peer", "reason")


class NothingPosted(PeerGone):
    """Of what failed nothing has left: no byte of it can land, now or later."""

    code = "nothing_posted"
    sentence = "nothing was posted to {peer}: {reason}"
    fields = ("peer", "reason")


class LayoutMismatch(TransferFault):
    code = "layout_mismatch"
    retriable = False
    sentence = "KV of {source} cannot be laid into {target}: {reason}"
    fields = ("source", "target", "reason")


class DeadlineExceeded(KvmeshError):
    code = "deadline_exceeded"
    status = 504
    retriable = True
    sentence = "{what} did not end within {limit_s} s"
    fields = ("what", "limit_s")


class InternalFault(KvmeshError):
    code = "internal"
    sentence = "internal error: {reason}"
    fields = ("reason",)


class Fault(WireStruct, frozen=True):
    """An error on the wire."""

    code: str
    values: dict[str, str | int | float] = {}

    @property
    def retriable(self) -> bool:
        return error_class(self.code).retriable


def error_class(code: str) -> type[KvmeshError]:
    """The class with this code; `InternalFault` for a code of a later version."""
    return _BY_CODE.get(code, InternalFault)


def to_fault(error: KvmeshError) -> Fault:
    return Fault(error.code, dict(error.values))


def from_fault(fault: Fault) -> KvmeshError:
    """The error that `fault` stands for.

    A known code keeps its class whatever the sender's version: fields it added are dropped, fields it lacks
    are "unknown". A code of a later version becomes an `InternalFault`.
    """
    found = _BY_CODE.get(fault.code)
    if found is None:
        return InternalFault(reason=f"{fault.code} {msgspec.json.encode(fault.values).decode()}")
    return found(**{field: fault.values.get(field, "unknown") for field in found.fields})


def _subclasses(root: type[KvmeshError]) -> list[type[KvmeshError]]:
    return [found for child in root.__subclasses__() for found in (child, *_subclasses(child))]


_BY_CODE = {found.code: found for found in _subclasses(KvmeshError)}
