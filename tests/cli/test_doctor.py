import subprocess
from pathlib import Path

import pytest

from tui import cli, doctor, paths
from tui.engine import probe as probing
from tui.engine.probe import Probe
from tui.exits import DONE, FAILED

Captured = pytest.CaptureFixture[str]
FAST = Probe(backend="CPU, OpenBLAS 1", compiles=True, kernel="kvcore.kernels.cpu")


def states(out: str) -> dict[str, tuple[str, str]]:
    """What was found, by name: its state and text."""
    rows = [line for line in out.splitlines() if not line.startswith(" ")]
    return {line[:18].strip(): (line[18:27].strip(), line[27:]) for line in rows}


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch):
    """Puts what MLX can do here in place of trying it out."""

    def put(probe: Probe) -> None:
        monkeypatch.setattr(doctor, "probe", lambda: probe)

    put(FAST)
    return put


def test_mlx_is_tried_out_in_a_process_of_its_own() -> None:
    probe = probing.probe()
    assert probe.failed is None
    assert probe.backend and probe.backend.startswith(("CPU", "Metal", "CUDA"))


def test_a_broken_mlx_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_, **__) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess([], -6, b"", b"libc++abi: terminating\n")

    monkeypatch.setattr(probing, "engine_environment", dict)
    monkeypatch.setattr(probing.subprocess, "run", killed)
    assert probing.probe().failed == "libc++abi: terminating"


def test_a_machine_where_all_works(found, capsys: Captured) -> None:
    assert cli.main(["doctor"]) == DONE
    said = states(capsys.readouterr().out)
    assert said["back end"] == ("ok", "CPU, OpenBLAS 1")
    assert said["mx.compile"] == ("ok", "works")
    assert said["kernel"] == ("ok", "kvcore.kernels.cpu")
    assert said["memory"][0] == "ok"
    assert said["settings folder"][1].startswith(str(paths.config()))
    assert "textual 8.2.8" in said["versions"][1]
    assert "problem" not in {state for state, _ in said.values()}


def test_what_is_slow_is_a_note_with_its_remedy(found, capsys: Captured) -> None:
    found(Probe(backend="CPU, reference BLAS (slow)", slow=True))
    assert cli.main(["doctor"]) == DONE
    out = capsys.readouterr().out
    assert states(out)["back end"][0] == states(out)["mx.compile"][0] == "note"
    assert states(out)["kernel"][0] == "note"
    assert "OpenBLAS: " in out and "g++" in out


def test_what_keeps_it_from_running_is_a_problem(found, capsys: Captured) -> None:
    found(Probe(failed="no Metal"))
    assert cli.main(["doctor"]) == FAILED
    assert states(capsys.readouterr().out)["MLX"] == ("problem", "no Metal")


def test_broken_settings_are_a_problem(found, capsys: Captured) -> None:
    paths.config().mkdir(parents=True)
    paths.settings().write_text("them = 1")
    assert cli.main(["doctor"]) == FAILED
    assert "line 1: them" in states(capsys.readouterr().out)["settings"][1]


def test_a_folder_that_cannot_be_written(
    found, capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(paths, "sessions", lambda: tmp_path / "file" / "sessions")
    assert cli.main(["doctor"]) == FAILED
    assert states(capsys.readouterr().out)["sessions folder"][0] == "problem"


def test_terminals(found, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("TMUX", "x")
    monkeypatch.setenv("SSH_CONNECTION", "x")
    cli.main(["doctor"])
    said = states(capsys.readouterr().out)
    assert said["terminal"][0] == "note" and "TERM=dumb" in said["terminal"][1]
    assert said["colours"][1] == "none, as NO_COLOR asks; theme: mono"
    assert said["characters"] == ("note", "ASCII")
    assert said["inside"][1] == "tmux"
    assert "SSH" in said["connection"][1]


@pytest.mark.parametrize(
    ("name", "state", "words"),
    [
        ("smollm2", "note", "first start"),
        ("made", "ok", "made-1"),
        ("owner/name", "ok", "models--owner--name"),
        ("./no/such", "problem", "there is no"),
        ("/", "ok", "on this machine"),
    ],
)
def test_models(name: str, state: str, words: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for folder in (
        paths.models() / "made-1",
        tmp_path / "hub" / "models--owner--name" / "snapshots" / "1",
    ):
        folder.mkdir(parents=True)
        (folder / "config.json").touch()
    finding = doctor._model(name)
    assert finding.state == state and words in finding.text
