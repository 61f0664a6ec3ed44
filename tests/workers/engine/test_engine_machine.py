"""Any mix of the engine's verbs, step by step: no block is lost, no token is wrong, everybody ends."""

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proto.blockhash import block_hashes
from proto.errors import GrantRefused, Overloaded
from proto.tokens import pack_tokens
from tests.workers.engine.drafters import DRAFTERS, drafting_of
from tests.workers.engine.engine_desk import SALT, Desk, prefill_of, small_settings, spec_of
from tests.workers.engine.witness_runner import expect_records, expect_tokens
from workers.engine.runner import SampleParams
from workers.engine.sequence import SequenceKind, SequenceSpec
from workers.engine.speculation import Drafting

# Beginnings of few texts that part at different places, so that prompts share prefixes, whole ones too.
STEM = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
TEXTS = [STEM * 4, [*STEM, 11] * 4, [*STEM[:6], 12, 13] * 5, [14, *STEM] * 4]
PROMPTS = st.builds(lambda text, length: text[:length], st.sampled_from(TEXTS), st.integers(1, 36))


class EngineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._open(None)
        self.specs: dict[str, SequenceSpec] = {}
        self.aside: dict[str, tuple[list[int], int, int]] = {}
        self.orphans: list[list[int]] = []
        self.awaiting: dict[str, int] = {}
        self.pins: list[list[int]] = []
        self.released: set[str] = set()
        self.gone: set[str] = set()

    @initialize(drafter=st.none() | st.sampled_from(sorted(DRAFTERS)), most_drafts=st.integers(1, 9))
    def speculate(self, drafter: str | None, most_drafts: int) -> None:
        self._open(None if drafter is None else drafting_of(DRAFTERS[drafter], most_drafts))

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(1, 20),
        stop=st.frozensets(st.integers(0, 49), max_size=4),
        priority=st.integers(0, 1),
        min_tokens=st.integers(0, 6),
        sample=st.sampled_from([SampleParams(), SampleParams(repetition=1.2, logprobs=1)]),
        prompt_logprobs=st.none() | st.integers(0, 2),
        awaits=st.booleans(),
    )
    def add_generate(
        self,
        prompt: list[int],
        max_tokens: int,
        stop: frozenset[int],
        priority: int,
        min_tokens: int,
        sample: SampleParams,
        prompt_logprobs: int | None,
        awaits: bool,
    ) -> None:
        spec = spec_of(
            f"g{len(self.specs)}",
            prompt,
            max_tokens=max_tokens,
            stop_tokens=stop,
            priority=priority,
            min_tokens=min_tokens,
            sample=sample,
            prompt_logprobs=prompt_logprobs,
        )
        self._add(spec, awaits=awaits)

    @rule(prompt=PROMPTS, awaits=st.booleans())
    def add_prefill(self, prompt: list[int], awaits: bool) -> None:
        self._add(prefill_of(f"p{len(self.specs)}", prompt), awaits=awaits)

    @rule(firsts=st.lists(st.integers(3, 49), min_size=3, max_size=5), length=st.integers(4, 16))
    def add_crowd(self, firsts: list[int], length: int) -> None:
        """Long answers to prompts that share nothing: more than the pool holds at once."""
        for position, first in enumerate(firsts):
            spec = spec_of(
                f"c{len(self.specs)}", [first] * length, max_tokens=20, priority=-(position % 3 == 2)
            )
            self._add(spec, awaits=False)

    @rule(times=st.integers(1, 12))
    def step(self, times: int) -> None:
        for _ in range(times):
            if not self.engine.step_once():
                self._check_why_idle()
                return

    @rule()
    def step_that_fails(self) -> None:
        self.desk.runner.fail_next = True
        self.engine.step_once()
        self.desk.runner.fail_next = False

    @rule()
    def step_with_a_bad_row(self) -> None:
        self.desk.runner.bad_next = True
        self.engine.step_once()
        self.desk.runner.bad_next = False

    @precondition(lambda self: self.specs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self._cancel(data.draw(st.sampled_from(sorted(self.specs))))

    @precondition(lambda self: self.specs)
    @rule(data=st.data())
    def cancel_in_mid_step(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.specs)))
        self.desk.runner.during = lambda: self._cancel(name)
        self.engine.step_once()
        self.desk.runner.during = None

    @precondition(lambda self: self.awaiting)
    @rule(data=st.data(), num_less=st.integers(0, 6))
    def set_aside(self, data: st.DataObject, num_less: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.awaiting)))
        claimed, spec = self.awaiting[name], self.specs[name]
        end = max(claimed + 1, len(spec.tokens) - 1 - num_less)
        try:
            blocks = self.engine.set_aside(name, end)
        except GrantRefused:
            return
        if name in self.aside:
            self.orphans.append(self.aside.pop(name)[0])
        self.aside[name] = (blocks, claimed, end)

    @precondition(lambda self: self.aside)
    @rule(data=st.data())
    def lay(self, data: st.DataObject) -> None:
        """A part of what is awaited; after a part that ends within a block no other can follow."""
        name = data.draw(st.sampled_from(sorted(self.aside)))
        blocks, start, end = self.aside.pop(name)
        self.desk.runner.fill(blocks, self.specs[name].tokens[:end], start)
        if self.engine.lay(name, blocks, end):
            self.awaiting[name] = end
        else:
            assert name not in self.awaiting
            self.orphans.append(blocks)

    @precondition(lambda self: self.awaiting)
    @rule(data=st.data(), num_tokens=st.integers(1, 8))
    def extend(self, data: st.DataObject, num_tokens: int) -> None:
        """By tokens that it would have sampled itself, but never to its end."""
        name = data.draw(st.sampled_from(sorted(self.awaiting)))
        spec = self.specs[name]
        if spec.kind is SequenceKind.PREFILL:
            return
        tokens = expect_tokens(spec, 40)[0][:-1][:num_tokens]
        if tokens and name not in self.aside:
            assert self.engine.extend(name, tokens)
            grown = msgspec.structs.replace(spec, tokens=spec.tokens + tokens)
            self.specs[name] = grown

    @precondition(lambda self: self.specs)
    @rule(data=st.data())
    def freeze(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.specs)))
        self._freeze(name)
        self.engine.step_once()

    @precondition(lambda self: self.specs)
    @rule(data=st.data())
    def freeze_in_mid_step(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.specs)))
        self.desk.runner.during = lambda: self._freeze(name)
        self.engine.step_once()
        self.desk.runner.during = None

    @precondition(lambda self: self.desk.record.frozen)
    @rule(data=st.data())
    def thaw(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.desk.record.frozen)))
        assert self.engine.thaw(name)
        assert not self.engine.thaw(name)
        self.desk.record.frozen.discard(name)

    @precondition(lambda self: self.specs)
    @rule(data=st.data(), first=st.integers(0, 3))
    def pin_sequence(self, data: st.DataObject, first: int) -> None:
        """What is pinned is the KV of its tokens, and stays so whatever becomes of the sequence."""
        name = data.draw(st.sampled_from(sorted(self.specs)))
        kv = self.engine.pin_sequence(name, first)
        if kv is None:
            assert self._is_over(name)
            return
        assert not self._is_over(name)
        whole = self.engine.block_table(name)[:first] + kv.blocks
        num_tokens = min(kv.num_computed, len(whole) * 4) if kv.blocks else 0
        assert self.desk.runner.holds(whole, kv.tokens[:num_tokens])
        assert len(kv.blocks) >= kv.num_computed // 4 - first
        self.pins.append(kv.blocks)

    @precondition(lambda self: self.aside)
    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.aside)))
        blocks, start, end = self.aside.pop(name)
        self.desk.runner.fill(blocks, self.specs[name].tokens[:end], start)
        has_landed = self.engine.land(name, blocks, end)
        assert has_landed == (name in self.awaiting)
        self.awaiting.pop(name, None)
        if not has_landed:
            self.orphans.append(blocks)

    @precondition(lambda self: self.awaiting)
    @rule(data=st.data())
    def recall(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.awaiting)))
        assert self.engine.recall(name)
        assert not self.engine.recall(name)
        del self.awaiting[name]

    @precondition(lambda self: self.orphans)
    @rule()
    def give_back(self) -> None:
        self.engine.give_back(self.orphans.pop())

    @rule(prompt=PROMPTS)
    def pin(self, prompt: list[int]) -> None:
        blocks = self.engine.pin(block_hashes(pack_tokens(prompt), 4, SALT))
        assert self.desk.runner.holds(blocks, prompt[: 4 * len(blocks)])
        self.pins.append(blocks)

    @precondition(lambda self: self.pins)
    @rule()
    def unpin(self) -> None:
        self.engine.unpin(self.pins.pop(0))

    @rule()
    def release(self) -> None:
        for name in self._held():
            spec = self.specs[name]
            assert spec.kind is SequenceKind.PREFILL
            assert self.desk.runner.holds(self.engine.block_table(name), spec.tokens)
            assert self.engine.release(name)
            assert not self.engine.release(name)
            self.released.add(name)

    @invariant()
    def blocks_events_and_kv_are_right(self) -> None:
        for name in self.desk.record.frozen:
            self.awaiting.pop(name, None)
        self.desk.check([block for blocks in self.pins for block in blocks])
        load = self.engine.load()
        assert load.num_frozen == len(self.desk.record.frozen)
        lent = [*self.orphans, *(blocks for blocks, _, _ in self.aside.values())]
        assert load.set_aside_blocks == sum(map(len, lent))
        assert load.total_blocks == load.free_blocks + load.active_blocks + load.set_aside_blocks
        assert (load.num_awaiting, load.num_held) == (len(self.awaiting), len(self._held()))

    @invariant()
    def tokens_are_those_of_the_plainest_loop(self) -> None:
        for name, tokens in self.desk.record.tokens.items():
            if tokens:
                expected, _ = expect_tokens(self.specs[name], 40)
                assert tokens == expected[: len(tokens)]

    @invariant()
    def every_token_comes_with_its_record_and_the_first_with_those_of_the_prompt(self) -> None:
        record = self.desk.record
        for name, tokens in record.tokens.items():
            spec = self.specs[name]
            expected = expect_records(tokens, len(spec.tokens), spec.sample.logprobs)
            assert record.logprobs[name] == expected
            if tokens and spec.wants_scores:
                scores = expect_records(spec.tokens[1:], 1, spec.prompt_logprobs)
                assert record.prompt_logprobs[name] == scores
            else:
                assert record.prompt_logprobs[name] == b""

    def teardown(self) -> None:
        for blocks in [*self.orphans, *(blocks for blocks, _, _ in self.aside.values())]:
            self.engine.give_back(blocks)
        for blocks in self.pins:
            self.engine.unpin(blocks)
        self.desk.step_to_rest()  # one that was asked to freeze in the last step is frozen with the next
        for name in self.desk.record.frozen:
            self.engine.thaw(name)
        for name in self.awaiting:
            self.engine.recall(name)
        self.orphans, self.aside, self.pins, self.awaiting = [], {}, [], {}
        for _ in range(len(self.specs) + 1):  # a round lets at least one held sequence go
            self.desk.step_to_rest()
            self.release()
        self.desk.assert_at_rest()
        record = self.desk.record
        for name in self.specs.keys() - self.gone - record.faults.keys() - self.released:
            assert (record.tokens[name], record.finishes[name]) == expect_tokens(self.specs[name], 40)

    def _open(self, drafting: Drafting | None) -> None:
        self.desk = Desk(small_settings(max_failed_steps=1_000_000), drafting)
        self.engine = self.desk.engine

    def _add(self, spec: SequenceSpec, *, awaits: bool) -> None:
        matched = self.engine.match(spec.tokens, SALT)
        try:
            cached = self.engine.add(spec, await_kv=awaits)
        except Overloaded:
            load = self.engine.load()
            assert load.num_waiting + load.num_awaiting + load.num_held + load.num_frozen >= 8
            return
        assert cached >= matched or spec.wants_scores
        self.specs[spec.sequence] = spec
        if awaits:
            self.awaiting[spec.sequence] = cached

    def _cancel(self, name: str) -> None:
        record, over = self.desk.record, self._is_over(name)
        assert self.engine.cancel(name) is not over
        assert not self.engine.cancel(name)
        if not over:
            self.gone.add(name)
            self.awaiting.pop(name, None)
            record.frozen.discard(name)

    def _freeze(self, name: str) -> None:
        """One that awaited KV awaits it no more, once it is frozen."""
        assert self.engine.freeze(name) is not self._is_over(name)

    def _is_over(self, name: str) -> bool:
        record = self.desk.record
        return name in self.gone | self.released or name in record.finishes or name in record.faults

    def _held(self) -> list[str]:
        return [each for each in self.desk.record.held if each not in self.released | self.gone]

    def _check_why_idle(self) -> None:
        """Nothing to do is an answer only if nobody waits, or blocks are lent out of the engine's hands."""
        load = self.engine.load()
        if load.num_running + load.num_waiting:
            lent = load.set_aside_blocks + sum(map(len, self.pins))
            assert load.num_awaiting + load.num_held + load.num_frozen + lent


EngineMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestEngineMachine = EngineMachine.TestCase
