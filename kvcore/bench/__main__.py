"""`python -m kvcore.bench quality|memory`: measure caches on a real model; Markdown on stdout."""

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from kvcore.bench import figures, kinds, memory, needle, processes, quality, rows, text

Load = Callable[[str], tuple[Any, Any]]
"""Model name -> (model, tokenizer)."""
CACHES = "6/4,4/3,2/2,kv_bits=4"
INTERRUPTED = 130
"""^C, as shells have it."""
FULL = {"windows": 2, "tokens": 1024, "continuation": 64, "needles": 1, "caches": CACHES}
QUICK = {
    "windows": 1,
    "tokens": 512,
    "continuation": 16,
    "needles": 1,
    "caches": ",".join(kinds.without_calibration()),
}


def main(
    argv: Sequence[str] | None = None, load: Load | None = None, module: str = "kvcore.bench"
) -> int:
    """`module`: run by `python -m` with the same arguments, does the same."""
    argv = list(sys.argv[1:] if argv is None else argv)
    arguments = parser().parse_args(argv)
    try:
        if arguments.measure == "memory":
            return _memory(arguments, load or _load_by_mlx_lm)
        for name, usual in (QUICK if arguments.quick else FULL).items():
            if getattr(arguments, name) is None:
                setattr(arguments, name, usual)
        if arguments.one is not None:
            _measure_one(arguments, load or _load_by_mlx_lm)
            return 0
        return _quality(arguments, [sys.executable, "-m", module, *argv])
    except KeyboardInterrupt:
        if arguments.measure == "memory" or arguments.one is None:
            kept = f"; {arguments.csv} has the rows so far" if arguments.csv else ""
            print(f"bench: stopped{kept}.", file=sys.stderr)
        return INTERRUPTED
    except (OSError, ValueError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(prog="veloxquant-tui bench", description=__doc__)
    measures = whole.add_subparsers(dest="measure", required=True, metavar="quality|memory")
    one = measures.add_parser("memory", help="bytes really held, by sum and by MLX")
    _add_common(one, windows=1, tokens=4096, caches=CACHES)
    one = measures.add_parser("quality", help="KL, flips, perplexity, needles beside fp16")
    _add_common(one, windows=None, tokens=None, caches=None)
    one.add_argument("--chunk", type=_positive, default=128, help="tokens read at a time")
    one.add_argument(
        "--continuation", type=int, metavar="N", help="go on greedily for up to N tokens"
    )
    one.add_argument("--needles", type=int, metavar="N", help="facts to find at each depth")
    one.add_argument(
        "--quick",
        action="store_true",
        help="every method that needs no calibration, on little text: minutes on two cores",
    )
    one.add_argument(
        "--figures", type=Path, metavar="FOLDER", help="draw them there, with matplotlib"
    )
    one.add_argument("--one", help=argparse.SUPPRESS)
    one.add_argument("--report", type=int, help=argparse.SUPPRESS)
    return whole


def _add_common(
    one: argparse.ArgumentParser, windows: int | None, tokens: int | None, caches: str | None
) -> None:
    one.add_argument("--model", default="smollm2")
    one.add_argument("--text", type=Path, required=True, help="a text file to measure on")
    one.add_argument("--windows", type=_positive, default=windows)
    one.add_argument("--tokens", type=_positive, default=tokens, help="tokens of each window")
    one.add_argument("--caches", default=caches, help=kinds.HELP)
    one.add_argument("--csv", type=Path, help="also write the rows there; quality goes on with it")


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number above zero, not {text!r}")
    return int(text)


def _quality(arguments: argparse.Namespace, command: list[str]) -> int:
    """Every cache that the CSV file does not have yet, in a process of its own; fp16 first."""
    if arguments.figures:
        figures.require_matplotlib()
    names = list(dict.fromkeys([kinds.FP16, *arguments.caches.split(",")]))
    for name in names:
        kinds.parse(name)
    setting = _setting(arguments)
    held = rows.read(arguments.csv) if arguments.csv else []
    found = {row.name: row for row in held if row.setting == setting}
    missing = [name for name in names if name not in found]
    bar, failed = processes.Bar(len(missing)), 0
    for number, name in enumerate(missing):
        bar.show(number, name)
        try:
            told = processes.run(
                [*command, "--one", name, "--report"], partial(bar.show, number, name)
            )
        except processes.Failed as error:
            bar.clear()
            failed = max(error.code, 1)
            if error.code < 0:
                print(f"bench: signal {-error.code} ended {name}; not measured.", file=sys.stderr)
            if name == kinds.FP16:
                # Nothing to compare with, and what ails it ails the others.
                break
            continue
        found[name] = rows.from_record(told)
        held.append(found[name])
        if arguments.csv:
            rows.write(arguments.csv, held)
    bar.clear()
    measured = [found[name] for name in names if name in found]
    if measured:
        print(rows.table(measured))
    if arguments.figures and kinds.FP16 in found:
        figures.draw(measured, arguments.figures)
    return failed


def _setting(arguments: argparse.Namespace) -> str:
    """All that rows must share to be compared."""
    return (
        f"{arguments.model}, {arguments.text.name}, {arguments.windows} x {arguments.tokens} tokens"
        f" by {arguments.chunk}, {arguments.continuation} greedy, {arguments.needles} needles"
    )


def _measure_one(arguments: argparse.Namespace, load: Load) -> None:
    make = kinds.parse(arguments.one)
    model, tokenizer = load(arguments.model)
    windows = text.windows(arguments.text, tokenizer.encode, arguments.windows, arguments.tokens)
    encode = partial(tokenizer.encode, add_special_tokens=False)
    needles = needle.needles(windows, encode, arguments.needles)
    total = sum(map(len, windows)) + sum(len(each.tokens) for each in needles)
    done = 0

    def report(tokens: int) -> None:
        nonlocal done
        done += tokens
        processes.tell(arguments.report, [done, total])

    seen = quality.measure(model, windows, make, arguments.chunk, arguments.continuation, report)
    found = needle.measure(model, needles, make, arguments.chunk, report) if needles else None
    row = rows.Row(
        name=arguments.one,
        setting=_setting(arguments),
        tokens=arguments.tokens,
        continuation=arguments.continuation,
        needles=found.needles if found else None,
        needle_log_probability=found.needle_log_probability if found else (),
        **vars(seen),
    )
    processes.tell(arguments.report, asdict(row))


def _memory(arguments: argparse.Namespace, load: Load) -> int:
    makes = {name: kinds.parse(name) for name in arguments.caches.split(",")}
    model, tokenizer = load(arguments.model)
    tokens = text.windows(arguments.text, tokenizer.encode, arguments.windows, arguments.tokens)
    held = list(memory.measure(model, tokens[0], makes))
    print(memory.table(held))
    if arguments.csv:
        _write(arguments.csv, held)
    return 0


def _load_by_mlx_lm(name: str) -> tuple[Any, Any]:
    from mlx_lm import load

    model, tokenizer, *_ = load(name)
    return model, tokenizer


def _write(path: Path, rows: Iterable[Any]) -> None:
    records = [asdict(row) for row in rows]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(records[0]))
        writer.writeheader()
        writer.writerows(records)


if __name__ == "__main__":
    sys.exit(main())
