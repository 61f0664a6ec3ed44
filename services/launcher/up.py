"""`kvmesh up`: what is checked and fetched before anything starts, then one launch."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from proto.errors import InvalidSetting
from proto.names import new_id
from services.launcher.devices import this_machine
from services.launcher.launch import Launch
from services.launcher.narrator import Narrator
from services.launcher.plan import plan_places
from services.launcher.state import lock_state
from services.launcher.up_settings import UpSettings
from services.logs import LogSettings, set_up_logs
from services.models.folder import resolve_model
from services.process import run_process


def run_up(settings: UpSettings, config: Path | None, console: Console) -> int:
    """Serves until told to end; the exit code. Belongs on the main thread.

    Raises:
        InvalidSetting: something asked for cannot be: a device, a port, the state folder, the model.
        Disconnected, DeadlineExceeded: the model could not be fetched.
    """
    narrator = Narrator(console)
    state_dir = Path(settings.state)
    places = plan_places(settings, this_machine())
    with lock_state(state_dir):
        check_port_is_free(settings.host, settings.port)
        set_up_logs(LogSettings(file=state_dir / "logs" / "launcher.log"), "launcher", f"launcher-{new_id()}")
        with _sigterm_interrupts(), narrator.bars() as progress:
            model = resolve_model(settings.model, progress)
        narrator.say(f"model {model.name}: {model.path}")
        launch = Launch(settings, places, model.name, config, narrator)
        return run_process(launch.run, drain_limit_s=0)


def check_port_is_free(host: str, port: int) -> None:
    """
    Raises:
        InvalidSetting: somebody listens on it, or nobody can.
    """
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error
        raise InvalidSetting(setting="up.port", reason=f"{host}:{port} cannot be had: {why}") from error


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """SIGTERM ends the body as Ctrl-C does, so that a download in progress is ended too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
