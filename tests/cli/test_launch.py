"""How the app is opened, with an app in its place that only remembers."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tui import cli, launch, paths, sessions
from tui.engine import client
from tui.exits import DONE, FAILED, USAGE
from tui.messages import Setup, Turn
from tui.settings import Settings

Captured = pytest.CaptureFixture[str]


class App:
    """`return_code` is what the next one ends with."""

    opened: "App"
    return_code: int | None = 0

    def __init__(
        self, setup: Setup, settings: Settings, connect: Callable[[Setup], Awaitable[Any]]
    ) -> None:
        self.setup, self.settings, self.connect = setup, settings, connect
        App.opened = self

    def run(self) -> None:
        pass


@pytest.fixture(autouse=True)
def app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tui.app", SimpleNamespace(VeloxquantApp=App))
    monkeypatch.setattr(launch, "_terminal", lambda: True)
    monkeypatch.setattr(App, "return_code", 0)
    for variable in ("TEXTUAL_FPS", "TEXTUAL_THEME", "TEXTUAL_ANIMATIONS"):
        # Set first, so that what the guard sets is taken back.
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)


def test_a_model_and_flags_reach_the_app() -> None:
    assert cli.main(["./model", "--theme", "day", "--kv-limit", "200M"]) == DONE
    assert App.opened.settings.theme == "day"
    assert App.opened.setup.model == "./model"
    assert App.opened.setup.limits.kv == 200 << 20
    assert Path(App.opened.setup.session or "").parent == paths.sessions()


def test_a_chat_goes_on() -> None:
    path = sessions.path_of("work")
    sessions.append(path, (Turn("user", "one"),))
    for argv in (["--continue"], ["--session", "work"]):
        assert cli.main(argv) == DONE
        assert App.opened.setup.session == str(path)
        assert App.opened.setup.turns == (Turn("user", "one"),)


def test_continue_without_a_chat_starts_one() -> None:
    assert cli.main(["--continue"]) == DONE
    assert App.opened.setup.turns == ()


def test_attach_goes_back_once_and_then_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def attach(path: Path) -> str:
        return f"attached to {path}"

    async def start(setup: Setup, log: Path) -> str:
        return f"started {setup.model}, log {log}"

    monkeypatch.setattr(client, "EngineClient", SimpleNamespace(attach=attach, start=start))
    monkeypatch.setattr(launch, "running_engines", lambda: [Path("new"), Path("old")])
    assert cli.main(["--attach"]) == DONE
    said = [asyncio.run(_connected()) for _ in range(2)]
    assert said == ["attached to new", f"started tiny, log {paths.log()}"]


async def _connected() -> str:
    return await App.opened.connect(Setup(model="tiny"))


def test_attach_without_an_engine(capsys: Captured) -> None:
    assert cli.main(["--attach"]) == USAGE
    assert "No engine is running" in capsys.readouterr().err


def test_an_app_that_fails_says_where_to_look(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(App, "return_code", 1)
    assert cli.main([]) == FAILED
    assert str(paths.log()) in capsys.readouterr().err
    monkeypatch.setattr(App, "return_code", 129)
    assert cli.main([]) == 129


@pytest.mark.parametrize(
    ("term", "terminal", "drawable"),
    [("xterm", True, True), ("dumb", True, False), ("", True, False), ("xterm", False, False)],
)
def test_what_counts_as_a_terminal(
    term: str, terminal: bool, drawable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("TERM", term)
    for name in ("stdin", "stdout"):
        monkeypatch.setattr(sys, name, SimpleNamespace(isatty=lambda: terminal, flush=str))
    assert launch._terminal() is drawable
