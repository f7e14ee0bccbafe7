"""`veloxquant-tui calibrate`: what a method learns of a model from a text, into a folder."""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvcore.config import CONDITIONINGS
from kvcore.methods import METHODS
from tui.arguments import Parser, UsageError
from tui.engine.blas import engine_environment
from tui.exits import DONE, FAILED, INTERRUPTED, MODEL
from tui.sentences import STAGES

RATEQUANT = "ratequant"
TOKENS = 32768
"""Of the text, at most, by default."""
CONTEXT = {True: 1024, False: 2048}
"""Tokens of a sequence, by default: for ratequant, and for methods."""
KEPT = 4096
"""Tokens of each layer that methods learn from, by default."""


def main(argv: Sequence[str]) -> int:
    read(argv)
    # A child, since a BLAS can only be chosen before a process starts.
    command = [sys.executable, "-m", "tui.calibrate", *argv]
    return subprocess.run(command, env=engine_environment(), check=False).returncode


def read(argv: Sequence[str]) -> argparse.Namespace:
    """Raises UsageError."""
    learning = [name for name, method in METHODS.items() if method.calibrated]
    parser = Parser(
        "calibrate",
        "Let a method learn of a model from a text. The folder is what caches are then given.",
    )
    parser.add_argument("model", metavar="MODEL", help="as for the chat: smollm2, a folder, an id")
    parser.add_argument("-o", dest="folder", metavar="FOLDER", type=Path, required=True)
    parser.add_argument(
        "--method",
        choices=[*learning, RATEQUANT],
        required=True,
        help=f"{RATEQUANT}: how much each layer minds few bits; the others learn their codes",
    )
    parser.add_argument("--text", metavar="FILE", type=Path, required=True, help="any plain text")
    parser.add_argument(
        "--packs",
        metavar="METHOD",
        choices=list(METHODS),
        default="turboquant_mse",
        help="ratequant: the method whose bits are shared out (turboquant_mse)",
    )
    parser.add_argument(
        "--windows", metavar="N", type=int, default=4, help="ratequant: of the text (4)"
    )
    parser.add_argument(
        "--by-head", action="store_true", help="ratequant: each KV head apart; as often slower"
    )
    parser.add_argument("--key-bits", metavar="N", type=int, help="that the method learns for")
    parser.add_argument("--value-bits", metavar="N", type=int)
    parser.add_argument(
        "--tokens", metavar="N", type=int, default=TOKENS, help=f"of the text, at most ({TOKENS})"
    )
    parser.add_argument(
        "--context", metavar="N", type=int, help="tokens read at a time (1024 or 2048)"
    )
    parser.add_argument(
        "--keep",
        metavar="N",
        type=int,
        default=KEPT,
        help=f"keys and values kept of each layer, to learn from: what bounds the memory ({KEPT})",
    )
    parser.add_argument(
        "--conditioning", choices=CONDITIONINGS, help="what keys lose first (the method's own)"
    )
    parser.add_argument("--seed", metavar="N", type=int, help="of what is random (0)")
    args = parser.read(argv)
    for name in ("windows", "tokens", "context", "keep"):
        number = getattr(args, name)
        if number is not None and number < 1:
            parser.error(f"--{name} must be 1 or more, not {number}")
    if not args.text.is_file():
        raise UsageError(f"There is no text file {args.text}.")
    return args


def run(argv: Sequence[str]) -> int:
    """In a process of its own."""
    from kvcore import artefact
    from kvcore.bench.text import plain_text
    from tui.engine.errors import ModelError
    from tui.engine.models import load

    args = read(argv)
    try:
        artefact.check_folder(args.folder)
        text = plain_text(args.text.read_text(encoding="utf-8"))
        loaded = load(args.model, progress=_loading, cancelled=lambda: False)
        tokens = loaded.tokenizer.encode(text)[: args.tokens]
        made = _ratequant if args.method == RATEQUANT else _method
        artefact.save(args.folder, *made(loaded.model, tokens, args))
    except ModelError as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return MODEL
    except (OSError, ValueError) as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return FAILED
    print(f"{args.folder}: {args.method} of {args.model}, from {len(tokens):,} tokens.")
    return DONE


def _ratequant(model: Any, tokens: Sequence[int], args: argparse.Namespace) -> tuple[Any, Any]:
    from kvcore.config import KVCacheConfig
    from kvcore.probing import probe
    from kvcore.sensitivity import artefact_of, to_arrays

    config = KVCacheConfig(method=args.packs)
    context = args.context or CONTEXT[True]
    found = probe(
        model,
        tokens,
        config,
        context,
        args.windows,
        args.by_head,
        lambda done, total: _progress("probe", done, total),
    )
    return artefact_of(args.model, model, config, len(tokens), context), to_arrays(found)


def _method(model: Any, tokens: Sequence[int], args: argparse.Namespace) -> tuple[Any, Any]:
    from kvcore.calibration import calibrate
    from kvcore.config import KVCacheConfig

    given = {
        name: getattr(args, name)
        for name in ("key_bits", "value_bits", "conditioning", "seed")
        if getattr(args, name) is not None
    }
    config = KVCacheConfig(method=args.method, artefact=str(args.folder), **given)
    context = args.context or CONTEXT[False]
    return calibrate(model, args.model, tokens, config, context, args.keep, _progress)


def _loading(event: Any) -> None:
    if event.total:
        _progress(STAGES[event.stage], event.done, event.total)


def _progress(stage: str, done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r{stage} {done:,}/{total:,}\x1b[K", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
