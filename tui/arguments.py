"""What several commands take: flags for every setting, and for the chat to go on with."""

import argparse
import logging
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from tui import paths, sessions, settings
from tui.sessions import Session
from tui.settings import Settings
from tui.themes import load_theme

SHORT = {"temperature": "--temp"}
METAVARS = {
    "theme": "T",
    "model": "MODEL",
    "system": "TEXT",
    "temperature": "X",
    "top_p": "X",
    "method": "M",
    "artefact": "FOLDER",
    "memory_limit": "SIZE",
    "kv_limit": "SIZE",
    "policy": "P",
}


class UsageError(Exception):
    """One sentence: what in the command line is wrong, what to write instead."""


class Parser(argparse.ArgumentParser):
    """Raises UsageError where argparse would print and leave."""

    def __init__(self, command: str, description: str, **kwargs) -> None:
        super().__init__(
            prog=f"veloxquant-tui {command}".rstrip(),
            description=description,
            allow_abbrev=False,
            **kwargs,
        )

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith("?") else "."
        raise UsageError(f"{message[:1].upper()}{message[1:]}{end} See {self.prog} --help.")

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Raises UsageError for what is not known, with the flag that is most like it."""
        args, unknown = self.parse_known_intermixed_args(argv)
        if not unknown:
            return args
        if not unknown[0].startswith("-"):
            self.error(f"{unknown[0]!r} is one argument too many")
        word = unknown[0].partition("=")[0]
        known = [flag for action in self._actions for flag in action.option_strings]
        near = get_close_matches(word, known, n=1)
        self.error(f"there is no {word}" + (f"; did you mean {near[0]}?" if near else ""))


def add_settings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("settings, in place of those in config.toml")
    for name, meta in settings.fields().items():
        flags = [*([SHORT[name]] if name in SHORT else []), settings.flag(name)]
        if name == "ascii":
            group.add_argument(*flags, action="store_true", default=None, help=meta.title)
        else:
            metavar = METAVARS.get(name, "N")
            group.add_argument(*flags, dest=name, metavar=metavar, help=meta.title)
    group.add_argument("--config", metavar="FILE", type=Path, help="read FILE, not config.toml")


def read_settings(args: argparse.Namespace) -> Settings:
    """Raises SettingsError, or ThemeError for a theme that cannot be had."""
    given = {name: getattr(args, name) for name in settings.fields()}
    chosen = settings.override(
        settings.load(args.config),
        {name: value for name, value in given.items() if value is not None},
    )
    load_theme(chosen.theme)
    return chosen


def add_session(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """The group of flags of which only one may be given."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--session", metavar="NAME", help="go on with this chat, or start it")
    group.add_argument(
        "--continue", dest="latest", action="store_true", help="go on with the latest chat"
    )
    return group


def read_session(args: argparse.Namespace) -> Session | None:
    """The chat that is asked for; None where none is. Raises SessionError."""
    if args.session is not None:
        path = sessions.path_of(args.session)
    elif args.latest and (names := sessions.names()):
        path = sessions.path_of(names[0])
    else:
        return None
    # The engine will hold it; here it only matters that nobody else does.
    sessions.hold(path).close()
    session = sessions.load(path)
    if session.notice is not None:
        print(session.notice, file=sys.stderr)
    return session


def add_log(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log", metavar="FILE", type=Path, help="log to FILE, with tracebacks")


def read_log(args: argparse.Namespace) -> Path:
    """Starts logging where it is asked for. Raises OSError for a file that cannot be written."""
    if args.log is None:
        return paths.log()
    logging.basicConfig(
        filename=args.log, level=logging.DEBUG, format="%(asctime)s %(name)s: %(message)s"
    )
    return args.log
