"""`python -m kvcore.bench quality|memory`: measure caches on a real model; Markdown on stdout."""

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvcore.bench import memory, quality, text

Load = Callable[[str], tuple[Any, Any]]
"""Model name -> (model, tokenizer)."""


def main(argv: Sequence[str] | None = None, load: Load | None = None) -> int:
    arguments = parser().parse_args(argv)
    model, tokenizer = (load or _load_by_mlx_lm)(arguments.model)
    try:
        kinds = dict(_kind(name) for name in arguments.caches.split(","))
        tokens = text.windows(arguments.text, tokenizer.encode, arguments.windows, arguments.tokens)
    except (OSError, ValueError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    if arguments.measure == "quality":
        rows: list[Any] = list(quality.measure(model, tokens, kinds, arguments.chunk, _progress))
        print(quality.table(rows))
    else:
        rows = list(memory.measure(model, tokens[0], kinds))
        print(memory.table(rows))
    if arguments.csv:
        _write(arguments.csv, rows)
    return 0


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(prog="veloxquant-tui bench", description=__doc__)
    measures = whole.add_subparsers(dest="measure", required=True, metavar="quality|memory")
    for name, windows, tokens, caches, about in (
        ("quality", 2, 1024, "6/4,4/3,2/2,kv_bits=4", "KL, flips, perplexity beside fp16"),
        (
            "memory",
            1,
            4096,
            "6/4,4/3,2/2,kv_bits=4",
            "bytes really held, by sum and by MLX",
        ),
    ):
        one = measures.add_parser(name, help=about)
        one.add_argument("--model", default="smollm2")
        one.add_argument("--text", type=Path, required=True, help="a text file to measure on")
        one.add_argument("--windows", type=int, default=windows)
        one.add_argument("--tokens", type=int, default=tokens, help="tokens of each window")
        one.add_argument("--chunk", type=int, default=128, help="tokens read at a time")
        one.add_argument(
            "--caches",
            default=caches,
            help="key/value bits, `lowered:4/3` for a 6/4 cache lowered, or kv_bits=N for mlx-lm's",
        )
        one.add_argument("--csv", type=Path, help="also write the rows there")
    return whole


def _kind(name: str) -> tuple[str, Callable[[Any], list[Any]]]:
    try:
        if name.startswith("kv_bits="):
            return name, quality.quantised_by_mlx_lm(int(name.removeprefix("kv_bits=")))
        make = quality.lowered if name.startswith("lowered:") else quality.packed
        key_bits, value_bits = (int(bits) for bits in name.removeprefix("lowered:").split("/"))
    except ValueError:
        raise ValueError(
            f"{name!r} is no cache: write 6/4, lowered:4/3 or kv_bits=4, joined by commas."
        ) from None
    return f"K{key_bits}/V{value_bits}" + (" lowered" if ":" in name else ""), make(
        key_bits, value_bits
    )


def _load_by_mlx_lm(name: str) -> tuple[Any, Any]:
    from mlx_lm import load

    model, tokenizer, *_ = load(name)
    return model, tokenizer


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done}/{total}", end="\n" if done == total else "", file=sys.stderr, flush=True)


def _write(path: Path, rows: Iterable[Any]) -> None:
    records = [asdict(row) for row in rows]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(records[0]))
        writer.writeheader()
        writer.writerows(records)


if __name__ == "__main__":
    sys.exit(main())
