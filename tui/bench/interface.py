"""`bench interface`: what the screen costs while an answer streams into it.

Starts the app in a terminal of its own, 120×40, on an engine that recites, and reports how late
its event loop came (what a key press feels), the longest that it computed at a stretch (what of
that the app itself is to blame for), its share of one processor, and the bytes that it wrote to
the terminal. With --model, a real one answers by turns with the screen and without, and the
tokens a second of both are compared.
"""

import argparse
import fcntl
import json
import os
import selectors
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path
from statistics import median

from tui.bench.texts import TEXTS
from tui.exits import FAILED

ROWS, COLUMNS = 40, 120


def measure(name: str, rate: float) -> dict[str, float]:
    """Figures of one text: stalls, the longest stretch computed, and length in seconds;
    `processor` as a share; bytes.

    Raises RuntimeError, with the app's log, where it ended without figures.
    """
    figures, written = _in_a_terminal("tui.bench.recital", name, str(rate))
    return {**figures, "bytes": written}


def cost(model: str, tokens: int, runs: int) -> tuple[list[float], list[float]]:
    """Tokens a second without the screen and with it, run after run. Raises RuntimeError."""
    rates: dict[str, list[float]] = {"plain": [], "screen": []}
    for _ in range(runs):
        for how, found in rates.items():
            figures, _ = _in_a_terminal("tui.bench.answer", how, model, str(tokens), own_home=False)
            found.append(figures["rate"])
    return rates["plain"], rates["screen"]


def _in_a_terminal(
    module: str, *arguments: str, own_home: bool = True
) -> tuple[dict[str, float], int]:
    """What `module` told its last argument, a descriptor, and the bytes that it drew."""
    terminal, inside = os.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("4H", ROWS, COLUMNS, 0, 0))
    figures, report = os.pipe()
    with tempfile.TemporaryDirectory() as home:
        folders = _terminal_environment(Path(home))
        if not own_home:
            # The model lies in the user's cache.
            del folders["HOME"], folders["XDG_CACHE_HOME"]
        app = subprocess.Popen(
            [sys.executable, "-m", module, *arguments, str(report)],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            pass_fds=[report],
            env={**os.environ, **folders},
            start_new_session=True,
        )
        os.close(inside)
        os.close(report)
        written, told = _drain(terminal, figures)
        app.wait()
        if not told:
            raise RuntimeError("\n".join(log.read_text() for log in Path(home).rglob("*.log")))
    return json.loads(told), written


def _terminal_environment(home: Path) -> dict[str, str]:
    """A terminal with all colours, and folders that keep the measuring out of the user's own."""
    folders = ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR")
    return {
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "HOME": str(home),
        **{name: str(home / name.lower()) for name in folders},
    }


def _drain(terminal: int, figures: int) -> tuple[int, bytes]:
    """Reads until the app is gone: the bytes written since it began to measure, and figures.

    The app's first line on `figures` is empty: it begins.
    """
    written, told = 0, b""
    with selectors.DefaultSelector() as selector:
        selector.register(terminal, selectors.EVENT_READ)
        selector.register(figures, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                read = _read(key.fd)
                if not read:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                elif key.fd == terminal:
                    written += len(read)
                else:
                    written = written if told else 0
                    told += read
    return written, told.strip()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # Linux's way to say that the other side of a terminal is closed
        return b""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="veloxquant-tui bench interface", description=__doc__)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help=f"of {', '.join(TEXTS)}; all")
    parser.add_argument("--rate", type=float, default=60.0, help="tokens a second (60)")
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--model", help="compare a real model's rate with and without the screen")
    parser.add_argument("--tokens", type=int, default=200, help="of each answer, with --model")
    parser.add_argument("--runs", type=int, default=5, help="of each, with --model")
    arguments = parser.parse_args(argv)
    if arguments.model:
        return _compare(arguments)
    unknown = [name for name in arguments.texts if name not in TEXTS]
    if unknown:
        parser.error(f"there is no text {unknown[0]!r}: it is one of {', '.join(TEXTS)}")
    if not arguments.json:
        print(f"{COLUMNS}×{ROWS}, {arguments.rate:g} tokens/s; how late the event loop comes, ms")
        print("text      p50    p99    max  computed  processor   bytes/s  seconds")
    for name in arguments.texts or TEXTS:
        try:
            found = measure(name, arguments.rate)
        except RuntimeError as error:
            print(f"The app ended before it was measured: {error}", file=sys.stderr)
            return FAILED
        print(json.dumps({"text": name, **found}) if arguments.json else _row(name, found))
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    try:
        plain, screen = cost(arguments.model, arguments.tokens, arguments.runs)
    except RuntimeError as error:
        print(f"No answer was measured: {error}", file=sys.stderr)
        return FAILED
    for name, rates in (("without", plain), ("with the screen", screen)):
        spread = f"{min(rates):.2f} to {max(rates):.2f}"
        print(f"{name:16} {median(rates):6.2f} tokens/s, median of {len(rates)} ({spread})")
    print(f"the screen costs {1 - median(screen) / median(plain):.1%}")
    return 0


def _row(name: str, found: dict[str, float]) -> str:
    stalls = " ".join(f"{found[key] * 1e3:6.1f}" for key in ("p50", "p99", "max"))
    rate = found["bytes"] / found["seconds"]
    computed = f"{found['computed_max'] * 1e3:8.1f}"
    share = f"{found['processor']:9.1%}"
    return f"{name:6} {stalls}  {computed}  {share}  {rate:8,.0f}  {found['seconds']:7.1f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
