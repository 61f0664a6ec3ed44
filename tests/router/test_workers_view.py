"""Who can be chosen: cards, reports and beats of each worker's present life."""

from proto.cards import KvClass, ModelCard, TextFiles, WorkerCard
from proto.reports import LoadReport
from proto.roles import Role, WorkerState
from router.lives import Lives
from router.slots import Slots
from router.workers_view import WorkersView, newest

KV = KvClass("digest", "float32", 16)
MODEL = ModelCard("m", KV, TextFiles("t"), context_tokens=4096, vocab_size=100, eos_tokens=[1])


def card(
    *,
    incarnation: str = "life-1",
    epoch: int = 1,
    role: Role = Role.DECODE,
    state: WorkerState = WorkerState.READY,
    kv_class: KvClass = KV,
) -> WorkerCard:
    return WorkerCard("w", "m", role, epoch, incarnation, state, kv_class, num_blocks=100, max_sequences=8)


def report(
    *,
    incarnation: str = "life-1",
    epoch: int = 1,
    role: Role = Role.DECODE,
    state: WorkerState = WorkerState.READY,
) -> LoadReport:
    return LoadReport("w", "m", incarnation, epoch, role, state)


class Scene:
    """A view of one worker whose beats the test turns on and off."""

    def __init__(self) -> None:
        self.alive = True
        self.lives = Lives()
        self.view = WorkersView(self.lives, Slots(), lambda _: self.alive)
        self.meet("life-1")

    def meet(self, incarnation: str) -> None:
        if self.lives.is_new("w", incarnation):
            self.lives.begin("w", incarnation, 0.0)

    def ready(self, role: Role = Role.DECODE) -> list[str]:
        """As the view says anew and, wherever it heard of a change, as it remembers."""
        ready = sorted(standing.card.worker for standing in self.view.ready(MODEL, role))
        assert self.view.roster(MODEL, role).workers == ready
        return ready

    def live(self, *, is_alive: bool) -> None:
        self.alive = is_alive
        self.view.note_liveness()


def test_a_worker_is_ready_once_its_card_and_a_report_are_known() -> None:
    scene = Scene()
    scene.view.put_card(card())
    assert scene.ready() == []
    scene.view.put_report(report())
    assert scene.ready() == ["w"]
    assert scene.ready(Role.PREFILL) == []


def test_a_silent_worker_gets_no_new_work_whatever_its_key_says() -> None:
    scene = Scene()
    scene.view.put_card(card())
    scene.view.put_report(report())
    scene.live(is_alive=False)
    assert scene.ready() == []
    assert scene.view.take_gone() == []


def test_a_vanished_key_alone_ends_nothing() -> None:
    scene = Scene()
    scene.view.put_card(card())
    scene.view.put_report(report())
    scene.view.drop_key("w")
    assert scene.view.take_gone() == []
    assert scene.ready() == ["w"]
    scene.live(is_alive=False)
    assert scene.view.take_gone() == ["w"]
    assert scene.view.standing("w") is None


def test_the_newest_word_wins_by_epoch_then_by_state() -> None:
    later = report(epoch=2, role=Role.PREFILL)
    assert newest(card(), later).role is Role.PREFILL
    assert newest(card(epoch=3), later).role is Role.DECODE
    assert newest(card(), report(state=WorkerState.DRAINING)).state is WorkerState.DRAINING
    assert newest(card(state=WorkerState.DRAINING), report()).state is WorkerState.DRAINING


def test_leaving_is_final_whatever_the_epoch() -> None:
    assert newest(card(epoch=9), report(state=WorkerState.LEAVING)).state is WorkerState.LEAVING
    assert newest(card(state=WorkerState.LEAVING), report(epoch=9)).state is WorkerState.LEAVING


def test_a_late_report_of_an_earlier_epoch_changes_nothing() -> None:
    scene = Scene()
    scene.view.put_card(card(epoch=1))
    scene.view.put_report(report(epoch=2, role=Role.PREFILL))
    scene.view.put_report(report(epoch=1))
    assert scene.ready(Role.PREFILL) == ["w"]


def test_the_words_of_a_past_life_count_for_nothing() -> None:
    scene = Scene()
    scene.view.put_card(card(epoch=7))
    scene.view.put_report(report(epoch=7))
    scene.meet("life-2")
    assert scene.ready() == []
    scene.view.put_card(card(incarnation="life-2"))
    scene.view.put_report(report(incarnation="life-2"))
    scene.meet("life-1")
    scene.view.put_report(report(epoch=7, state=WorkerState.LEAVING))
    scene.view.put_card(card(epoch=7, state=WorkerState.LEAVING))
    assert scene.ready() == ["w"]


def test_a_worker_of_another_kv_class_is_not_chosen() -> None:
    scene = Scene()
    scene.view.put_card(card(kv_class=KvClass("digest", "float32", 32)))
    scene.view.put_report(report())
    assert scene.ready() == []


def test_a_vanished_model_stays_while_a_worker_of_it_is_known() -> None:
    scene = Scene()
    scene.view.put_model(MODEL)
    scene.view.put_card(card())
    scene.view.drop_model("m")
    scene.view.drop_key("w")
    assert scene.view.take_gone() == []
    assert scene.view.model("m") == MODEL
    scene.live(is_alive=False)
    scene.view.take_gone()
    assert scene.view.model("m") is None


def test_a_vanished_model_that_nobody_serves_is_forgotten_at_once() -> None:
    scene = Scene()
    scene.view.put_model(MODEL)
    scene.view.drop_model("m")
    assert scene.view.model("m") is None
