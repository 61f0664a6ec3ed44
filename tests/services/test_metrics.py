"""Metrics: the names of the field, bound once, apart for each process."""

from prometheus_client.parser import text_string_to_metric_families

from services.metrics import FrontendMetrics, Metrics, RouterMetrics, WorkerMetrics


def _samples(metrics: Metrics) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        sample.name + "".join(f"|{value}" for value in sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_a_frontend_tells_what_clients_feel() -> None:
    metrics = Metrics("frontend", "f-1")
    frontend = FrontendMetrics(metrics)
    frontend.ttft_s.observe(0.2)
    frontend.itl_s.observe(0.004)
    frontend.itl_s.observe(0.5, 3)
    frontend.itl_s.observe(9.0)
    frontend.tokens_in.inc(7)
    frontend.tokens_out.inc(5)
    frontend.finished("stop")
    samples = _samples(metrics)
    assert samples["kvmesh_ttft_seconds_sum"] == 0.2
    assert samples["kvmesh_itl_seconds_bucket|0.005"] == 1
    assert samples["kvmesh_itl_seconds_bucket|0.0025"] == 0
    assert samples["kvmesh_itl_seconds_bucket|0.5"] == 4, "a bound is within its bucket"
    assert samples["kvmesh_itl_seconds_bucket|+Inf"] == samples["kvmesh_itl_seconds_count"] == 5
    assert samples["kvmesh_itl_seconds_sum"] == 0.004 + 3 * 0.5 + 9.0
    assert samples["kvmesh_tokens_in_total"] == 7
    assert samples["kvmesh_tokens_out_total"] == 5
    assert samples["kvmesh_requests_total|stop"] == 1


def test_a_router_tells_what_it_chose_and_promised() -> None:
    metrics = Metrics("router", "r-1")
    router = RouterMetrics(metrics)
    router.decided("sent")
    router.promised_blocks.inc(3)
    samples = _samples(metrics)
    assert samples["kvmesh_route_decisions_total|sent"] == 1
    assert samples["kvmesh_route_promised_hit_blocks_total"] == 3


def test_a_worker_tells_its_queues_blocks_and_transfers_as_they_are_when_scraped() -> None:
    metrics = Metrics("worker", "w-1")
    worker = WorkerMetrics(metrics)
    waiting = [1, 2]
    worker.observe_queues(before_prefill=lambda: len(waiting), before_decode=lambda: 1, running=lambda: 4)
    worker.observe_blocks(
        total=lambda: 10,
        free=lambda: 4,
        active=lambda: 3,
        granted=lambda: 2,
        quarantined=lambda: 1,
        cached=lambda: 2,
    )
    worker.observe_guesses(drafted=lambda: 7 * len(waiting), accepted=lambda: len(waiting))
    worker.bytes_pushed.inc(100)
    worker.bytes_pulled.inc(50)
    worker.prefix_hits.inc()
    worker.remote_prefills.inc()
    waiting.append(3)
    samples = _samples(metrics)
    assert samples["kvmesh_prefill_queue_length"] == 3
    assert samples["kvmesh_decode_queue_length"] == 1
    assert samples["kvmesh_blocks_used"] == 3
    assert samples["kvmesh_blocks"] == 10
    assert samples["kvmesh_drafted_tokens_total"] == 21
    assert samples["kvmesh_accepted_tokens_total"] == 3
    assert samples["kvmesh_kv_bytes_pushed_total"] == 100
    assert samples["kvmesh_kv_bytes_pulled_total"] == 50
    assert samples["kvmesh_prefix_hits_total"] == 1
    assert samples["kvmesh_prefills_total|remote"] == 1
    assert samples["kvmesh_prefills_total|local"] == 0


def test_two_processes_in_one_interpreter_share_nothing() -> None:
    first, second = Metrics("worker", "w-1"), Metrics("worker", "w-2")
    WorkerMetrics(first).bytes_pushed.inc()
    WorkerMetrics(second)
    assert _samples(second)["kvmesh_kv_bytes_pushed_total"] == 0


def test_the_process_itself_is_watched_when_asked() -> None:
    metrics = Metrics("router", "r-1")
    metrics.watch_process()
    assert _samples(metrics)["process_resident_memory_bytes"] > 2**20
