"""One demonstration: a mesh, a load that swings, and a view, until told to end."""

import asyncio
from itertools import cycle
from pathlib import Path

import msgspec
from rich.console import Console

from proto.names import new_id
from services.demo.scene import Scene, open_scene
from services.demo.show import show_scene
from services.demo.stage import StagePlan, open_stage
from services.demo.swing import ANSWERS, LIMITS, PROMPTS, Mix, swing
from services.launcher.narrator import Narrator
from services.launcher.plan import model_argument
from services.launcher.state import lock_state
from services.logs import LogSettings, set_up_logs
from services.models.folder import resolve_model
from services.process import run_process
from services.replay.http_call import Server, parse_url
from services.replay.player import Pace, Player
from services.replay.prompts import PromptMaker
from services.replay.report import Limits
from services.replay.served_model import find_model
from services.replay.session import VOCAB_SIZE
from services.tasks import open_tasks

MIXES = (PROMPTS, ANSWERS)


def run_demo(plan: StagePlan, phase_s: float, seconds: float | None, console: Console) -> int:
    """Shows until told to end, or for so many seconds; the exit code. Belongs on the main thread.

    Raises:
        InvalidSetting: the state folder or the model cannot be had.
        Disconnected, DeadlineExceeded: the model could not be fetched.
    """
    narrator = Narrator(console)
    with lock_state(plan.state_dir):
        logs = LogSettings(file=plan.state_dir / "logs" / "demo.log")
        set_up_logs(logs, "launcher", f"demo-{new_id()}")
        if not Path(plan.model).is_dir():
            with narrator.bars() as progress:
                resolve_model(plan.model, progress)
        plan = msgspec.structs.replace(plan, model=model_argument(plan.model))
        return run_process(Demo(plan, narrator, phase_s, seconds).run, drain_limit_s=0)


class Demo:
    """One run: a mesh, a load and a view."""

    def __init__(self, plan: StagePlan, narrator: Narrator, phase_s: float, seconds: float | None) -> None:
        self._plan = plan
        self._narrator = narrator
        self._phase_s = phase_s
        self._seconds = seconds

    async def run(self, shutdown: asyncio.Event) -> None:
        """Until `shutdown` is set, or its time is over."""
        speed = self._plan.speed
        limits = Limits(ttft_s=LIMITS.ttft_s / speed, itl_s=LIMITS.itl_s / speed)
        async with open_stage(self._plan, self._narrator) as mesh, open_scene(mesh, MIXES[0]) as scene:
            self._narrator.say(f"see also: kvmesh status --state {self._plan.state_dir}; Ctrl-C ends")
            if self._seconds is not None:
                asyncio.get_running_loop().call_later(self._seconds, shutdown.set)
            async with open_tasks() as tasks:
                playing = tasks.create_task(self._play(scene, parse_url(mesh.url)), name="load")
                await show_scene(scene, self._narrator.console, limits, shutdown)
                playing.cancel()
        self._narrator.say("all processes have ended")

    async def _play(self, scene: Scene, server: Server) -> None:
        """By turns, for ever. Who still waits when the load changes is served on.

        Cancel: all requests are.
        """
        model = await find_model(server, "")
        async with open_tasks() as tasks:
            for number, mix in enumerate(cycle(MIXES)):
                scene.mix = mix
                prompts = PromptMaker(model.vocab_size or VOCAB_SIZE, seed=number)
                player = Player(server, model.id, prompts, Pace(speed=self._plan.speed))
                tasks.create_task(self._play_phase(player, mix, number), name=f"phase {number}")
                await asyncio.sleep(self._phase_s)

    async def _play_phase(self, player: Player, mix: Mix, number: int) -> None:
        trace = swing((mix,), self._phase_s * self._plan.speed, seed=number)
        if trace:
            await player.play(trace)
