"""A run: one trace played to each server in turn, so that they can be compared."""

from collections.abc import Callable, Sequence

import msgspec

from services.replay.http_call import Server
from services.replay.player import Pace, Player
from services.replay.prompts import PromptMaker
from services.replay.reading import Reading
from services.replay.report import Limits, Report, make_report
from services.replay.served_model import find_model
from services.replay.trace import TraceRequest

VOCAB_SIZE = 32000


class Target(msgspec.Struct, frozen=True):
    """A server and what it is called in the report. `model` empty: the first that it serves."""

    label: str
    server: Server
    model: str = ""


class Terms(msgspec.Struct, frozen=True):
    """What is the same for every server. `vocab_size` 0: what each says, else 32000."""

    pace: Pace = Pace()
    limits: Limits = Limits()
    seed: int = 0
    vocab_size: int = 0


class Played(msgspec.Struct, frozen=True):
    """What one server made of the trace."""

    report: Report
    readings: list[Reading]
    speed: float


async def play_all(
    trace: Sequence[TraceRequest],
    targets: Sequence[Target],
    terms: Terms,
    tell: Callable[[str], None],
) -> list[Played]:
    """One after the other, with the same prompts. `tell` hears what begins.

    Raises:
        KvmeshError: one of the servers is not there, or does not serve the model; nothing was played then.
    """
    models = [await find_model(target.server, target.model) for target in targets]
    played = []
    for target, model in zip(targets, models, strict=True):
        prompts = PromptMaker(terms.vocab_size or model.vocab_size or VOCAB_SIZE, terms.seed)
        player = Player(target.server, model.id, prompts, terms.pace)
        tell(f"playing {len(trace)} requests to {target.label}: {model.id}")
        readings = await player.play(trace)
        report = make_report(target.label, readings, terms.limits, terms.pace.speed)
        played.append(Played(report, readings, terms.pace.speed))
    return played
