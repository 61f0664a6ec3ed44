"""What guessing by prompt lookup is worth, and what it costs where the text says nothing twice.

Run: `python -m tests.perf.speculative`, some three minutes, two threads, the default model at float32. The
same engine answers the same prompts by turns with guesses and without; prompts are cached, and not timed.
`speedup`: tokens a second with over those without, the median over the turns. A file is written again with
one change, a text is to be quoted, and there are chats that say nothing twice; the number tells how many are
answered at once. `accepted_share` of the guesses that were tried and `drafts_a_token` say how it came about.
"""

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

import services
from services.models.folder import resolve_model
from services.planner.step_cost import StepCost
from tests.perf.engine import settings_of
from tests.perf.engine_load import Heard
from workers.engine.engine import Engine
from workers.engine.engine_settings import EngineSettings
from workers.engine.ngram_drafter import NgramDrafter
from workers.engine.runner import SampleParams
from workers.engine.sequence import SequenceKind, SequenceSpec
from workers.engine.speculation import Drafting, choose_drafts
from workers.engine.torch_loading import load_torch_runner
from workers.engine.torch_runner import TorchRunner
from workers.settings import WorkerSettings

MODEL = "smollm2-135m"
CONTEXT = 2048
ANSWER_TOKENS = 48
PROMPT_TOKENS = 600
NUM_TURNS = 3
GREEDY = SampleParams()
DRAWN = SampleParams(temperature=0.8, top_p=0.95)
FOLDER = Path(services.__file__).parent
FILES = ("backoff", "tasks", "presence", "loop_watch", "renewals", "taker", "child", "entry")
QUESTIONS = (
    "Tell me a story about a lighthouse keeper and a whale.",
    "Explain how vaccines work.",
    "Plan a week of dinners for a family of four.",
    "What should I see in Rome, and why?",
    "Write a letter to a friend about moving to the sea.",
    "How do bees make honey?",
    "Describe the causes of the First World War.",
    "Give me advice on learning the piano.",
)


class Work(msgspec.Struct, frozen=True):
    """Prompts that are answered at once."""

    name: str
    prompts: list[list[int]]
    sample: SampleParams


class Found(msgspec.Struct, frozen=True):
    """Units: `turns` seconds with guesses and without."""

    turns: list[tuple[float, float]]
    num_drafted: int
    num_accepted: int
    num_tokens: int


class Switch:
    """The choice of drafts, or none."""

    is_on = False

    def choose(self, worths: Sequence[Sequence[float]], num_tokens: int, cost: StepCost) -> list[int]:
        return choose_drafts(worths, num_tokens, cost) if self.is_on else [0] * len(worths)


class Bench:
    """One engine over one pool, so that what is compared has the same KV."""

    def __init__(self) -> None:
        folder = resolve_model(MODEL).path
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._runner = load_torch_runner(folder, settings_of("full"))
        self._switch = Switch()
        self._heard = Heard()
        self._engine = _open(self._runner, self._heard, self._switch)
        self._num_asked = 0

    def run(self) -> dict[str, object]:
        found = {work.name: self._measure(work) for work in self._works()}
        return {
            "speedup": {name: _speedup(each) for name, each in found.items()},
            "accepted_share": {
                name: round(each.num_accepted / max(1, each.num_drafted), 3) for name, each in found.items()
            },
            "drafts_a_token": {
                name: round(each.num_drafted / each.num_tokens, 3) for name, each in found.items()
            },
        }

    def _works(self) -> list[Work]:
        edits = [self._encode(_edit(FOLDER / f"{name}.py")) for name in FILES]
        quote = self._encode(_quote((FOLDER.parent / "ARCHITECTURE.md").read_text()[3000:5000]))
        chats = [self._encode(_chat(question)) for question in QUESTIONS]
        return [
            Work("edit, 1", edits[:1], GREEDY),
            Work("edit, 8", edits, GREEDY),
            Work("quote, 1", [quote], GREEDY),
            Work("chat, 1", chats[:1], DRAWN),
            Work("chat, 8", chats, DRAWN),
        ]

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)[-PROMPT_TOKENS:]

    def _measure(self, work: Work) -> Found:
        self._answer_s(work, is_on=False)
        turns, num_drafted, num_accepted = [], 0, 0
        for _ in range(NUM_TURNS):
            before = self._engine.load()
            turns.append((self._answer_s(work, is_on=True), self._answer_s(work, is_on=False)))
            after = self._engine.load()
            num_drafted += after.drafted_tokens - before.drafted_tokens
            num_accepted += after.accepted_tokens - before.accepted_tokens
        found = Found(turns, num_drafted, num_accepted, NUM_TURNS * len(work.prompts) * ANSWER_TOKENS)
        print(work.name, _speedup(found), found, flush=True)
        return found

    def _answer_s(self, work: Work, *, is_on: bool) -> float:
        """Seconds from when all prompts are computed to the end of the last answer."""
        self._switch.is_on = is_on
        for number, prompt in enumerate(work.prompts):
            self._num_asked += 1
            sample = msgspec.structs.replace(work.sample, seed=number)
            self._engine.add(_spec(str(self._num_asked), prompt, sample))
        while self._engine.load().waiting_tokens:
            self._engine.step_once()
        began_s = time.perf_counter()
        while self._engine.step_once():
            pass
        return time.perf_counter() - began_s


def _open(runner: TorchRunner, heard: Heard, switch: Switch) -> Engine:
    rules = EngineSettings(num_blocks=runner.num_blocks, context_tokens=CONTEXT, block_size=runner.block_size)
    told = WorkerSettings()
    sizes = told.ngram_min_tokens, told.ngram_max_tokens
    return Engine(
        runner, rules, heard, Drafting(lambda: NgramDrafter(*sizes), told.draft_tokens, switch.choose)
    )


def _spec(name: str, prompt: list[int], sample: SampleParams) -> SequenceSpec:
    return SequenceSpec(
        sequence=name,
        kind=SequenceKind.GENERATE,
        tokens=prompt,
        num_prompt=len(prompt),
        sample=sample,
        max_tokens=ANSWER_TOKENS,
        stop_tokens=frozenset(),
        salt=b"",
    )


def _edit(path: Path) -> str:
    """A file, and its first lines once more."""
    text = path.read_text()
    begun = "\n".join(text.splitlines()[:6]).replace('"""', '"""Edited. ', 1)
    return f"The file:\n```python\n{text}\n```\nThe same file with one more comment:\n```python\n{begun}\n"


def _quote(text: str) -> str:
    return _chat(f"Summarise this text, and quote it word for word where you can:\n\n{text}")


def _chat(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def _speedup(found: Found) -> float:
    return round(statistics.median(off_s / on_s for on_s, off_s in found.turns), 3)


def main() -> None:
    print(json.dumps(Bench().run()))


if __name__ == "__main__":
    main()
