"""The command line: which command is meant, and how a failure is told.

Nothing here imports textual, mlx or numpy, nor does what a command imports to read its
arguments: help is there at once.
"""

import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from tui.arguments import UsageError
from tui.engine.endpoint import EngineError
from tui.exits import FAILED, INTERRUPTED, USAGE
from tui.sessions import SessionError
from tui.settings import SettingsError
from tui.themes import ThemeError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Command:
    """`module` has `main(argv) -> exit code`, and is imported when the command is given."""

    module: str
    help: str


COMMANDS = {
    "ask": Command("tui.ask", "one answer on stdout"),
    "monitor": Command("tui.monitor", "memory and cache of running engines, or of the machine"),
    "doctor": Command("tui.doctor", "what works here, what does not, and what to do"),
    "bench": Command("tui.bench.command", "measure quality, memory, and what the screen costs"),
    "calibrate": Command("tui.calibrate", "let a method learn of a model from a text"),
    "precompute": Command("tui.calibrate", "the same as calibrate"),
    "methods": Command("tui.method_list", "ways to pack a cache: bits, error, purpose"),
    "themes": Command("tui.theme_list", "list the themes, or check one"),
    "sessions": Command("tui.session_list", "list the chats on disk"),
    "paths": Command("tui.path_list", "where files are kept"),
}
"""Every command but the app itself."""


def main(argv: Sequence[str] | None = None) -> int:
    """The program. Returns its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _command(argv)(argv)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has left; Python would complain again on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAILED
    except (UsageError, SettingsError, ThemeError, SessionError) as error:
        return _fail(str(error), USAGE)
    except EngineError as error:
        return _fail(str(error), FAILED)
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        return _fail(f"{where}{error.strerror or error}.", FAILED)
    except Exception as error:
        return _fail(
            f"This should not happen: {type(error).__name__}: {error}. "
            "With --log FILE, or VELOXQUANT_DEBUG=1, the whole story is told.",
            FAILED,
        )


def _command(argv: list[str]) -> Callable[[list[str]], int]:
    given = argv and argv[0] in COMMANDS
    return import_module(COMMANDS[argv.pop(0)].module if given else "tui.launch").main


def _fail(sentence: str, code: int) -> int:
    """Tells the exception at hand: one sentence to the user, all of it to the log."""
    log.debug(sentence, exc_info=True)
    if sys.stderr is not None:
        if os.environ.get("VELOXQUANT_DEBUG") == "1":
            traceback.print_exc()
        print(f"veloxquant-tui: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
