import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from proto.errors import Disconnected, InvalidSetting
from services.models.hub import download_from_hub

_COMMIT = "a" * 40
_FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"x",
    "model-00001-of-00001.safetensors": b"weights",
    "consolidated.safetensors": b"the same weights under their authors' names",
    "pytorch_model.bin": b"a pickle",
    "modeling_tiny.py": b"import os",
    "tokenizer.pkl": b"a pickle",
    "original/params.json": b"{}",
}


class _Hub(BaseHTTPRequestHandler):
    """As much of the hub's protocol as a download of one model needs."""

    asked: set[str]
    dies_at: str

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        name = path.removeprefix(f"/org/tiny/resolve/{_COMMIT}/")
        if path.startswith("/api/models/org/tiny"):
            body = self._listing(path)
        elif name == self.dies_at:
            self.connection.close()
            return
        elif name in _FILES:
            self.asked.add(name)
            body = _FILES[name]
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"}, with_body)
            return
        etag = hashlib.sha256(body).hexdigest()
        self._send(200, body, {"ETag": f'"{etag}"', "X-Repo-Commit": _COMMIT}, with_body)

    def _listing(self, path: str) -> bytes:
        if "/tree/" in path:
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in _FILES.items()
            ]
            return json.dumps(tree).encode()
        siblings = [{"rfilename": name} for name in _FILES]
        return json.dumps({"id": "org/tiny", "sha": _COMMIT, "siblings": siblings}).encode()

    def _send(self, status: int, body: bytes, headers: dict[str, str], with_body: bool) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        """Quiet."""


@contextmanager
def _hub(dies_at: str = "") -> Iterator[tuple[str, set[str]]]:
    asked: set[str] = set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Hub", (_Hub,), {"asked": asked, "dies_at": dies_at}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def test_json_safetensors_and_templates_are_fetched_and_nothing_that_runs_code() -> None:
    with _hub() as (endpoint, asked):
        folder = download_from_hub("org/tiny", endpoint)
    wanted = {"config.json", "tokenizer.json", "chat_template.jinja", "model-00001-of-00001.safetensors"}
    assert {path.name for path in folder.iterdir()} == wanted
    assert asked == wanted


def test_a_model_that_was_fetched_is_there_without_the_hub() -> None:
    with _hub() as (endpoint, _):
        first = download_from_hub("org/tiny", endpoint)
    assert download_from_hub("org/tiny", endpoint) == first


def test_a_name_that_the_hub_lacks_is_refused() -> None:
    with _hub() as (endpoint, _), pytest.raises(InvalidSetting, match="org/other"):
        download_from_hub("org/other", endpoint)


def test_a_hub_that_dies_between_listing_and_file_is_out_of_reach() -> None:
    with _hub(dies_at="config.json") as (endpoint, _), pytest.raises(Disconnected, match="model hub"):
        download_from_hub("org/tiny", endpoint)


def test_a_hub_out_of_reach_is_no_fault_of_the_caller() -> None:
    with pytest.raises(Disconnected, match="model hub"):
        download_from_hub("org/tiny", "http://127.0.0.1:1")
