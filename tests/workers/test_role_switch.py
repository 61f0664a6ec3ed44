"""A worker takes another role while it lives: its work moves or ends, its cache stays, one role stands."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from proto.control import Unpin, Unpinned
from proto.hand_over import Drain, PinSequence, SequencePinned, Undrain
from proto.names import new_id
from proto.requests import KvSource, Refused
from proto.roles import DrainMode, Role, RoleProgress, SwitchRole, TakeBackRole, WorkerState
from services.servers import Server
from tests.workers.harness import Client, Fleet, random_prompt, until
from tests.workers.role_pair import (
    PATIENT_S,
    ask_role,
    become,
    begin,
    begin_long,
    generate,
    open_pair,
    order,
    refusal,
    run_client,
    start,
    wait_kept,
    wait_role,
)


@pytest.fixture(scope="module")
def pair(
    nats_server: Server, etcd_server: Server, tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """`left` and `right`, simulated; each test begins with two decode workers."""
    yield from open_pair(Fleet(nats_server, etcd_server, f"test-{new_id()}", folder(tmp_path_factory)), tiny)


@pytest.fixture
def mortal_pair(
    nats_server: Server,
    make_etcd: Callable[[], Server],
    tiny: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Fleet]:
    """As `pair`, with an etcd of its own."""
    yield from open_pair(Fleet(nats_server, make_etcd(), f"test-{new_id()}", folder(tmp_path_factory)), tiny)


@pytest.fixture(scope="module")
def torch_pair(
    nats_server: Server, etcd_server: Server, tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """As `pair`, of workers that compute."""
    fleet = Fleet(nats_server, etcd_server, f"test-{new_id()}", folder(tmp_path_factory))
    yield from open_pair(fleet, tiny, engine="torch")


def folder(factory: pytest.TempPathFactory) -> Path:
    return factory.mktemp("roles")


def test_an_idle_worker_goes_there_and_back_and_serves_in_each_role(pair: Fleet) -> None:
    async def body(client: Client) -> None:
        prompt, left = random_prompt(200, 1), pair.worker("left")
        await generate(client, "left", prompt)
        before, served = client.reports["left"], left.metric("kvmesh_served_total")
        epoch = await become(client, "left", Role.PREFILL)
        remote = await generate(client, "right", prompt)
        assert (remote.final.prefill, remote.final.prefill_worker) == ("remote", "left")
        await client.wait_report("left", lambda report: report.num_served == 1)
        assert await become(client, "left", Role.DECODE) == epoch + 1
        again = await generate(client, "left", prompt)
        assert again.final.cached_tokens == 192
        await client.wait_rest("left", "right")
        await client.wait_report("left", lambda report: report.num_served == 1)
        assert left.metric("kvmesh_served_total") == served + 2
        assert left.metric("kvmesh_role_epoch") == epoch + 1
        after = client.reports["left"]
        assert (after.max_sequences, after.total_blocks) == (before.max_sequences, before.total_blocks)

    run_client(pair, body)


def test_work_with_the_stamp_of_an_old_epoch_is_refused(pair: Fleet) -> None:
    async def body(client: Client) -> None:
        epoch = await become(client, "left", Role.PREFILL)
        refused, _ = await client.offer("left", random_prompt(8, 2), epoch=epoch)
        assert isinstance(refused, Refused)
        assert refused.fault.values["reason"] == "its role is prefill"
        await become(client, "left", Role.DECODE)
        refused, _ = await client.offer("left", random_prompt(8, 2), epoch=epoch - 1)
        assert isinstance(refused, Refused)
        assert refused.fault.values["reason"] == f"its epoch is {epoch + 1}, not {epoch - 1}"

    run_client(pair, body)


@pytest.mark.parametrize(
    ("engine", "num_tokens"), [("simulated", 300), pytest.param("torch", 1900, marks=pytest.mark.slow)]
)
def test_what_runs_moves_with_its_tokens_before_the_new_role_begins(
    engine: str, num_tokens: int, request: pytest.FixtureRequest
) -> None:
    fleet: Fleet = request.getfixturevalue("pair" if engine == "simulated" else "torch_pair")

    async def body(client: Client) -> None:
        prompt, fields = random_prompt(100, 3), {"max_tokens": num_tokens}
        alone = await generate(client, "left", prompt, **fields)
        stream = await begin(client, "left", prompt, **fields)
        await client.wait(lambda: len(stream.tokens) >= 5, PATIENT_S)
        told = await order(client, "left", Role.PREFILL, limit_s=PATIENT_S)
        assert told.wanted is Role.PREFILL
        await client.wait(lambda: "left" in client.wishes, PATIENT_S)
        half_way = await ask_role(client, "left")
        assert (half_way.state, half_way.stage, half_way.num_left) == (
            WorkerState.DRAINING,
            "handing over",
            1,
        )
        source = KvSource("left", client.reports["left"].incarnation, 0)
        moved = await begin(
            client,
            "right",
            prompt,
            request=stream.request,
            attempt=1,
            generated=list(stream.tokens),
            source=source,
            **fields,
        )
        await client.wait(
            lambda: bool(moved.tokens) and moved.offset + len(moved.tokens) >= len(stream.tokens), PATIENT_S
        )
        assert (await ask_role(client, "left")).epoch == told.epoch
        await client.cancel(stream)
        await wait_role(client, "left", Role.PREFILL, told.epoch + 1)
        await client.finish(moved, 2 * PATIENT_S)
        assert stream.tokens[: moved.offset] + moved.tokens == alone.tokens
        assert fleet.worker("right").metric("kvmesh_kv_bytes_pulled_total") > 0
        await client.wait_rest("left", "right")

    run_client(fleet, body)


def test_what_shall_finish_and_does_not_in_time_leaves_the_old_role(pair: Fleet) -> None:
    async def body(client: Client) -> None:
        stream = await begin_long(client, "left", 4)
        epoch = (await ask_role(client, "left")).epoch
        stayed = hand_overs(pair, "left", "stayed")
        await order(client, "left", Role.PREFILL, mode=DrainMode.FINISH, limit_s=0.2)
        kept = await wait_kept(client, "left", "the work of the old role did not end within 0.2 s")
        assert (kept.role, kept.epoch) == (Role.DECODE, epoch)
        await generate(client, "left", random_prompt(8, 5))
        assert stream.end is None
        assert hand_overs(pair, "left", "stayed") == stayed + 1
        await client.cancel(stream)
        await become(client, "left", Role.PREFILL)

    run_client(pair, body)


def test_what_nobody_takes_in_time_goes_on_elsewhere_from_its_tokens(pair: Fleet) -> None:
    async def body(client: Client) -> None:
        stream = await begin_long(client, "left", 6)
        stayed, sent_on = (hand_overs(pair, "left", outcome) for outcome in ("stayed", "sent_on"))
        await become(client, "left", Role.PREFILL, limit_s=0.2)
        await client.wait(lambda: stream.end is not None, PATIENT_S)
        assert stream.final.fault is not None
        assert stream.final.fault.code == "go_elsewhere"
        assert hand_overs(pair, "left", "sent_on") == sent_on + 1
        assert hand_overs(pair, "left", "stayed") == stayed

    run_client(pair, body)


def hand_overs(fleet: Fleet, worker: str, outcome: str) -> float:
    return fleet.worker(worker).metric("kvmesh_hand_overs_total", outcome=outcome)


def test_a_sequence_that_is_read_is_one_thing_that_is_left(pair: Fleet) -> None:
    async def body(client: Client) -> None:
        stream = await begin_long(client, "left", 18)
        await client.wait(lambda: len(stream.tokens) >= 40, PATIENT_S)  # they fill a block
        told = await order(client, "left", Role.PREFILL, mode=DrainMode.FINISH, limit_s=PATIENT_S)
        ask = PinSequence(stream.request, 0, client.name, 0, PATIENT_S)
        pinned = await client.ask("left", ask, SequencePinned)
        assert pinned.blocks
        assert (await ask_role(client, "left")).num_left == 1
        await client.cancel(stream)

        async def is_pin_left() -> bool:
            return (await ask_role(client, "left")).num_left == 1 and not client.reports["left"].num_running

        await until("the pin alone is left", is_pin_left, PATIENT_S)
        await client.ask("left", Unpin(pinned.pin), Unpinned)
        await wait_role(client, "left", Role.PREFILL, told.epoch + 1)

    run_client(pair, body)


def test_an_order_is_taken_back_half_way_and_the_old_role_goes_on(pair: Fleet) -> None:
    async def body(client: Client) -> None:
        assert "is not on its way" in await refusal(client, "left", TakeBackRole())
        stream = await begin_long(client, "left", 7)
        told = await order(client, "left", Role.PREFILL, mode=DrainMode.FINISH, limit_s=PATIENT_S)
        assert "is on its way to prefill already" in await refusal(client, "left", SwitchRole(Role.PREFILL))
        await client.ask("left", TakeBackRole(), RoleProgress)
        kept = await wait_kept(client, "left", "it was taken back")
        assert (kept.role, kept.epoch) == (Role.DECODE, told.epoch)
        await generate(client, "left", random_prompt(8, 8))
        assert stream.end is None
        await client.cancel(stream)

    run_client(pair, body)


def test_the_last_decode_worker_keeps_its_role_and_is_not_drained_unless_forced(pair: Fleet) -> None:
    async def body(client: Client) -> None:
        await become(client, "left", Role.PREFILL)
        for request in (SwitchRole(Role.PREFILL), Drain(DrainMode.MOVE, 1.0)):
            said = await refusal(client, "right", request)
            assert "right is the last ready decode worker of 'tiny'" in said
        await generate(client, "right", random_prompt(8, 9))
        await client.tell("right", Drain(DrainMode.MOVE, 1.0, is_forced=True))
        assert (await ask_role(client, "right")).state is WorkerState.DRAINING
        await client.tell("right", Undrain())

    run_client(pair, body)


def test_a_worker_that_drains_takes_no_order_and_one_on_its_way_is_not_drained(pair: Fleet) -> None:
    async def body(client: Client) -> None:
        await client.tell("left", Drain(DrainMode.MOVE, 1.0))
        assert "left is draining" in await refusal(client, "left", SwitchRole(Role.PREFILL))
        await client.tell("left", Undrain())
        stream = await begin_long(client, "left", 10)
        told = await order(client, "left", Role.PREFILL, mode=DrainMode.FINISH, limit_s=PATIENT_S)
        assert "it is changing its role" in await refusal(client, "left", Drain(DrainMode.MOVE, 1.0))
        await client.cancel(stream)
        await wait_role(client, "left", Role.PREFILL, told.epoch + 1)

    run_client(pair, body)


def test_an_order_is_placed_as_soon_as_a_beat_has_told_of_the_role_before(pair: Fleet) -> None:
    """The worker's card, on which an order rests, says so a moment later."""

    async def body(client: Client) -> None:
        before = (await ask_role(client, "left")).epoch
        for number, role in enumerate(4 * (Role.PREFILL, Role.DECODE), before + 1):
            await order(client, "left", role)
            await wait_role(client, "left", role, number)

    run_client(pair, body)


@pytest.mark.parametrize(("mode", "place"), [(DrainMode.FINISH, "remote"), (DrainMode.MOVE, "local")])
def test_a_job_in_hand_finishes_or_goes_back_to_its_owner(pair: Fleet, mode: DrainMode, place: str) -> None:
    """It takes two seconds, longer than a job may take where work is moved."""

    async def body(client: Client) -> None:
        await become(client, "left", Role.PREFILL)
        stream = await begin(client, "right", random_prompt(1900, 11 + len(place)))
        await client.wait_report("left", lambda report: report.job_tokens > 1000)
        await become(client, "left", Role.DECODE, mode=mode)
        await client.finish(stream, PATIENT_S)
        assert stream.final.prefill == place
        await client.wait_rest("left", "right")

    run_client(pair, body)


def test_jobs_that_wait_in_the_queue_go_back_when_the_last_prefill_worker_has_another_role(
    pair: Fleet,
) -> None:
    """It has one job in hand; nobody else would take the others before this test gives up."""

    async def body(client: Client) -> None:
        await become(client, "left", Role.PREFILL)
        streams = [await begin(client, "right", random_prompt(600, 30 + number)) for number in range(4)]
        await client.wait_report("left", lambda report: report.num_jobs == 1)
        await become(client, "left", Role.DECODE)
        for stream in streams:
            await client.finish(stream, PATIENT_S)
        assert streams[-1].final.prefill == "local"
        await client.wait_rest("left", "right")

    run_client(pair, body)


def test_quarantine_holds_up_no_switch_and_what_lands_after_it_is_taken_by_its_id(
    pair: Fleet, tiny: Path
) -> None:
    async def body(client: Client) -> None:
        helper = await asyncio.to_thread(start, pair, tiny, "helper", Role.PREFILL)
        await pair.wait_ready("helper")
        await client.wait(lambda: "helper" in client.reports, PATIENT_S)
        stream = await begin(client, "left", random_prompt(1500, 13))

        async def is_granted() -> bool:
            return bool((await client.holdings("left")).granted)

        await until("the job is granted", is_granted)
        helper.process.suspend()
        try:
            told = await order(client, "left", Role.PREFILL, limit_s=PATIENT_S)
            await client.cancel(stream)
            await wait_role(client, "left", Role.PREFILL, told.epoch + 1)
            assert (await client.holdings("left")).quarantined
        finally:
            helper.process.resume()
        await client.wait_rest("left", "right", limit_s=PATIENT_S)
        helper.process.terminate()
        await asyncio.to_thread(helper.process.wait, 20)

    run_client(pair, body)


@pytest.mark.parametrize("end", ["killed", "told to end"])
def test_a_worker_that_ends_on_its_way_comes_back_in_one_role_and_no_earlier_epoch(
    pair: Fleet, tiny: Path, end: str
) -> None:
    async def body(client: Client) -> None:
        await begin_long(client, "left", 14)
        told = await order(client, "left", Role.PREFILL, mode=DrainMode.FINISH, limit_s=PATIENT_S)
        process = pair.worker("left").process
        if end == "killed":
            process.kill()
        else:
            process.terminate()
            assert await asyncio.to_thread(process.wait, PATIENT_S) == 0
            assert client.reports["left"].state is WorkerState.LEAVING
            assert client.reports["left"].epoch == told.epoch
        client.reports.pop("left")
        await asyncio.to_thread(start, pair, tiny, "left")
        await client.wait(lambda: "left" in client.reports, PATIENT_S)
        await wait_role(client, "left", Role.PREFILL, told.epoch + 1)
        seeds = iter(range(100, 10_000))

        async def has_served() -> bool:
            stream = await generate(client, "right", random_prompt(200, next(seeds)))
            return stream.final.prefill_worker == "left"

        await until("it prefills", has_served, PATIENT_S)

    run_client(pair, body)


def test_without_a_directory_a_switch_ends_with_the_old_role_and_the_order_is_given_up_later(
    mortal_pair: Fleet,
) -> None:
    async def body(client: Client) -> None:
        etcd = mortal_pair.etcd
        stream = await begin_long(client, "left", 16)
        told = await order(client, "left", Role.PREFILL, mode=DrainMode.FINISH, limit_s=PATIENT_S)
        await client.wait_report("left", lambda report: report.state is WorkerState.DRAINING)
        etcd.kill()
        await client.cancel(stream)
        await wait_role(client, "left", Role.DECODE, told.epoch)
        await generate(client, "left", random_prompt(8, 17))
        etcd.restart()

        async def is_ordered() -> bool:
            return isinstance(await client.control("left", SwitchRole(Role.PREFILL)), RoleProgress)

        async def is_ordered_back() -> bool:
            return isinstance(await client.control("left", SwitchRole(Role.DECODE)), RoleProgress)

        await until("the old order is given up", is_ordered, PATIENT_S)
        await wait_role(client, "left", Role.PREFILL, told.epoch + 1)
        etcd.kill()
        etcd.wipe()
        etcd.restart()
        await until("it goes back, by the word of a new directory", is_ordered_back, PATIENT_S)
        await wait_role(client, "left", Role.DECODE, told.epoch + 2)

    run_client(mortal_pair, body)


def test_the_role_is_asked_ordered_and_taken_back_over_http(pair: Fleet) -> None:
    async def body(client: Client) -> None:
        url = f"{pair.worker('left').admin_url}/role"
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENT_S) as http:
            stream = await begin_long(client, "left", 18)
            said = (await http.get(url)).json()
            assert (said["role"], said["state"], said["wanted"]) == ("decode", "ready", None)
            wish = {"role": "prefill", "mode": "finish", "limit_s": PATIENT_S}
            ordered = await http.post(url, json=wish)
            assert (ordered.status_code, ordered.json()["wanted"]) == (202, "prefill")
            again = await http.post(url, json=wish)
            assert (again.status_code, again.json()["error"]["param"]) == (400, "worker")
            assert (await http.delete(url)).status_code == 200
            await wait_kept(client, "left", "it was taken back")
            wrong = await http.post(url, json={"role": "both"})
            assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "invalid_request")
            await client.cancel(stream)

    run_client(pair, body)
