"""The choice as a client sees it: real NATS, real etcd, and scripted workers that say what a test needs."""

import asyncio
from collections import Counter

import httpx
from msgspec.structs import replace

from proto import keys, subjects
from proto.cards import Presence
from proto.codec import decode, encode
from proto.control import (
    CONTROL_REPLIES,
    MAX_EXPLAINED,
    Admitted,
    AskAdmitted,
    Explained,
    ExplainRoute,
    WorkerTerms,
)
from proto.errors import (
    GoElsewhere,
    InvalidRequest,
    NoWorker,
    PromptTooLong,
    UnknownModel,
    WorkerNotReady,
)
from proto.requests import Refused, Routed
from proto.roles import WorkerState
from proto.tokens import pack_tokens
from tests.router.scene import Mesh, Play, a_request
from tests.router.scripted_worker import MODEL, prompt_of
from tests.services.waiting import wait_for


def test_a_request_goes_to_the_holder_of_its_prefix(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        workers = [await mesh.worker(f"w{number}") for number in range(4)]
        await mesh.router()
        prompt = prompt_of(7, 640)
        await workers[2].store(prompt)
        await mesh.bus.flush(1.0)
        for tail in range(5):
            reply = await mesh.route(a_request(prompt + prompt_of(tail, 20)))
            assert isinstance(reply, Routed)
            assert reply.decision.worker == "w2"
            assert reply.decision.prefix_tokens == 640

    play(scene)


def test_a_router_that_starts_later_learns_what_is_cached_from_snapshots(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        workers = [await mesh.worker(f"w{number}") for number in range(3)]
        prompt = prompt_of(7, 640)
        await workers[1].store(prompt, is_lost=True)
        await mesh.router()
        assert await mesh.send(prompt) == "w1"
        assert [worker.num_snapshots for worker in workers] == [0, 1, 0]

    play(scene)


def test_a_lost_event_leads_to_a_snapshot(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        worker = await mesh.worker("w0")
        await mesh.worker("w1")
        await mesh.router()
        lost, kept = prompt_of(7, 640), prompt_of(8, 640)
        await worker.store(lost, is_lost=True)
        await worker.store(kept)

        await wait_for(lambda: worker.num_snapshots == 1)
        reply = await mesh.route(a_request(lost + prompt_of(1, 20), exclude=["w1"]))
        assert isinstance(reply, Routed)
        assert reply.decision.prefix_tokens == 640

    play(scene)


def test_siblings_follow_the_first_of_them_before_any_event(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        for number in range(4):
            await mesh.worker(f"w{number}", max_sequences=100)
        await mesh.router()
        prompt = prompt_of(3, 4800)
        chosen = {await mesh.send(prompt + prompt_of(tail, 20)) for tail in range(8)}
        assert len(chosen) == 1

    play(scene)


def test_routers_hear_one_anothers_choices(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        for number in range(4):
            await mesh.worker(f"w{number}", max_sequences=100)
        for _ in range(3):
            await mesh.router()
        prompt = prompt_of(3, 4800)
        routers, chosen = set(), set()
        for tail in range(12):
            reply = await mesh.route(a_request(prompt + prompt_of(tail, 20)))
            assert isinstance(reply, Routed)
            routers.add(reply.decision.router)
            chosen.add(reply.decision.worker)
            await mesh.bus.flush(1.0)
        assert len(routers) > 1
        assert len(chosen) == 1

    play(scene)


def test_load_spreads_over_idle_workers(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        for number in range(4):
            await mesh.worker(f"w{number}")
        await mesh.router()
        chosen = await asyncio.gather(*(mesh.send(prompt_of(first, 320)) for first in range(24)))
        assert sorted(Counter(chosen).values()) == [6, 6, 6, 6]

    play(scene)


def test_one_shared_prefix_does_not_send_everything_to_one_worker(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        for number in range(3):
            await mesh.worker(f"w{number}", load={"decode_step_s": 0.02})
        await mesh.router()
        system = prompt_of(5, 320)
        requests = (mesh.send(system + prompt_of(tail, 20)) for tail in range(24))
        assert len(Counter(await asyncio.gather(*requests))) == 3

    play(scene)


def test_a_slow_worker_loses_its_share(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        for number in range(3):
            slow = {"prefill_rate": 200.0, "decode_step_s": 0.005}
            await mesh.worker(f"w{number}", max_sequences=40, load=slow if number == 0 else {})
        await mesh.router()
        chosen = await asyncio.gather(*(mesh.send(prompt_of(first, 320)) for first in range(33)))
        assert Counter(chosen)["w0"] <= 4

    play(scene)


def test_a_worker_that_left_without_a_word_is_passed_over_at_once(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        gone, there = await mesh.worker("w0"), await mesh.worker("w1")
        await mesh.router()
        prompt = prompt_of(7, 640)
        await gone.store(prompt)
        await gone.unsubscribe()
        async with asyncio.timeout(0.9):
            assert await mesh.send(prompt) == "w1"
        assert len(there.taken) == 1

    play(scene)


def test_a_worker_that_does_not_answer_is_passed_over_and_then_avoided(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        mute = await mesh.worker("w0", is_mute=True)
        await mesh.worker("w1")
        await mesh.router(offer_limit_s=0.3, suspect_s=60.0)
        prompt = prompt_of(7, 640)
        await mute.store(prompt)
        await mesh.bus.flush(1.0)
        for _ in range(3):
            assert await mesh.send(prompt) == "w1"
        assert mute.offered == 1

    play(scene)


def test_a_draining_worker_sends_new_work_elsewhere(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        draining = await mesh.worker("w0")
        await mesh.worker("w1")
        await mesh.router()
        prompt = prompt_of(7, 640)
        await draining.store(prompt)
        draining.state = WorkerState.DRAINING
        await draining.report()
        await mesh.bus.flush(1.0)
        assert await mesh.send(prompt) == "w1"
        assert draining.offered == 0

    play(scene)


def test_a_refusal_that_only_this_worker_means_costs_the_client_nothing(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        unwilling = await mesh.worker("w0", refusal=GoElsewhere(worker="w0", reason="draining"))
        await mesh.worker("w1")
        await mesh.router()
        await unwilling.store(prompt_of(7, 640))
        assert await mesh.send(prompt_of(7, 640)) == "w1"

    play(scene)


def test_a_refusal_that_every_worker_would_repeat_is_the_answer(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        refusal = InvalidRequest(field="top_p", reason="is 7")
        workers = [await mesh.worker(f"w{number}", refusal=refusal) for number in range(2)]
        await mesh.router()
        assert isinstance(await mesh.refusal(prompt_of(1, 64)), InvalidRequest)
        assert sum(worker.offered for worker in workers) == 1

    play(scene)


def test_excluded_workers_are_not_chosen(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        holder = await mesh.worker("w0")
        await mesh.worker("w1")
        await mesh.router()
        await holder.store(prompt_of(7, 640))
        assert await mesh.send(prompt_of(7, 640), exclude=["w0"]) == "w1"
        assert isinstance(await mesh.refusal(prompt_of(7, 640), exclude=["w0", "w1"]), NoWorker)

    play(scene)


def test_a_wanted_worker_is_taken_though_another_holds_the_prefix(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        holder = await mesh.worker("w0")
        await mesh.worker("w1")
        await mesh.router()
        await holder.store(prompt_of(7, 640))
        await mesh.bus.flush(1.0)
        assert await mesh.send(prompt_of(7, 640)) == "w0"
        assert await mesh.send(prompt_of(7, 640), wanted_worker="w1") == "w1"

    play(scene)


def test_a_wanted_worker_that_cannot_take_it_is_refused_with_the_reason(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        draining = await mesh.worker("w0")
        await mesh.worker("w1")
        await mesh.router()
        await mesh.directory.put(keys.model(mesh.ns, "other"), encode(replace(MODEL, name="other")))
        unknown = await mesh.refusal(prompt_of(7, 640), wanted_worker="w9")
        assert isinstance(unknown, InvalidRequest)
        assert unknown.values["field"] == "worker_id"
        foreign = await mesh.refusal(prompt_of(7, 640), model="other", wanted_worker="w1")
        assert isinstance(foreign, InvalidRequest)
        draining.state = WorkerState.DRAINING
        await draining.report()
        await mesh.bus.flush(1.0)
        assert isinstance(await mesh.refusal(prompt_of(7, 640), wanted_worker="w0"), WorkerNotReady)
        lost = await mesh.refusal(prompt_of(7, 640), wanted_worker="w1", exclude=["w1"])
        assert isinstance(lost, GoElsewhere)

    play(scene)


def test_a_router_explains_a_choice_that_it_does_not_make(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        holder = await mesh.worker("w0")
        await mesh.worker("w1")
        await mesh.worker("w2", load={"num_running": 80})
        router = await mesh.router()
        await holder.store(prompt_of(7, 640))
        await mesh.bus.flush(1.0)
        for limit in (3, 1):
            ask = ExplainRoute(a_request(prompt_of(7, 640), exclude=["w1"]), limit)
            subject = subjects.router_control(mesh.ns, router)
            reply = CONTROL_REPLIES.decode(await mesh.bus.request(subject, encode(ask), 5.0))
            assert isinstance(reply, Explained)
            assert (reply.worker, reply.policy, reply.num_workers, reply.num_tokens) == ("w0", "kv", 3, 640)
            assert len(reply.workers) == limit
            assert (reply.workers[0].worker, reply.workers[0].hit_tokens) == ("w0", 639)
            verdicts = {one.worker: one.verdict for one in reply.workers}
            assert verdicts.items() <= {"w0": "chosen", "w1": "left out", "w2": "full"}.items()
        assert holder.offered == 0
        ask = ExplainRoute(a_request(prompt_of(7, 640), wanted_worker="w9"))
        refused = CONTROL_REPLIES.decode(await mesh.bus.request(subject, encode(ask), 5.0))
        assert isinstance(refused, Refused)

    play(scene)


def test_an_explanation_of_a_thousand_workers_fits_a_message() -> None:
    terms = WorkerTerms("w" * 64, "eligible", 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, False, 10**6, 1.5)
    explained = Explained("r" * 64, "power_of_two", "w" * 64, 5000, 10**6, [terms] * MAX_EXPLAINED)
    assert len(encode(explained)) < 500_000


def test_each_model_is_routed_by_its_own_policy(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        for number in range(3):
            await mesh.worker(f"w{number}", max_sequences=100)
        await mesh.router(policies=[f"{MODEL.name}=round_robin"])
        chosen = [await mesh.send(prompt_of(7, 640)) for _ in range(6)]
        assert sorted(chosen[:3]) == ["w0", "w1", "w2"]
        assert chosen[3:] == chosen[:3]

    play(scene)


def test_without_a_worker_the_answer_says_so_at_once(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        await mesh.router()
        assert isinstance(await mesh.refusal(prompt_of(1, 64)), NoWorker)

    play(scene)


def test_an_unknown_model_and_an_impossible_prompt_are_the_callers_fault(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        await mesh.worker("w0")
        await mesh.router()
        assert isinstance(await mesh.refusal(prompt_of(1, 64), model="no/such"), UnknownModel)
        assert isinstance(await mesh.refusal(b""), InvalidRequest)
        assert isinstance(await mesh.refusal(b"\0" * 5), InvalidRequest)
        assert isinstance(await mesh.refusal(prompt_of(1, 65_537)), PromptTooLong)

    play(scene)


def test_tokens_of_earlier_attempts_count_as_prompt(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        holder = await mesh.worker("w0")
        await mesh.worker("w1")
        await mesh.router()
        prompt, generated = prompt_of(7, 320), pack_tokens(range(320))
        await holder.store(prompt + generated)
        await mesh.bus.flush(1.0)
        reply = await mesh.route(a_request(prompt, generated=generated, offset=320, attempt=2))
        assert isinstance(reply, Routed)
        assert reply.decision.prefix_tokens == 639

    play(scene)


def test_a_new_incarnation_has_an_empty_cache(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        worker = await mesh.worker("w0")
        await mesh.router()
        prompt = prompt_of(7, 640)
        await worker.store(prompt)
        worker.restart()
        await worker.register()
        await worker.report()

        reply = await mesh.route_at_last(a_request(prompt))
        assert reply.decision.prefix_tokens == 0

    play(scene)


def test_promised_and_real_hits_are_counted_side_by_side(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        worker = await mesh.worker("w0")
        router = await mesh.router()
        await worker.store(prompt_of(7, 640))
        assert await mesh.send(prompt_of(7, 640)) == "w0"
        worker.load = {"hit_tokens": 639, "prompt_tokens": 640}
        await worker.report()
        await mesh.bus.flush(1.0)
        assert await mesh.send(prompt_of(9, 64)) == "w0"
        entry = await mesh.directory.get(keys.router(mesh.ns, router))
        assert entry is not None
        url = decode(entry.value, Presence).url
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{url}/readyz")).status_code == 200
            lines = (await client.get(f"{url}/metrics")).text.splitlines()
        for line in (
            "kvmesh_route_promised_hit_tokens_total 639.0",
            "kvmesh_route_real_hit_tokens_total 639.0",
            "kvmesh_route_index_blocks 40.0",
            "kvmesh_route_index_bytes 41612.0",
            "kvmesh_route_workers 1.0",
            "kvmesh_route_queue_length 0.0",
            'kvmesh_route_decisions_total{outcome="sent"} 2.0',
        ):
            assert line in lines

    play(scene)


def test_a_worker_is_admitted_in_the_life_that_can_be_chosen(play: Play) -> None:
    async def scene(mesh: Mesh) -> None:
        subject = subjects.router_control(mesh.ns, await mesh.router())

        async def is_admitted(worker: str, incarnation: str) -> bool:
            ask = encode(AskAdmitted(worker, incarnation))
            reply = CONTROL_REPLIES.decode(await mesh.bus.request(subject, ask, 5.0))
            assert isinstance(reply, Admitted)
            return reply.is_admitted

        assert not await is_admitted("w0", "any")
        worker = await mesh.worker("w0")
        await mesh.send(prompt_of(1, 20))
        assert await is_admitted("w0", worker.incarnation)
        assert not await is_admitted("w0", "another life")

    play(scene)
