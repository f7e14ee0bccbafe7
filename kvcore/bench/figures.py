"""Figures of `bench quality`'s rows, with matplotlib, which the extra "bench" brings."""

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from kvcore.bench.kinds import FP16
from kvcore.bench.needle import DEPTHS
from kvcore.bench.quality import QUARTERS
from kvcore.bench.rows import Row

SIZE = (7.0, 4.5)
"""Inches, of one figure."""
Axes: TypeAlias = Any
"""matplotlib's; it need not be installed to check this file."""
Draw: TypeAlias = Callable[[Axes, Sequence[Row]], None]


def require_matplotlib() -> None:
    """Raises ValueError, with a sentence, where it is not installed."""
    if find_spec("matplotlib") is None:
        raise ValueError(
            'figures need matplotlib, which is not installed: pip install "veloxquant-tui[bench]"'
        )


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """One PNG for each figure that the rows have something for, and a sheet with all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for draw_on in _with_data(rows):
        figure = _figure(1, 1)
        draw_on(figure.subplots(), rows)
        paths.append(folder / f"{draw_on.__name__}.png")
        figure.savefig(paths[-1], dpi=150)
    paths.append(folder / "sheet.png")
    sheet(rows).savefig(paths[-1], dpi=150)
    return paths


def sheet(rows: Sequence[Row]) -> Any:
    """matplotlib's Figure with all that the rows have something for."""
    shown = _with_data(rows)
    lines = -(-len(shown) // 2)
    figure = _figure(2, lines)
    figure.suptitle(rows[0].setting)
    places = list(figure.subplots(lines, 2, squeeze=False).flat)
    for place, draw_on in zip(places, shown, strict=False):
        draw_on(place, rows)
    for place in places[len(shown) :]:
        place.set_axis_off()
    return figure


def quality_against_bytes(axes: Axes, rows: Sequence[Row]) -> None:
    for row in _packed(rows):
        axes.plot(100 * row.held, row.kl, "o")
        axes.annotate(
            label(row),
            (100 * row.held, row.kl),
            xytext=(4, 4),
            textcoords="offset points",
            fontsize=7,
        )
    axes.set(
        title="Quality against bytes",
        xlabel="bytes held, % of fp16",
        ylabel="KL divergence to fp16, nats",
    )
    _logarithmic(axes, [row.kl for row in _packed(rows)])


def kl_by_quarter(axes: Axes, rows: Sequence[Row]) -> None:
    for row in _packed(rows):
        axes.plot(range(1, QUARTERS + 1), row.kl_by_quarter, "o-", label=label(row))
    axes.set(
        title="Error along the text",
        xlabel=f"quarter of {rows[0].tokens:,} tokens",
        ylabel="KL divergence to fp16, nats",
        xticks=range(1, QUARTERS + 1),
    )
    _logarithmic(axes, [kl for row in _packed(rows) for kl in row.kl_by_quarter])
    axes.legend(fontsize=7)


def memory_against_length(axes: Axes, rows: Sequence[Row]) -> None:
    for row in rows:
        tokens = [row.tokens * quarter / QUARTERS for quarter in range(1, QUARTERS + 1)]
        held = [nbytes / 2**20 for nbytes in row.nbytes_by_quarter]
        axes.plot(tokens, held, "o-", label=label(row))
    axes.set(title="Memory against length", xlabel="tokens", ylabel="MiB held, all counted")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)


def greedy_tokens_alike(axes: Axes, rows: Sequence[Row]) -> None:
    measured = [row for row in rows if row.alike is not None]
    axes.barh([label(row) for row in measured], [row.alike for row in measured])
    axes.set(
        title="Greedy continuation",
        xlabel=f"tokens as fp16's before the first other one, of {rows[0].continuation}",
    )
    axes.invert_yaxis()


def needles_by_depth(axes: Axes, rows: Sequence[Row]) -> None:
    plain = next(row for row in rows if row.name == FP16)
    for row in _packed(rows):
        pairs = zip(row.needle_log_probability, plain.needle_log_probability, strict=True)
        to_fp16 = [own - of_plain for own, of_plain in pairs]
        axes.plot([100 * depth for depth in DEPTHS], to_fp16, "o-", label=label(row))
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set(
        title="Needle",
        xlabel="depth, % of the text",
        ylabel="log-probability of the right answer, nats to fp16",
    )
    axes.legend(fontsize=7)


FIGURES: tuple[Draw, ...] = (
    quality_against_bytes,
    kl_by_quarter,
    memory_against_length,
    greedy_tokens_alike,
    needles_by_depth,
)


def label(row: Row) -> str:
    """The name without the folder of an artefact."""
    method, _, rest = row.name.partition("@")
    bits = rest.rpartition(":")[2]
    if row.name.startswith("ratequant:"):
        method, bits = "ratequant", row.name.rpartition(":")[2]
    return f"{method}:{bits}" if bits else method


def _packed(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.name != FP16]


def _figure(columns: int, lines: int) -> Any:
    # Not pyplot's: that would look for a screen.
    figure_class = import_module("matplotlib.figure").Figure
    return figure_class(figsize=(columns * SIZE[0], lines * SIZE[1]), layout="constrained")


def _with_data(rows: Sequence[Row]) -> list[Draw]:
    """Figures that would not be empty."""
    empty: set[Draw] = set()
    if not _packed(rows):
        empty |= {quality_against_bytes, kl_by_quarter, needles_by_depth}
    if all(row.alike is None for row in rows):
        empty.add(greedy_tokens_alike)
    if not all(row.needle_log_probability for row in rows):
        empty.add(needles_by_depth)
    return [figure for figure in FIGURES if figure not in empty]


def _logarithmic(axes: Axes, values: Sequence[float]) -> None:
    """Where there is something above zero; zeros are left out."""
    if any(value > 0 for value in values):
        axes.set_yscale("log", nonpositive="mask")
