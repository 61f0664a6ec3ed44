"""Traces against a collector: what is sent, what never is, and nothing at all when off."""

import asyncio
import gzip
import subprocess
import sys
import threading
import time
import timeit
import tracemalloc
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from proto.errors import InvalidRequest
from services.tracing import TraceSettings, Tracing, open_tracing


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP, and keeps the spans."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CollectorHandler)
        self.spans: dict[str, Span] = {}
        self.all_spans: list[Span] = []
        self.bodies: list[bytes] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/traces"

    def keep(self, body: bytes) -> None:
        self.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.spans.update({span.name: span for span in scope.spans})
                self.all_spans.extend(scope.spans)


class CollectorHandler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.keep(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Silent: the tests read the spans."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, name="collector")
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_trace_goes_over_the_bus_from_sender_to_receiver(collector: Collector) -> None:
    async def body() -> None:
        settings = TraceSettings(endpoint=collector.endpoint)
        async with open_tracing(settings, "frontend", "f1") as sender:
            with sender.span("send", worker="w1", num_tokens=3):
                headers = sender.inject({"other": "kept"})
        async with open_tracing(settings, "worker", "w1") as receiver:
            with receiver.span("receive", parent=receiver.extract(headers)), receiver.span("inner"):
                pass
        assert set(headers) == {"other", "traceparent"}

    asyncio.run(body())
    sent, received, inner = (collector.spans[name] for name in ("send", "receive", "inner"))
    assert sent.trace_id == received.trace_id == inner.trace_id
    assert (received.parent_span_id, inner.parent_span_id) == (sent.span_id, received.span_id)
    assert {attribute.key for attribute in sent.attributes} == {"worker", "num_tokens"}
    assert any(b"kvmesh-worker" in body for body in collector.bodies)


def test_an_error_is_known_by_its_code_and_its_text_stays_out(collector: Collector) -> None:
    async def body() -> None:
        async with open_tracing(TraceSettings(endpoint=collector.endpoint), "frontend", "f1") as tracing:
            with pytest.raises(InvalidRequest), tracing.span("refused"):
                raise InvalidRequest(field="messages", reason="my secret prompt")

    asyncio.run(body())
    assert collector.spans["refused"].status.message == "invalid_request"
    assert not collector.spans["refused"].events
    assert not any(b"secret" in body for body in collector.bodies)


def test_nothing_is_made_or_sent_when_off() -> None:
    async def body() -> None:
        async with open_tracing(TraceSettings(), "frontend", "f1") as tracing:
            assert not tracing.is_on
            assert tracing.span("a", num_tokens=1) is tracing.span("b")
            with tracing.span("a"):
                assert tracing.inject({}) == {}
            assert tracing.extract({"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}) is None
            assert tracing.context() is None

    asyncio.run(body())


def test_what_is_off_costs_less_than_a_microsecond_and_keeps_nothing() -> None:
    """Against a call of an empty function with the same arguments, so that no clock is asked for a truth."""
    tracing = Tracing(None)
    headers: dict[str, str] = {}

    def traced() -> None:
        with tracing.span("a", num_tokens=1):
            tracing.inject(headers)

    def plain() -> None:
        with nullcontext():
            _nothing("a", num_tokens=1)
            _nothing("a", num_tokens=1)

    best_s = {work: min(timeit.repeat(work, number=2000, repeat=20)) for work in (traced, plain)}
    assert (best_s[traced] - best_s[plain]) / 2000 < 1e-6

    tracemalloc.start()
    traced()
    before = tracemalloc.take_snapshot()
    for _ in range(1000):
        traced()
    kept = tracemalloc.take_snapshot().compare_to(before, "filename")
    tracemalloc.stop()
    ours = ("services/tracing.py", "opentelemetry")
    grown = [line.traceback[0].filename for line in kept if line.size_diff > 0]
    assert not [name for name in grown if any(part in name for part in ours)]


def test_a_process_without_traces_does_not_load_the_sdk() -> None:
    """A tenth of a second and some MB for each process."""
    ask = (
        "import sys, frontend.service, router.service, workers.door; "
        "sys.exit(any(name.startswith('opentelemetry.sdk') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", ask], check=False).returncode == 0


def test_a_span_of_no_one_body_has_its_place_and_its_time(collector: Collector) -> None:
    async def body() -> None:
        async with open_tracing(TraceSettings(endpoint=collector.endpoint), "worker", "w1") as tracing:
            with tracing.span("accept"):
                place = tracing.context()
            tracing.record("decode", time.monotonic() - 0.5, place, num_tokens=3)
            tracing.record("push", time.monotonic(), place, "not_landed")

    asyncio.run(body())
    accept, decode, push = (collector.spans[name] for name in ("accept", "decode", "push"))
    assert decode.parent_span_id == push.parent_span_id == accept.span_id
    assert 0.5e9 <= decode.end_time_unix_nano - decode.start_time_unix_nano < 0.6e9
    assert (decode.status.message, push.status.message) == ("", "not_landed")


def _nothing(name: str, **attributes: int) -> None:
    """What an off switch cannot cost less than."""


def test_a_header_that_is_no_trace_context_is_ignored(collector: Collector) -> None:
    async def body() -> None:
        async with open_tracing(TraceSettings(endpoint=collector.endpoint), "worker", "w1") as tracing:
            with tracing.span("alone", parent=tracing.extract({"traceparent": "nonsense"})):
                pass

    asyncio.run(body())
    assert not collector.spans["alone"].parent_span_id


def test_a_collector_that_is_not_there_holds_nobody_up() -> None:
    async def body() -> None:
        settings = TraceSettings(endpoint="http://127.0.0.1:9/v1/traces", export_timeout_s=0.2)
        async with asyncio.timeout(10), open_tracing(settings, "worker", "w1") as tracing:
            assert isinstance(tracing, Tracing)
            with tracing.span("lost"):
                pass

    asyncio.run(body())
