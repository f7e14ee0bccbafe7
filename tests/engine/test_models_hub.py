"""Models of the Hugging Face hub, with a hub that answers what the test says."""

import threading
from types import SimpleNamespace

import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from tui.engine import hub
from tui.engine.errors import LoadStopped, ModelError


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mlx-community/Llama-3.2-1B-Instruct-4bit", True),
        ("a/b", True),
        ("./a/b", False),
        ("/a/b", False),
        ("~/b", False),
        ("../b", False),
        ("a", False),
        ("a/b/c", False),
        ("a/b.gguf", False),
        ("a/b c", False),
        ("", False),
    ],
)
def test_ids(name, expected):
    assert hub.is_id(name) is expected


def answering(status: int) -> SimpleNamespace:
    return SimpleNamespace(status_code=status, headers={}, request=None)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (GatedRepoError("x", response=answering(403)), "licence"),
        (RepositoryNotFoundError("x", response=answering(404)), "no model 'a/b'"),
        (LocalEntryNotFoundError("x"), "cannot be reached"),
        (HfHubHTTPError("x", response=answering(503)), "503"),
    ],
)
def test_errors_become_sentences(monkeypatch, error, words):
    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(ModelError, match=words) as caught:
        hub.fetch("a/b", lambda done, total: None)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def download(name: str, *, tqdm_class: type, **_: object) -> str:
    """Drives its bars as the hub's library does: files in one, bytes in another, from threads."""
    files = tqdm_class(total=2)
    content = tqdm_class(total=0, unit="B", unit_scale=True, mininterval=0)
    for size in (100, 300):
        content.total += size
        worker = threading.Thread(target=content.update, args=(size,))
        worker.start()
        worker.join()
        files.update(1)
    content.update(0)
    return f"/hub/{name}"


def test_bytes_are_counted_and_nothing_is_drawn(monkeypatch, capfd):
    monkeypatch.setattr(hub, "snapshot_download", download)
    heard = []
    folder = hub.fetch("a/b", lambda done, total: heard.append((done, total)))
    assert str(folder) == "/hub/a/b"
    assert heard[0] == (100, 100) and heard[-1] == (400, 400)
    assert capfd.readouterr() == ("", "")


def test_a_stop_leaves_no_lock_behind(monkeypatch):
    def fetch_in_this_thread(name: str, *, tqdm_class: type, **_: object) -> str:
        tqdm_class(total=10, unit="B", mininterval=0).update(5)
        return name

    def stop(done: int, total: int | None) -> None:
        raise LoadStopped("Stopped.")

    monkeypatch.setattr(hub, "snapshot_download", fetch_in_this_thread)
    with pytest.raises(LoadStopped):
        hub.fetch("a/b", stop)
    monkeypatch.setattr(hub, "snapshot_download", download)
    assert str(hub.fetch("a/b", lambda done, total: None)) == "/hub/a/b"
