"""Workers that leave together: however many, a request finds who stays, and nobody asks them twice."""

from proto.errors import GoElsewhere, Overloaded
from tests.router.scene import Mesh, Play
from tests.router.scripted_worker import ScriptedWorker, prompt_of

NUM_LEAVING = 7  # more than a request is offered to, of workers that stay
PROMPT = prompt_of(7, 640)


async def start_leavers(mesh: Mesh) -> list[ScriptedWorker]:
    """They hold the prompt, and their reports say `ready` still."""
    leavers = [await mesh.worker(f"leaver-{number}") for number in range(NUM_LEAVING)]
    for worker in leavers:
        worker.refusal = GoElsewhere(worker=worker.name, reason="it is leaving")
        await worker.store(PROMPT)
    return leavers


def test_a_request_passes_over_all_that_leave_to_the_one_that_stays(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        leavers = await start_leavers(mesh)
        await mesh.worker("stays")
        await mesh.router()
        assert await mesh.send(PROMPT) == "stays"
        assert [worker.offered for worker in leavers] == [1] * NUM_LEAVING

    play(scene)


def test_a_worker_that_sent_work_elsewhere_is_not_offered_the_next(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        leavers = await start_leavers(mesh)
        await mesh.worker("stays", max_sequences=100)
        await mesh.router(suspect_s=60.0)
        assert {await mesh.send(PROMPT) for _ in range(5)} == {"stays"}
        assert [worker.offered for worker in leavers] == [1] * NUM_LEAVING

    play(scene)


def test_a_request_passes_over_all_that_left_without_a_word(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        for worker in await start_leavers(mesh):
            await worker.unsubscribe()
        await mesh.worker("stays")
        await mesh.router()
        assert await mesh.send(PROMPT) == "stays"

    play(scene)


def test_where_all_leave_the_answer_says_so(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        leavers = await start_leavers(mesh)
        await mesh.router()
        assert isinstance(await mesh.refusal(PROMPT), GoElsewhere)
        assert [worker.offered for worker in leavers] == [1] * NUM_LEAVING

    play(scene)


def test_those_that_stay_and_refuse_are_asked_no_more_than_the_setting_says(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        full = Overloaded(reason="full", retry_after_s=1.0)
        workers = [await mesh.worker(f"w{number}", refusal=full) for number in range(6)]
        await mesh.router(num_offers=3)
        assert isinstance(await mesh.refusal(PROMPT), Overloaded)
        assert sum(worker.offered for worker in workers) == 3

    play(scene)
