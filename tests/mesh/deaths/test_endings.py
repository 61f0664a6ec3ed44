"""The whole mesh is ended in mid-stream: its clients are told."""

import signal
from pathlib import Path

from tests.mesh.deaths.mortal_mesh import TIMES
from tests.mesh.running_mesh import run_mesh
from tests.tiny_model import write_tiny_llama


def test_a_mesh_that_is_ended_in_mid_stream_tells_its_clients(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "tiny")
    with run_mesh(
        tmp_path / "state", str(model), "--engine", "simulated", "--prefill", "0", environ=TIMES
    ) as mesh:
        mesh.wait_until("it is ready", lambda: "ready after" in mesh.output(), 60)
        body = {"model": "tiny", "prompt": "once", "max_tokens": 1500, "stream": True, "ignore_eos": True}
        with mesh.http.stream("POST", "/v1/completions", json=body) as response:
            lines = (line for line in response.iter_lines() if line)
            next(lines)
            mesh.process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert '"error"' in rest[-2]
        assert rest[-1] == "data: [DONE]"
        assert mesh.process.wait(10) == 0
        logs = "".join(log.read_text() for log in (mesh.state / "logs").glob("*.log"))
        assert "Traceback" not in logs
        assert "code=-9" not in logs
