"""`veloxquant-tui doctor`: what works here, what does not, and what to do about it."""

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from kvcore.memory.read import read_sample
from tui import figures, guard, paths, settings, themes
from tui.arguments import Parser
from tui.engine.blas import how_to_get
from tui.engine.endpoint import running_engines
from tui.engine.probe import probe
from tui.exits import DONE, FAILED
from tui.settings import SettingsError
from tui.themes import ThemeError

State = Literal["ok", "note", "problem"]

SMALLEST = (80, 24)
ROOM = 1 << 30
"""Bytes that the built-in model takes while it is made: its wheel, and what it is converted to."""
LIBRARIES = ("mlx", "mlx-lm", "numpy", "textual", "msgspec", "numba", "transformers")


@dataclass(frozen=True)
class Finding:
    """`todo` says what would mend it. A "problem" keeps the program from running."""

    what: str
    state: State
    text: str
    todo: str = ""


def main(argv: Sequence[str]) -> int:
    Parser("doctor", "What works here, what does not, and what to do about it.").read(argv)
    problems = 0
    for finding in (*_computing(), *_sensors(), *_terminal(), *_files(), *_versions()):
        print(f"{finding.what:<18}{finding.state:<9}{finding.text}", flush=True)
        if finding.todo:
            print(f"{'':<27}{finding.todo}")
        problems += finding.state == "problem"
    return FAILED if problems else DONE


def _computing() -> Iterator[Finding]:
    found = probe()
    if found.failed is not None:
        yield Finding("MLX", "problem", found.failed, "Install MLX anew: pip install mlx")
        return
    todo = f"Prefill is about twenty times faster with OpenBLAS: {how_to_get()}"
    yield Finding(
        "back end",
        "note" if found.slow else "ok",
        found.backend or figures.UNKNOWN,
        todo if found.slow else "",
    )
    if found.compiles:
        yield Finding("mx.compile", "ok", "works")
    elif found.compile_failed is not None:
        yield Finding("mx.compile", "problem", found.compile_failed, "Install g++ with its headers")
    else:
        yield Finding(
            "mx.compile",
            "note",
            "there is no compiler: operations are not fused",
            "Attention gets faster with g++: apt install g++",
        )
    kernel = found.kernel or "none for this processor: MLX operations attend on the codes"
    yield Finding("kernel", "ok" if found.kernel else "note", kernel)


def _sensors() -> Iterator[Finding]:
    sample = read_sample()
    known = sample.available is not None and sample.total is not None
    yield Finding(
        "memory",
        "ok" if known else "problem",
        f"{figures.size(sample.available)} available of {figures.size(sample.total)}",
        "" if known else "The watchdog needs to know what is left; is /proc mounted?",
    )
    yield Finding(
        "pressure",
        "note" if sample.level is None else "ok",
        f"{sample.level or figures.UNKNOWN}, from {sample.level_source or 'nowhere'}",
    )
    yield Finding("swap", "ok", f"{figures.size(sample.swap_used)} in use")
    missing = [
        name
        for name, value in asdict(sample).items()
        if value is None and name in ("compressed", "cached", "process", "swap_used")
    ]
    if missing:
        yield Finding("not measured", "note", ", ".join(missing))


def _terminal() -> Iterator[Finding]:
    term = os.environ.get("TERM", "")
    if not sys.stdout.isatty() or term in ("", "dumb"):
        text = f"none to draw on (TERM={term or 'unset'}); the app answers as `ask`"
        yield Finding("terminal", "note", text)
    else:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
        fits = columns >= SMALLEST[0] and rows >= SMALLEST[1]
        yield Finding(
            "terminal",
            "ok" if fits else "note",
            f"{term}, {columns}x{rows}",
            "" if fits else f"Panels fit from {SMALLEST[0]}x{SMALLEST[1]} on",
        )
    yield Finding("colours", "ok", f"{_colours()}; theme: {themes.automatic()}")
    if guard.unicode_terminal():
        yield Finding("characters", "ok", "Unicode")
    else:
        yield Finding("characters", "note", "ASCII", "For finer bars: export LANG=C.UTF-8")
    if guard.over_ssh():
        yield Finding("connection", "ok", "SSH: fewer frames a second, no animations")
    for variable, name in (("TMUX", "tmux"), ("STY", "screen")):
        if variable in os.environ:
            yield Finding("inside", "ok", name)


def _colours() -> str:
    if "NO_COLOR" in os.environ:
        return "none, as NO_COLOR asks"
    if os.environ.get("COLORTERM") in ("truecolor", "24bit"):
        return "24 bit"
    return "16" if guard.few_colours() else "256"


def _files() -> Iterator[Finding]:
    for what, folder in (
        ("settings folder", paths.config()),
        ("models folder", paths.models()),
        ("sessions folder", paths.sessions()),
        ("sockets folder", paths.runtime()),
    ):
        yield _folder(what, folder)
    try:
        chosen = settings.load()
        themes.load_theme(chosen.theme)
    except (SettingsError, ThemeError) as error:
        yield Finding("settings", "problem", str(error))
    else:
        state = "read" if paths.settings().exists() else "none yet; everything is as shipped"
        yield Finding("settings", "ok", f"{paths.settings()}: {state}")
        yield _model(chosen.model)
    engines = running_engines()
    yield Finding("running engines", "ok", ", ".join(map(str, engines)) or "none")


def _folder(what: str, folder: Path) -> Finding:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
        free = shutil.disk_usage(existing).free
    except OSError as error:
        todo = f"Make {existing} writable, or choose another folder with XDG_*_HOME"
        return Finding(what, "problem", f"{folder}: {error.strerror}", todo)
    text = f"{folder}, {figures.size(free)} free"
    if what == "models folder" and free < ROOM:
        return Finding(what, "note", text, f"Models need room: {figures.size(ROOM)} and more")
    return Finding(what, "ok", text)


def _model(name: str) -> Finding:
    if Path(name).expanduser().exists():
        return Finding("model", "ok", f"{name} is on this machine")
    if name.startswith(("/", "./", "../", "~")):
        return Finding("model", "problem", f"there is no {name}", "Set another model")
    made = paths.models().glob(f"{name.replace('/', '--')}-*/config.json")
    fetched = _hub().glob(f"models--{name.replace('/', '--')}/snapshots/*/config.json")
    for config in (*made, *fetched):
        return Finding("model", "ok", f"{name}: {config.parent}")
    return Finding("model", "note", f"{name} is fetched at the first start")


def _hub() -> Path:
    """Where huggingface_hub keeps what it fetched; to import it would take seconds."""
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    return Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()


def _versions() -> Iterator[Finding]:
    found = [f"Python {platform.python_version()}"]
    for name in ("veloxquant-tui", *LIBRARIES):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"no {name}")
    yield Finding("system", "ok", platform.platform())
    yield Finding("versions", "ok", ", ".join(found))
