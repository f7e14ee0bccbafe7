"""The cache, layer by layer: bits, bytes and kind, and what fp16 would take."""

import time
from collections.abc import Sequence
from itertools import groupby

from textual.content import Content

from kvcore.report import LayerReport
from tui import figures
from tui.glyphs import EIGHTHS, EMPTY
from tui.live import Live
from tui.widgets.panel import MUTED, Panel, Piece, spread, text

FLASH = 1.5
"""Seconds that a lowered layer stands out."""
TABLE_WIDTH = 52
HALF = "f"
"""How the map writes a layer kept in half precision."""
SIGNS = {"full": HALF, "sliding": "w", "state": "s", "latent": "m"}


def style_of(bits: int | None) -> str:
    """The theme's colour for a number of bits."""
    if bits is None:
        return "$bits-16"
    return f"$bits-{2 if bits <= 2 else 4 if bits <= 4 else 8 if bits <= 8 else 16}"


def bits(layer: LayerReport) -> str:
    """Bits of keys and values: "6/4", or "16" where they are not packed."""
    if layer.kind == "packed":
        return f"{layer.key_bits or figures.UNKNOWN}/{layer.value_bits or figures.UNKNOWN}"
    return figures.UNKNOWN if layer.kind == "state" else "16"


def fill(held: int | None, half: int | None, width: int, style: str) -> Content:
    """The part held of what fp16 would take, as a bar."""
    if not held or not half:
        return text((EMPTY * width, MUTED))
    steps = max(1, round(min(1.0, held / half) * width * len(EIGHTHS)))
    whole, rest = divmod(steps, len(EIGHTHS))
    cells = EIGHTHS[-1] * whole + (EIGHTHS[rest - 1] if rest else "")
    return text((cells, style), (EMPTY * (width - len(cells)), MUTED))


def groups(layers: Sequence[LayerReport]) -> list[tuple[LayerReport, ...]]:
    """Neighbours of the same kind and bits together."""
    keyed = groupby(layers, key=lambda layer: (layer.kind, layer.key_bits, layer.value_bits))
    return [tuple(run) for _, run in keyed]


def total(values: Sequence[int | None]) -> int | None:
    """The sum of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def bits_in_use(layers: Sequence[LayerReport]) -> str:
    """The packed layers' bits, most first: "6/4", "6/4 to 4/3"."""
    packed = [layer for layer in layers if layer.kind == "packed" and layer.key_bits is not None]
    if not packed:
        return figures.UNKNOWN
    order = sorted(packed, key=lambda layer: (layer.key_bits or 0, layer.value_bits or 0))
    most, least = bits(order[-1]), bits(order[0])
    return most if most == least else f"{most} to {least}"


class LayerMap(Panel):
    """`table`: a row a layer where the height allows it, with tokens; else groups of layers."""

    TITLE = "kv cache"

    def __init__(self, live: Live, id: str | None = None, table: bool = False) -> None:
        super().__init__(live, id)
        self.table = table
        self.flashing: dict[int, float] = {}

    def flash(self, layers: Sequence[int]) -> None:
        """Make these layers stand out for a moment."""
        until = time.monotonic() + FLASH
        self.flashing = dict.fromkeys(layers, until)
        if self.size:
            self.set_timer(FLASH, lambda: self.tick(time.monotonic()))

    def rows(self, width: int, height: int, now: float) -> list[Content]:
        cache = self.live.layers
        layers = cache.layers if cache else ()
        self.border_title = f"{self.TITLE} · {len(layers)} layers" if layers else self.TITLE
        self.flashing = {layer: end for layer, end in self.flashing.items() if end > now}
        table = self.table and width >= TABLE_WIDTH
        head = self.head(width)
        foot = self.foot(width)
        room = height - len(head) - len(foot) - table
        if table:
            head.append(self.columns(width))
            body = self.body([(layer,) for layer in layers], width, table=True)
            if len(body) > room:
                body = self.body(groups(layers), width, table=True)
        else:
            body = self.body(groups(layers), width, table=False)
            strip = self.strip(layers, width)
            if len(strip) + len(body) <= room:
                body = [*strip, *body]
        if len(body) > room:
            hidden = len(body) - room + 1
            body = [*body[: room - 1], text((f"… {hidden} more groups", MUTED))]
        blank = [Content("")] * max(0, room - len(body))
        return [*head, *body, *blank, *foot] if table else [*head, *body, *foot]

    def note(self, now: float) -> str:
        setup = self.live.setup
        limit = f" · kv ≤ {figures.size(setup.limits.kv)}" if setup.limits.kv else ""
        return super().note(now) or f"policy {setup.policy}{limit}"

    def head(self, width: int) -> list[Content]:
        cache = self.live.layers
        sampled = self.live.sampled
        per_token = sampled.projection.bytes_per_token if sampled else None
        return [
            spread(
                width,
                text(figures.full(cache.tokens if cache else None), (" tokens", MUTED)),
                text(figures.size(per_token), (" a token", MUTED)),
            )
        ]

    def foot(self, width: int) -> list[Content]:
        cache = self.live.layers
        held, half = (cache.nbytes, cache.half_nbytes) if cache else (None, None)
        return [
            spread(
                width,
                text((figures.size(held), "bold"), (" held, fp16 ", MUTED), figures.size(half)),
                text(figures.compression(half, held)),
            )
        ]

    def columns(self, width: int) -> Content:
        names = f"{'layer':<8}{'kind':<9}{'bits':<7}{'tokens':>8}{'bytes':>8}  "
        return text((names + "of fp16", MUTED))

    def strip(self, layers: Sequence[LayerReport], width: int) -> list[Content]:
        """The bits of every layer, a digit each: keys above values."""
        if not layers:
            return []
        lines = []
        names = ("keys   ", "values ")
        if len(layers) + len(names[0]) > width:
            names = ("K ", "V ")
        label = len(names[0])
        for start in range(0, len(layers), width - label):
            part = layers[start : start + width - label]
            for name, attribute in zip(names, ("key_bits", "value_bits"), strict=True):
                cells: list[Piece] = [(name, MUTED)]
                for layer in part:
                    number = getattr(layer, attribute)
                    sign = str(number) if layer.kind == "packed" else SIGNS[layer.kind]
                    style = style_of(number)
                    if layer.index in self.flashing:
                        style += " reverse"
                    cells.append((sign[-1], style))
                lines.append(text(*cells))
        return lines

    def body(
        self, runs: Sequence[tuple[LayerReport, ...]], width: int, table: bool
    ) -> list[Content]:
        return [self.row(run, width, table) for run in runs]

    def row(self, run: tuple[LayerReport, ...], width: int, table: bool) -> Content:
        first = run[0]
        name = f"L{first.index}" + (f"-{run[-1].index}" if len(run) > 1 else "")
        held = sum(layer.nbytes for layer in run)
        half = total([layer.half_nbytes for layer in run])
        lowest = first.key_bits
        style = style_of(lowest)
        flash = " reverse" if any(layer.index in self.flashing for layer in run) else ""
        if table:
            left = text(
                f"{name:<8}",
                (f"{first.kind:<9}", MUTED),
                (f"{bits(first):<7}", style + flash),
                f"{first.tokens:>8,}{figures.size(held):>8}  ",
            )
            room = width - left.cell_length - 5
            part = f"{held / half:>4.0%}" if half else f"{figures.UNKNOWN:>4}"
            return Content.assemble(left, fill(held, half, room, style), (f" {part}", MUTED))
        left = text(f"{name:<7}", (f"{bits(first):<5}", style + flash), (f"{first.kind:<8}", MUTED))
        right = f"{figures.size(held):>6}"
        room = width - left.cell_length - len(right)
        return Content.assemble(left, fill(held, half, room, style), right)
