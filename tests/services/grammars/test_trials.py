"""Constraints are tried where they can hurt nobody, once each, whatever the one before did."""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from proto.constraints import Constraint, ConstraintKind
from proto.errors import InvalidRequest
from services.grammars.trials import TRIAL_CPU_S, Trials, open_trials
from tests.frontend.text.tokenizers import byte_level, saved
from tests.services.grammars.walks import byte_writer

GOOD = Constraint("regex", "[ab]+")
BAD = Constraint("regex", "(", field="guided_regex")
ENDLESS = Constraint(
    "json_schema",
    json.dumps({"type": "string", "allOf": [{"pattern": f"w{number}"} for number in range(40)]}),
    field="guided_json",
)
SCRAPS = [
    *("start: ", "root ::= ", '"a"', "/[a-z]+/", "(", ")", "|", "*", "{1,3}", "x", "\nx: x", '"', "/", "\\"),
    *(
        '%json {"type": "object"}',
        "%ignore /x/",
        "&",
        "~",
        "[lazy]",
        "<|end|>",
        "<[5]>",
        "%regex {",
        "}",
        "//",
    ),
    *(
        '{"',
        'type": "',
        'object"',
        "}",
        "[",
        "]",
        ",",
        '"$ref": "#"',
        '"pattern": "(a|b)*"',
        "null",
        "1e999",
        "é",
    ),
]
LIMIT_S = 60.0


def with_trials(body: Callable[[Trials], Awaitable[None]], cpu_s: int = TRIAL_CPU_S) -> None:
    async def life() -> None:
        async with asyncio.timeout(LIMIT_S), open_trials(cpu_s=cpu_s) as trials:
            await body(trials)

    asyncio.run(life())


async def refusal(trials: Trials, constraint: Constraint) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        await trials.check(constraint)
    assert caught.value.values["field"] == constraint.field
    return caught.value


def test_what_is_good_is_taken_and_what_is_bad_refused_with_the_librarys_reason() -> None:
    async def body(trials: Trials) -> None:
        for _ in range(2):
            await trials.check(GOOD)
            assert "unclosed group" in str(await refusal(trials, BAD))

    with_trials(body)


def test_a_verdict_is_kept() -> None:
    async def body(trials: Trials) -> None:
        await trials.check(GOOD)
        await trials.close()
        await trials.check(GOOD)
        assert not trials.is_running, "nobody was asked again"

    with_trials(body)


def test_a_trial_over_a_models_tokens_knows_its_special_ones(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(saved(byte_level()))
    ends = Constraint("grammar", 'start: "a" <|end|>')
    nobody = Constraint("grammar", "start: <|nobody|>")

    async def body() -> None:
        async with asyncio.timeout(LIMIT_S), open_trials(path, byte_writer().vocab_size, [0]) as trials:
            await trials.check(ends)
            assert "unknown special token" in str(await refusal(trials, nobody))

    asyncio.run(body())


def test_what_would_compile_for_ever_is_refused_and_the_next_is_tried() -> None:
    async def body(trials: Trials) -> None:
        assert "more than 1 s" in str(await refusal(trials, ENDLESS))
        await trials.check(GOOD)
        assert "more than 1 s" in str(await refusal(trials, ENDLESS)), "and that is known from now on"

    with_trials(body)


def test_a_caller_that_leaves_in_mid_trial_leaves_no_verdict_to_another() -> None:
    async def body(trials: Trials) -> None:
        await trials.check(GOOD)
        leaving = asyncio.create_task(trials.check(ENDLESS), name="leaving")
        await asyncio.wait([leaving], timeout=0.2)
        leaving.cancel()
        assert "unclosed group" in str(await refusal(trials, BAD))
        assert leaving.cancelled()

    with_trials(body)


def test_others_are_tried_beside_what_would_compile_for_ever_however_many_ask_for_it() -> None:
    async def body(trials: Trials) -> None:
        endless = [asyncio.create_task(trials.check(ENDLESS), name=f"{number}") for number in range(3)]
        await asyncio.wait(endless, timeout=0)
        await trials.check(GOOD)
        assert "unclosed group" in str(await refusal(trials, BAD))
        assert not any(each.done() for each in endless)
        for each in endless:
            each.cancel()
        await asyncio.wait(endless)

    with_trials(body, cpu_s=50)


def test_many_that_ask_at_once_each_get_their_own_verdict() -> None:
    async def body(trials: Trials) -> None:
        good = [Constraint("regex", f"a{{{number}}}") for number in range(1, 20)]
        bad = [Constraint("regex", "(" * number) for number in range(1, 20)]
        asked = [trials.check(constraint) for pair in zip(good, bad, strict=True) for constraint in pair]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [isinstance(each, InvalidRequest) for each in found] == [False, True] * 19

    with_trials(body)


def test_whatever_is_asked_there_is_a_verdict_and_no_process_dies_of_it() -> None:
    chosen = Random(7)

    def scrap() -> str:
        return "".join(chosen.choice(SCRAPS) for _ in range(chosen.randint(1, 12)))

    async def body(trials: Trials) -> None:
        await trials.check(GOOD)
        child = children()
        kinds: list[ConstraintKind] = ["json_schema", "regex", "choice", "grammar"]
        asked = [Constraint(kind, scrap()) for _ in range(100) for kind in kinds]
        for constraint in asked:
            try:
                await trials.check(constraint)
            except InvalidRequest as error:
                assert error.values["reason"]
        assert children() == child

    with_trials(body)


def test_a_process_that_somebody_killed_is_replaced() -> None:
    before = children()

    async def body(trials: Trials) -> None:
        await trials.check(GOOD)
        (child,) = children() - before
        os.kill(child, signal.SIGKILL)
        await trials.check(Constraint("regex", "[cd]+"))

    with_trials(body)


def test_no_process_is_left_behind() -> None:
    before = children()

    async def body(trials: Trials) -> None:
        await trials.check(GOOD)
        assert len(children() - before) == 1

    with_trials(body)
    assert children() == before


def children() -> set[int]:
    """The processes that this one has started and not reaped."""
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))
