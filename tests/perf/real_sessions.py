"""Sessions of chat with real workers: each turn sends all that was said before, answers too, and more."""

import asyncio
import json
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.mesh.running_mesh import RunningMesh, run_mesh
from tests.perf.sse_load import WORDS

MODEL = "smollm2-135m"
POLICIES = ("round_robin", "kv")
NUM_ROUNDS = 2
NUM_WORKERS = 2
NUM_SESSIONS = 8
NUM_TURNS = 3
FIRST_WORDS = 600  # a document to talk about
MORE_WORDS = 24
ANSWER_TOKENS = 4
BLOCK_SIZE = 16
SESSION_TOKENS = 720  # of a whole session: its last prompt and answer
FIT = 1.4  # times that the pools hold all sessions: room for an uneven split, and for what runs
POOL_BLOCKS = int(FIT * NUM_SESSIONS * SESSION_TOKENS / NUM_WORKERS / BLOCK_SIZE)
NUM_AT_ONCE = 2
LIMIT_S = 120.0
FACTS = {"x-kvmesh-facts": "1"}  # the answer tells which worker gave it


@dataclass
class Turn:
    """Units: seconds, tokens."""

    ttft_s: float = 0.0
    num_prompt: int = 0
    num_cached: int = 0
    num_out: int = 0
    worker: str = ""


@dataclass
class Session:
    """One talk. `round` and `number` make it unlike any other."""

    round: int
    number: int
    messages: list[dict[str, str]] = field(default_factory=list)

    def say(self, turn: int) -> None:
        draw = random.Random(f"{self.round}/{self.number}/{turn}")
        words = draw.choices(WORDS, k=MORE_WORDS if turn else FIRST_WORDS)
        self.messages.append({"role": "user", "content": " ".join(words)})


@contextmanager
def real_mesh(folder: Path, policy: str) -> Iterator[RunningMesh]:
    """Decode workers alone, whose pools hold all sessions of a round once, with some room."""
    environ = {"KVMESH_ROUTER_POLICY": policy, "KVMESH_WORKER_NUM_BLOCKS": str(POOL_BLOCKS)}
    flags = ("--prefill", "0", "--decode", str(NUM_WORKERS))
    with run_mesh(folder, MODEL, *flags, environ=environ) as mesh:
        mesh.wait_until("all are ready", lambda: "ready after" in mesh.output(), 90)
        yield mesh


async def talk(url: str, round_: int) -> list[Turn]:
    """All sessions, turn by turn: who speaks next is drawn, since people think for different times."""
    draw = random.Random(round_)
    sessions = [Session(round_, number) for number in range(NUM_SESSIONS)]
    turns: list[Turn] = []
    async with httpx.AsyncClient(base_url=url, timeout=LIMIT_S, trust_env=False) as client:
        for number in range(NUM_TURNS):
            draw.shuffle(sessions)
            speakers = iter(sessions)
            async with asyncio.TaskGroup() as tasks:
                for line in range(NUM_AT_ONCE):
                    tasks.create_task(_speak(client, speakers, number, turns), name=f"line {line}")
    return turns


async def _speak(
    client: httpx.AsyncClient, speakers: Iterator[Session], number: int, turns: list[Turn]
) -> None:
    for session in speakers:
        session.say(number)
        turns.append(await _ask(client, session))


async def _ask(client: httpx.AsyncClient, session: Session) -> Turn:
    body = {
        "model": MODEL,
        "messages": session.messages,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    turn, answer, began_s = Turn(), "", time.monotonic()
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=FACTS) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            said = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            if said and not answer:
                turn.ttft_s = time.monotonic() - began_s
            answer += said
            if event.get("usage"):
                _take_usage(turn, event["usage"])
            if event.get("kvmesh"):
                turn.worker = event["kvmesh"]["choices"][0]["worker"]
    session.messages.append({"role": "assistant", "content": answer})
    return turn


def _take_usage(turn: Turn, usage: dict[str, object]) -> None:
    details = usage["prompt_tokens_details"]
    assert isinstance(details, dict)
    turn.num_prompt, turn.num_out = int(str(usage["prompt_tokens"])), int(str(usage["completion_tokens"]))
    turn.num_cached = details["cached_tokens"]


def measure() -> float:
    """The median over all turns under `kv`, over that under round-robin; rounds of either alternate."""
    ttft_s: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        meshes = {policy: stack.enter_context(real_mesh(Path(folder, policy), policy)) for policy in POLICIES}
        for round_ in range(NUM_ROUNDS):
            for policy, mesh in meshes.items():
                turns = asyncio.run(talk(mesh.url, round_))
                print(f"round {round_}, {policy:12s}: {_told(turns)}", flush=True)
                ttft_s[policy] += [turn.ttft_s for turn in turns]
    return statistics.median(ttft_s["kv"]) / statistics.median(ttft_s["round_robin"])


def _told(turns: Sequence[Turn]) -> str:
    ttft_s = sorted(turn.ttft_s for turn in turns)
    hits = sum(turn.num_cached for turn in turns) / sum(turn.num_prompt for turn in turns)
    held = NUM_WORKERS * POOL_BLOCKS * BLOCK_SIZE
    asked = sum(turn.num_prompt + turn.num_out for turn in turns[-NUM_SESSIONS:])
    assert asked < held < 2 * asked, "the pools hold all sessions once, and not twice"
    shares = Counter(turn.worker for turn in turns).values()
    return (
        f"TTFT p50 {statistics.median(ttft_s):.2f} p90 {ttft_s[len(ttft_s) * 9 // 10]:.2f} s,"
        f" hits {hits:.1%}, {asked} tokens of sessions in pools of {held},"
        f" {'/'.join(map(str, shares))} turns to each worker"
    )
