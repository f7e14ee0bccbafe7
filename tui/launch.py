"""`veloxquant-tui [MODEL]`: the app, or `ask` where there is no terminal to draw on."""

import argparse
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from tui import ask, guard, paths, sessions
from tui.arguments import (
    Parser,
    UsageError,
    add_log,
    add_session,
    add_settings,
    read_log,
    read_session,
    read_settings,
)
from tui.cli import COMMANDS
from tui.engine.endpoint import running_engines
from tui.exits import DONE, FAILED
from tui.messages import Setup
from tui.settings import Settings

if TYPE_CHECKING:
    from tui.engine.client import EngineClient


def main(argv: Sequence[str]) -> int:
    parser = _parser()
    args = parser.read(argv)
    _take_model(args)
    if not _terminal():
        print("No terminal to draw on: answering as `veloxquant-tui ask`.", file=sys.stderr)
        return ask.answer(args, "")
    log = read_log(args)
    settings = read_settings(args)
    if args.attach:
        return _open(settings.setup(), settings, log, _running_engine())
    session = read_session(args) or sessions.Session(sessions.new_path())
    return _open(settings.setup(session.path, session.turns), settings, log)


def _parser() -> Parser:
    width = max(map(len, COMMANDS))
    commands = (f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items())
    parser = Parser(
        "",
        "Chat with a local MLX model, beside what it costs in memory.",
        epilog="\n".join(("commands, each with its own --help:", *commands)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("given", metavar="MODEL", nargs="?", help="the same as --model MODEL")
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {version('veloxquant-tui')}"
    )
    add_session(parser).add_argument(
        "--attach", action="store_true", help="go back to an engine that is still running"
    )
    add_settings(parser)
    add_log(parser)
    return parser


def _take_model(args: argparse.Namespace) -> None:
    """Puts MODEL where --model goes. Raises UsageError for what is rather a command."""
    given = args.given
    if given is None:
        return
    if given in COMMANDS:
        raise UsageError(f"A command comes first: veloxquant-tui {given} …")
    if args.model is not None:
        raise UsageError(f"The model is given twice, {given!r} and {args.model!r}: leave one out.")
    near = get_close_matches(given, COMMANDS, n=1, cutoff=0.75)
    if near and not Path(given).exists():
        raise UsageError(
            f"There is no command {given!r}; did you mean {near[0]!r}? "
            f"If it is a model: veloxquant-tui --model {given}"
        )
    args.model = given


def _terminal() -> bool:
    streams = (sys.stdin, sys.stdout)
    drawable = os.environ.get("TERM", "dumb") not in ("dumb", "")
    return drawable and all(stream is not None and stream.isatty() for stream in streams)


def _running_engine() -> Path:
    """The socket of the engine that was started last. Raises UsageError where none runs."""
    for path in running_engines():
        return path
    raise UsageError("No engine is running: go on with its chat by `veloxquant-tui --continue`.")


def _open(setup: Setup, settings: Settings, log: Path, running: Path | None = None) -> int:
    """Opens the app on a `running` engine, else on one of its own; the app's exit code."""
    guard.environment(settings.fps)
    connect = _connector(log, running)
    with guard.remembered_terminal(paths.state()), guard.private_terminal(log):
        # Not before the guard: textual reads the environment and the terminal at import.
        from tui.app import VeloxquantApp

        app = VeloxquantApp(setup, settings, connect)
        guard.spare_the_collector()
        app.run()
    if app.return_code == FAILED:
        # Textual has written the traceback to what was its standard error then.
        sentence = f"The app failed, and {log} says where; --attach goes back to the chat."
        print(f"veloxquant-tui: {sentence}", file=sys.stderr)
    return app.return_code or DONE


def _connector(log: Path, running: Path | None) -> "Callable[[Setup], Awaitable[EngineClient]]":
    """The app asks for a new client when its engine has ended: that is one of its own then."""
    first = [running] if running is not None else []

    async def connect(setup: Setup) -> "EngineClient":
        from tui.engine.client import EngineClient

        if first:
            return await EngineClient.attach(first.pop())
        return await EngineClient.start(setup, log=log)

    return connect
