"""What is left of a push when its computation ends, as the workers' own traces say it."""

import asyncio
import statistics
import threading
from contextlib import ExitStack
from pathlib import Path

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from proto.names import new_id
from proto.roles import Role
from services.servers import start_etcd, start_nats
from services.tracing import TraceSettings
from tests.services.test_tracing import Collector
from tests.workers.harness import Fleet, open_client, random_prompt

NUM_PROMPTS = 5
PROMPT_TOKENS = 2048
FLUSH_S = 20.0
NS_PER_MS = 1e6


async def measure_tails(folder: Path, model: Path) -> dict[str, object]:
    """Medians over prompts that one worker prefills for another: the share of bytes that had landed when the
    last layer was computed, and the time from then to the first token."""
    with ExitStack() as stack:
        nats, etcd = start_nats(folder / "nats"), start_etcd(folder / "etcd")
        stack.callback(nats.stop)
        stack.callback(etcd.stop)
        collector = stack.enter_context(Collector())
        threading.Thread(target=collector.serve_forever, name="collector").start()
        stack.callback(collector.shutdown)
        fleet = Fleet(nats, etcd, f"perf-{new_id()}", folder)
        stack.callback(fleet.close)
        tracing = TraceSettings(endpoint=collector.endpoint)
        fleet.start(
            "decode", Role.DECODE, model, remote_min_tokens=128, prefill_choice="threshold", tracing=tracing
        )
        fleet.start("prefill", Role.PREFILL, model, tracing=tracing)
        await fleet.wait_ready("decode", "prefill")
        await _run_prompts(fleet, model.name)
        for worker in fleet.workers:
            worker.process.terminate()  # what is queued of traces is sent at the end
            await asyncio.to_thread(worker.process.wait, FLUSH_S)
        return _read(collector.all_spans)


async def _run_prompts(fleet: Fleet, model: str) -> None:
    async with open_client(fleet, model) as client:
        await client.wait_report("prefill", lambda report: report.num_jobs == 0)
        for seed in range(NUM_PROMPTS):
            stream = await client.begin("decode", random_prompt(PROMPT_TOKENS, seed), max_tokens=2)
            end = await client.finish(stream, limit_s=120.0)
            assert end.prefill == "remote", "the prompt was not prefilled by the other worker"


def _read(spans: list[Span]) -> dict[str, object]:
    pushes, tails, decodes = (_named(spans, name) for name in ("push", "push tail", "decode"))
    assert len(pushes) == len(tails) == len(decodes) == NUM_PROMPTS
    shares = [
        1 - _number(tail, "num_bytes") / _number(push, "num_bytes")
        for push, tail in zip(pushes, tails, strict=True)
    ]
    waits_ms = [
        (decode.start_time_unix_nano - tail.start_time_unix_nano) / NS_PER_MS
        for decode, tail in zip(decodes, tails, strict=True)
    ]
    print(f"landed when computed: {[round(share, 3) for share in shares]}")
    print(f"ms from then to the first token: {[round(wait_ms, 1) for wait_ms in waits_ms]}")
    return {
        "landed_share_at_compute_end": round(statistics.median(shares), 4),
        "tail_ms": round(statistics.median(waits_ms), 2),
    }


def _named(spans: list[Span], name: str) -> list[Span]:
    return sorted((span for span in spans if span.name == name), key=lambda span: span.start_time_unix_nano)


def _number(span: Span, name: str) -> int:
    return next(int(each.value.int_value) for each in span.attributes if each.key == name)
