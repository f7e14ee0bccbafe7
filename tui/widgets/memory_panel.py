"""The machine's memory: what the model holds of it, what is left, how hard it is pressed."""

from textual.content import Content

from kvcore.memory.sample import MemorySample
from tui import figures
from tui.glyphs import HEIGHTS, LEVELS, SEGMENTS
from tui.messages import Sampled
from tui.widgets.panel import MUTED, Panel, spread, text

SHARES = ("weights", "cache", "scratch", "other")


def shares(sampled: Sampled | None) -> dict[str, int | None]:
    """Bytes of each share of the memory in use; None where the parts are not known."""
    if sampled is None:
        return dict.fromkeys(SHARES)
    memory = sampled.memory
    held = (sampled.weights or 0) + (sampled.cache or 0)
    scratch = None
    if memory.mlx_active:
        scratch = max(0, memory.mlx_active + (memory.mlx_cache or 0) - held)
    other = None if memory.used is None else max(0, memory.used - held - (scratch or 0))
    return {
        "weights": sampled.weights,
        "cache": sampled.cache,
        "scratch": scratch,
        "other": other,
    }


def bar(sampled: Sampled | None, width: int) -> Content:
    """The memory as `width` cells: a run for each share, then what is free."""
    total = sampled.memory.total if sampled else None
    pieces: list[tuple[str, str]] = []
    start, reached = 0, 0
    if total:
        for name, nbytes in shares(sampled).items():
            reached += nbytes or 0
            end = min(width, round(reached / total * width))
            pieces.append((SEGMENTS[SHARES.index(name)] * (end - start), f"$memory-{name}"))
            start = end
    pieces.append((SEGMENTS[-1] * (width - start), MUTED))
    return text(*pieces)


def pressure(sampled: Sampled | None) -> Content:
    """The level as sign and word, in its colour."""
    level = sampled.memory.level if sampled else None
    if level is None:
        return text(figures.UNKNOWN)
    return text((f"{LEVELS[level]} {level}", f"$pressure-{level}"))


def pair(part: int | None, whole: int | None) -> str:
    return f"{figures.size(part)} / {figures.size(whole)}"


def label(name: str) -> Content:
    """The name of a share beside its sign in the bar."""
    return text((SEGMENTS[SHARES.index(name)], f"$memory-{name}"), " ", (name, MUTED))


class MemoryPanel(Panel):
    TITLE = "memory"

    def rows(self, width: int, height: int, now: float) -> list[Content]:
        sampled = self.live.sampled
        memory = sampled.memory if sampled else MemorySample(time=0.0)
        limit = self.live.setup.limits.memory
        parts = shares(sampled)
        used = text(pair(memory.used, memory.total))
        mlx = pair(memory.mlx_active, limit) if limit else figures.size(memory.mlx_active)
        if (memory.gpu_used, memory.gpu_limit) == (None, None):
            gpu = figures.UNKNOWN
        else:
            gpu = pair(memory.gpu_used, memory.gpu_limit)
        swap = text(
            figures.size(memory.swap_used),
            (f" {figures.change(memory.swap_out_per_second)}/s", MUTED),
        )
        cells = [
            [(label(name), text(figures.size(parts[name]))) for name in ("weights", "scratch")],
            [(label(name), text(figures.size(parts[name]))) for name in ("cache", "other")],
            [
                (text(("MLX", MUTED)), text(mlx)),
                (text(("process", MUTED)), text(figures.size(memory.process))),
            ],
            [(text(("swap", MUTED)), swap), (text(("GPU", MUTED)), text(gpu))],
        ]
        available = text(("available ", MUTED), figures.size(memory.available))
        return [
            spread(width, bar(sampled, width - used.cell_length - 2), used),
            spread(width, pressure(sampled), available),
            text((memory.level_source or "level not known", MUTED)),
            *(columns(width, row) for row in cells),
            self.history(width),
        ]

    def history(self, width: int) -> Content:
        used = self.live.used_history
        if len(used) < 2:
            return text(("60 s ", MUTED), figures.UNKNOWN)
        total = (self.live.sampled and self.live.sampled.memory.total) or 0
        # A hundredth of the memory fills the height: less than that is noise of other programs.
        line = figures.spark(used, width - 14, HEIGHTS, span=total / 100)
        moved = figures.change(used[-1] - used[0])
        return spread(width, text(("60 s ", MUTED), (line, "$spark")), text(moved))


def columns(width: int, cells: list[tuple[Content, Content]]) -> Content:
    """Two cells side by side, each a name at its left and a figure at its right."""
    gap = 3
    half = (width - gap) // 2
    left, right = cells
    return Content.assemble(spread(half, *left), " " * gap, spread(width - gap - half, *right))
