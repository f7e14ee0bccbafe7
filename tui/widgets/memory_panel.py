"""The machine's memory: what the model holds of it, what is left, how hard it is pressed."""

from textual.content import Content

from tui import figures
from tui.glyphs import HEIGHTS, LEVELS, SEGMENTS
from tui.live import Live
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


def share(name: str, nbytes: int | None, width: int) -> Content:
    sign = text((SEGMENTS[SHARES.index(name)], f"$memory-{name}"), " ", (name, MUTED))
    return spread(width, sign, text(figures.size(nbytes)))


class MemoryPanel(Panel):
    TITLE = "memory"

    def __init__(self, live: Live, id: str | None = None) -> None:
        super().__init__(live, id)
        self.add_class("-first")

    def rows(self, width: int, height: int, now: float) -> list[Content]:
        sampled = self.live.sampled
        parts = shares(sampled)
        half = (width - 3) // 2
        used = text(pair(*((sampled.memory.used, sampled.memory.total) if sampled else (None,) * 2)))
        return [
            spread(width, bar(sampled, width - used.cell_length - 2), used),
            spread(
                width,
                pressure(sampled),
                text(
                    ("available ", MUTED),
                    figures.size(sampled.memory.available if sampled else None),
                ),
            ),
            text(((sampled and sampled.memory.level_source) or "level not known", MUTED)),
            Content("   ").join(share(name, parts[name], half) for name in ("weights", "scratch")),
            Content("   ").join(share(name, parts[name], half) for name in ("cache", "other")),
            *self.figures(width, sampled),
            self.history(width),
        ]

    def figures(self, width: int, sampled: Sampled | None) -> list[Content]:
        memory = sampled.memory if sampled else None
        limit = self.live.setup.limits.memory
        mlx = figures.size(memory and memory.mlx_active)
        held = f"{mlx} / {figures.size(limit)}" if limit else mlx
        swap = figures.size(memory and memory.swap_used)
        swapping = memory.swap_out_per_second if memory else None
        gpu = (memory.gpu_used, memory.gpu_limit) if memory else (None, None)
        return [
            spread(
                width,
                text(("MLX ", MUTED), held),
                text(("process ", MUTED), figures.size(memory and memory.process)),
            ),
            spread(
                width,
                text(("swap ", MUTED), swap, (f" {figures.change(swapping)}/s", MUTED)),
                text(("GPU ", MUTED), figures.UNKNOWN if gpu == (None, None) else pair(*gpu)),
            ),
        ]

    def history(self, width: int) -> Content:
        used = self.live.used_history
        if len(used) < 2:
            return text(("60 s ", MUTED), figures.UNKNOWN)
        total = (self.live.sampled and self.live.sampled.memory.total) or 0
        # A hundredth of the memory fills the height: less than that is noise of other programs.
        line = figures.spark(used, width - 14, HEIGHTS, span=total / 100)
        moved = figures.change(used[-1] - used[0])
        return spread(width, text(("60 s ", MUTED), (line, "$accent")), text(moved))
