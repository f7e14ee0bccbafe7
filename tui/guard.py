"""What stands between the app and the terminal.

Textual writes to whatever descriptor 2 is, dies of SIGTERM with the terminal still in its own
mode, and spins when the terminal is gone. Run `environment` and enter `private_terminal` before
textual is imported: it reads both at import.
"""

import asyncio
import contextlib
import gc
import json
import os
import select
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

# Leave the alternate screen, mouse, focus and paste reports, kitty keys; show the cursor.
RESET = (
    "\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l"
    "\x1b[?1004l\x1b[?2004l\x1b[<u\x1b[?25h\x1b[0m"
)


def over_ssh() -> bool:
    return "SSH_CONNECTION" in os.environ or "SSH_TTY" in os.environ


def unicode_terminal() -> bool:
    """False where the locale says that the terminal shows no UTF-8."""
    locale = next(
        (os.environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(name)), ""
    )
    # No locale at all is common in containers, behind terminals that show UTF-8 well.
    return not locale or ("utf" in locale.lower() and "8" in locale)


def few_colours() -> bool:
    """True where colours of our own would come out wrong: 16 colours, or none wanted."""
    if "NO_COLOR" in os.environ:
        return True
    if os.environ.get("COLORTERM", "") in ("truecolor", "24bit"):
        return False
    term = os.environ.get("TERM", "")
    return not ("256" in term or "direct" in term or "kitty" in term)


def environment(fps: int | None = None) -> None:
    """Sets the variables that textual reads when it is imported; the user's own win."""
    ssh = over_ssh()
    os.environ.setdefault("TEXTUAL_FPS", str(fps or (10 if ssh else 30)))
    if ssh:
        os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    if few_colours():
        # The filter for NO_COLOR is chosen with the first theme; a later theme gives greys.
        os.environ["TEXTUAL_THEME"] = "ansi-dark"


def spare_the_collector() -> None:
    """Leave out of later collections what start-up made: a full one holds up the screen."""
    gc.collect()
    gc.freeze()


def terminal_descriptor() -> int | None:
    """A descriptor of the terminal, also where standard error goes to a file; None without one."""
    for descriptor in (2, 1, 0):
        if os.isatty(descriptor):
            return os.dup(descriptor)
    with contextlib.suppress(OSError):
        return os.open("/dev/tty", os.O_RDWR)
    return None


@contextlib.contextmanager
def private_terminal(log: Path) -> Iterator[None]:
    """Gives the screen a terminal of its own; what libraries print meanwhile goes to `log`."""
    descriptor = terminal_descriptor()
    if descriptor is None:
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    log.parent.mkdir(parents=True, exist_ok=True)
    sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    screen = os.fdopen(descriptor, "w", encoding="utf-8")
    before = sys.__stdout__, sys.__stderr__
    # Textual draws on the one; the size of the terminal is asked of the other.
    sys.__stdout__ = sys.__stderr__ = screen  # type: ignore[misc]
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.close(sink)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)
        sys.__stdout__, sys.__stderr__ = before  # type: ignore[misc]
        with contextlib.suppress(OSError):
            screen.close()


def on_signals(leave: Callable[[signal.Signals], object]) -> None:
    """Calls `leave` on the event loop for SIGTERM and SIGHUP, even where SIGHUP was ignored."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Not in the main thread, where tests run apps: nothing to take over.
        with contextlib.suppress(RuntimeError, ValueError):
            loop.add_signal_handler(number, leave, number)


def hung_up(descriptor: int = 0) -> bool:
    """True when the terminal behind `descriptor` is gone."""
    poll = select.poll()
    try:
        poll.register(descriptor, select.POLLIN)
        answers = poll.poll(0)
    except (OSError, ValueError):
        return False
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in answers)


@contextlib.contextmanager
def remembered_terminal(folder: Path, descriptor: int = 0) -> Iterator[bool]:
    """Restores a terminal that a killed run left broken, and leaves word for the next run.

    Yields True when something was restored. The note in `folder` is named for the terminal and
    holds the writer's process and the terminal's modes; a clean end takes it away.
    """
    try:
        name = os.ttyname(descriptor)
        modes = termios.tcgetattr(descriptor)
    except (OSError, termios.error):
        yield False
        return
    note = folder / f"terminal-{name.strip('/').replace('/', '-')}.json"
    restored = False
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        left = json.loads(note.read_text())
        if not alive(left["pid"]):
            modes[:6] = left["modes"]
            with contextlib.suppress(termios.error):
                termios.tcsetattr(descriptor, termios.TCSANOW, modes)
            os.write(descriptor, RESET.encode())
            restored = True
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps({"pid": os.getpid(), "modes": modes[:6]}))
    try:
        yield restored
    finally:
        note.unlink(missing_ok=True)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
