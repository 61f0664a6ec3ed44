"""What a worker carries, as the router counts it, from the choice to the end of a long answer."""

from proto.cards import KvClass, WorkerCard
from proto.codec import encode
from proto.keys import worker as worker_key
from proto.reports import LoadReport
from proto.requests import Choice, Decision
from proto.roles import Role, WorkerState
from router.event_feed import EventFeed, FeedRules
from router.hearing import Hearing
from router.hit_metrics import HitMetrics
from router.kv_index import KvIndex
from router.lives import Lives
from router.predictions import Predictions
from router.slots import Slots
from router.workers_view import WorkersView
from services.directory import Changed, Entry
from services.metrics import Metrics, RouterMetrics

PROMISE_TTL_S = 10.0
CARD = WorkerCard(
    "w", "m", Role.DECODE, 1, "life", WorkerState.READY, KvClass("digest", "float32", 16), 1000, 8
)


class Scene:
    """A router's ears, at a time of the test's own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.number = 0
        lives, slots, metrics = Lives(), Slots(), Metrics("router", "r")
        index = KvIndex(slots)
        self.view = WorkersView(lives, slots, lambda _: True)
        self.predictions = Predictions(PROMISE_TTL_S, 100, slots)
        feed = EventFeed(index, FeedRules(grace_s=0.1, pause_s=2.0, max_held=8))
        hits = HitMetrics(metrics, RouterMetrics(metrics))
        self.hearing = Hearing(
            "r", slots, lives, self.view, index, feed, self.predictions, hits, clock=lambda: self.now_s
        )
        self.hearing.hear_workers(Changed(Entry(worker_key("ns", "w"), encode(CARD), 1)))
        self.report(running=0)

    def choose(self) -> None:
        self.number += 1
        self.hearing.note(Choice(Decision("r", self.number, "w", 1, 0), "request", "m", new_tokens=160))

    def report(self, running: int, included: int = 0) -> None:
        report = LoadReport(
            "w",
            "m",
            "life",
            1,
            Role.DECODE,
            WorkerState.READY,
            num_running=running,
            decisions={"r": included},
        )
        self.hearing.hear_beat("w", report)

    @property
    def num_sequences(self) -> int:
        standing = self.view.standing("w")
        assert standing is not None
        return standing.report.num_running + self.predictions.load_of("w").num_sequences


def test_a_request_that_runs_for_ten_minutes_counts_once_until_its_end() -> None:
    scene = Scene()
    scene.choose()
    assert scene.num_sequences == 1
    for second in range(600):
        scene.now_s = float(second)
        scene.report(running=1, included=1)
        assert scene.num_sequences == 1
    scene.report(running=0, included=1)
    assert scene.num_sequences == 0
    assert scene.predictions.load_of("w").new_tokens == 0


def test_a_choice_that_its_worker_never_saw_counts_for_a_bounded_time() -> None:
    scene = Scene()
    scene.choose()
    scene.now_s = PROMISE_TTL_S - 1.0
    scene.report(running=0)
    assert scene.num_sequences == 1
    scene.now_s = PROMISE_TTL_S + 1.0
    scene.report(running=0)
    assert scene.num_sequences == 0


def test_load_is_right_whatever_the_order_of_choices_reports_and_ends() -> None:
    scene = Scene()
    for _ in range(5):
        scene.choose()
    scene.report(running=3, included=3)
    assert scene.num_sequences == 5
    scene.report(running=1, included=5)
    assert scene.num_sequences == 1
    scene.choose()
    assert scene.num_sequences == 2
    scene.report(running=0, included=6)
    assert scene.num_sequences == 0
