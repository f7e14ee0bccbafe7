"""One fresh process for each cache, so that none finds what another has left in memory."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO

BAR = 20


class Failed(Exception):
    """The process has said why, unless a signal ended it; `code` is its exit code, or minus the
    signal."""

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


def run(command: Sequence[str], report: Callable[[int, int], None]) -> dict[str, Any]:
    """What the process tells the descriptor that its last argument is: lines of JSON, [done, total]
    as it goes on and one object at the end. Raises Failed."""
    receiver, sender = os.pipe()
    with (
        os.fdopen(receiver, encoding="utf-8") as lines,
        subprocess.Popen(
            [*command, str(sender)], pass_fds=[sender], stdout=subprocess.DEVNULL
        ) as process,
    ):
        os.close(sender)
        told = None
        for line in lines:
            told = json.loads(line)
            if isinstance(told, list):
                report(*told)
    if process.returncode or not isinstance(told, dict):
        raise Failed(process.returncode or 1)
    return told


def tell(descriptor: int, what: list[int] | dict[str, Any]) -> None:
    os.write(descriptor, json.dumps(what).encode() + b"\n")


class Bar:
    """How far all caches are, drawn over itself; nothing where `out` is no terminal."""

    def __init__(self, of: int, out: TextIO | None = None):
        out = out or sys.stderr
        self._out = out if out is not None and out.isatty() else None
        self._of = of

    def show(self, number: int, name: str, done: int = 0, total: int = 1) -> None:
        """The cache `number`, from 0 on, has read `done` of its `total` tokens."""
        if self._out is not None:
            share = (number + done / max(total, 1)) / max(self._of, 1)
            filled = min(BAR, int(BAR * share))
            bar = "#" * filled + "." * (BAR - filled)
            self._out.write(f"\r\x1b[K[{bar}] {number + 1} of {self._of}: {name[:50]}")
            self._out.flush()

    def clear(self) -> None:
        if self._out is not None:
            self._out.write("\r\x1b[K")
            self._out.flush()
