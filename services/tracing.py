"""Traces: OpenTelemetry spans over OTLP, off unless an endpoint is set, and free when off.

A span carries names, ids and counts. Prompts, tokens and the text of errors, which may quote them, never
enter one: an error is known by its code.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta
from opentelemetry.context import Context, get_current
from opentelemetry.trace import Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from proto.errors import KvmeshError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

NS_PER_S = 1_000_000_000

Attribute = str | int | float | bool
TraceContext = Context
"""Where a span belongs: what `span` and `record` take as `parent`."""

_W3C = TraceContextTextMapPropagator()
_NO_SPAN: AbstractContextManager[None] = nullcontext()


class TraceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    endpoint: Annotated[
        str, Meta(description="OTLP over HTTP, such as http://host:4318/v1/traces; empty: no traces")
    ] = ""
    sample_ratio: Annotated[
        float, Meta(ge=0, le=1, description="Share of traces kept, of those that begin here")
    ] = 1.0
    export_timeout_s: Annotated[float, Meta(gt=0, description="How long one export may take")] = 2.0
    max_queued_spans: Annotated[
        int, Meta(gt=0, description="Spans that wait for export; beyond, dropped")
    ] = 2048


class Tracing:
    """Makes spans, and carries their context over the bus in W3C headers. See `open_tracing`."""

    def __init__(self, tracer: Tracer | None) -> None:
        self._tracer = tracer

    @property
    def is_on(self) -> bool:
        return self._tracer is not None

    def span(
        self, name: str, parent: TraceContext | None = None, **attributes: Attribute
    ) -> AbstractContextManager[None]:
        """A span around a body, under `parent`, else under the span that this task is in."""
        if self._tracer is None:
            return _NO_SPAN
        return _span(self._tracer, name, parent, attributes)

    def record(
        self,
        name: str,
        began_s: float,
        parent: TraceContext | None = None,
        code: str = "",
        **attributes: Attribute,
    ) -> None:
        """A span that ends now, of what no one body spans; `code` says what went wrong.

        Units: `began_s` on the monotonic clock.
        """
        if self._tracer is None:
            return
        now_ns = time.time_ns()
        start_ns = now_ns - int((time.monotonic() - began_s) * NS_PER_S)
        span = self._tracer.start_span(name, context=parent, attributes=attributes, start_time=start_ns)
        if code:
            span.set_status(Status(StatusCode.ERROR, code))
        span.end(now_ns)

    def context(self) -> TraceContext | None:
        """That of the span that this task is in, as a `parent` for later; None when off."""
        return None if self._tracer is None else get_current()

    def inject(self, headers: dict[str, str]) -> dict[str, str]:
        """
        Mutates: `headers`, which it returns: adds the context of the span that this task is in.
        """
        if self._tracer is not None:
            _W3C.inject(headers)
        return headers

    def extract(self, headers: Mapping[str, str]) -> TraceContext | None:
        """The sender's context, as a `parent` for `span`."""
        return None if self._tracer is None else _W3C.extract(headers)


@contextmanager
def _span(
    tracer: Tracer, name: str, parent: TraceContext | None, attributes: Mapping[str, Attribute]
) -> Iterator[None]:
    with tracer.start_as_current_span(
        name, context=parent, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield
        except BaseException as error:
            code = error.code if isinstance(error, KvmeshError) else type(error).__name__
            span.set_status(Status(StatusCode.ERROR, code))
            raise


@asynccontextmanager
async def open_tracing(settings: TraceSettings, kind: str, process: str) -> AsyncIterator[Tracing]:
    """Tracing for one process, a `kind` of service; what is queued at the end is sent, in a bounded time."""
    if not settings.endpoint:
        yield Tracing(None)
        return
    provider = _make_provider(settings, kind, process)
    try:
        yield Tracing(provider.get_tracer("kvmesh"))
    finally:
        await asyncio.to_thread(provider.shutdown)


def _make_provider(settings: TraceSettings, kind: str, process: str) -> "TracerProvider":
    # imported here, because a process without traces need not pay for the SDK at its start
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    provider = TracerProvider(
        resource=Resource({"service.name": f"kvmesh-{kind}", "service.instance.id": process}),
        sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(endpoint=settings.endpoint, timeout=settings.export_timeout_s)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=settings.max_queued_spans))
    return provider
