"""Rows of `bench quality`: in a CSV file that a later run goes on with, and as a table."""

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from kvcore.bench.kinds import FP16


@dataclass(frozen=True)
class Row:
    """`setting`: all that rows must share to be compared. `tokens`: of a window. `continuation`:
    most tokens that were gone on for. For the others, see Quality and Found."""

    name: str
    setting: str
    tokens: int
    perplexity: float
    kl: float
    kl_by_quarter: tuple[float, ...]
    flips: float
    held: float
    nbytes_by_quarter: tuple[float, ...]
    continuation: int
    alike: float | None
    needles: float | None
    needle_log_probability: tuple[float, ...]


def read(path: Path) -> list[Row]:
    """None of them where there is no file; raises ValueError where it holds something else."""
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return [_from_text(record) for record in csv.DictReader(file)]
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ValueError(
            f"{path} holds no rows of this bench: name another file, or remove it."
        ) from None


def write(path: Path, rows: Sequence[Row]) -> None:
    """All of them, in place of what is there, so that an interruption loses none."""
    written = path.with_name(f"new.{path.name}")
    with written.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _as_text(value) for name, value in asdict(row).items()})
    written.replace(path)


def from_record(record: dict[str, Any]) -> Row:
    """A row that came as JSON."""
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in record.items()
    }
    return Row(**given)


def table(rows: Sequence[Row]) -> str:
    """A Markdown table. The needle's log-probability is beside fp16's."""
    plain = next((row for row in rows if row.name == FP16), None)
    lines = [
        "| cache | bytes held, of fp16 | perplexity | KL | KL by quarter | flips "
        "| greedy tokens alike | needles found | needle, nats to fp16 by depth |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        alike = "–" if row.alike is None else f"{row.alike:.1f} of {row.continuation}"
        needles = "–" if row.needles is None else f"{row.needles:.2f}"
        quarters = " ".join(f"{kl:.5f}" for kl in row.kl_by_quarter)
        lost = zip(
            row.needle_log_probability,
            plain.needle_log_probability if plain else (),
            strict=False,
        )
        depths = " ".join(f"{own - of_plain:+.2f}" for own, of_plain in lost) or "–"
        lines.append(
            f"| {row.name} | {row.held:.3f} | {row.perplexity:.3f} | {row.kl:.5f} | {quarters} "
            f"| {row.flips:.4f} | {alike} | {needles} | {depths} |"
        )
    return "\n".join(lines)


_TUPLES = {"kl_by_quarter", "nbytes_by_quarter", "needle_log_probability"}
_COUNTS = {"tokens", "continuation"}


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(repr, value))
    return "" if value is None else str(value)


def _from_text(record: dict[str, str]) -> Row:
    given: dict[str, Any] = {}
    for field in fields(Row):
        text = record[field.name]
        if field.name in ("name", "setting"):
            given[field.name] = text
        elif field.name in _TUPLES:
            given[field.name] = tuple(map(float, text.split()))
        elif field.name in _COUNTS:
            given[field.name] = int(text)
        else:
            given[field.name] = float(text) if text else None
    return Row(**given)
