"""`veloxquant-tui bench`: which measurement is meant, in a process of its own."""

import subprocess
import sys
from importlib import import_module

from tui.engine.blas import engine_environment
from tui.exits import USAGE

_HELP = """usage: veloxquant-tui bench quality|memory|interface [--help]

  quality     what packed caches do to the model's answers, beside fp16; --quick: every method
  memory      bytes that packed caches really hold
  interface   what the screen costs: event-loop stalls, processor, bytes written
"""


def main(argv: list[str]) -> int:
    if argv[:1] == ["interface"]:
        return import_module("tui.bench.interface").main(argv[1:])
    if argv[:1] in (["quality"], ["memory"]):
        # A child, since a BLAS can only be chosen before a process starts.
        command = [sys.executable, "-m", "tui.bench.model", *argv]
        return subprocess.run(command, env=engine_environment(), check=False).returncode
    print(_HELP, end="", file=sys.stdout if argv in ([], ["--help"], ["-h"]) else sys.stderr)
    return 0 if argv in ([], ["--help"], ["-h"]) else USAGE
