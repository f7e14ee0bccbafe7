"""The cache layer by layer, to be looked at and lowered by hand."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.coordinate import Coordinate
from textual.screen import ModalScreen
from textual.widgets import DataTable, Static

from kvcore.ladder import LADDER
from kvcore.report import LayerReport
from tui import figures
from tui.live import Live
from tui.messages import Lower
from tui.screens.question import Question
from tui.sentences import ranges
from tui.widgets.layer_map import bits, fill, style_of

Bits = tuple[int, int]
COLUMNS = {
    "": 1,
    "layer": 5,
    "kind": 7,
    "bits": 5,
    "new": 5,
    "bytes": 6,
    "frees": 6,
    "of fp16": 15,
    "tokens": 9,
    "read": 14,
}
"""Names and widths, the ones that a narrow screen can do without at the end."""
RIGHT = ("layer", "bits", "bytes", "frees", "tokens")
READS = {"direct": "from codes", "transient": "through a copy"}


def below(held: Bits) -> Bits:
    """The ladder's next rung under `held`, or `held` at the floor; never more bits anywhere."""
    for key_bits, value_bits in LADDER:
        rung = min(held[0], key_bits), min(held[1], value_bits)
        if rung != held:
            return rung
    return held


def above(planned: Bits, held: Bits) -> Bits:
    """The rung over `planned`, at most what is held: dropped bits do not come back."""
    steps = [held]
    while steps[-1] != planned and below(steps[-1]) != steps[-1]:
        steps.append(below(steps[-1]))
    return steps[-2] if len(steps) > 1 else held


def frees(layer: LayerReport, planned: Bits | None) -> int | None:
    """Bytes that going to `planned` gives back."""
    if planned is None or layer.key_bits is None or layer.value_bits is None:
        return None
    keys, values = layer.key_bits - planned[0], layer.value_bits - planned[1]
    return keys * layer.key_bit_nbytes + values * layer.value_bit_nbytes


def requests(plan: dict[int, Bits]) -> list[Lower]:
    """One request for each pair of bits, with the layers that are to have it."""
    pairs = sorted(set(plan.values()), reverse=True)
    return [
        Lower(*pair, tuple(sorted(layer for layer, new in plan.items() if new == pair)))
        for pair in pairs
    ]


class Layers(ModalScreen[list[Lower] | None]):
    """Gives the requests to send, or None when nothing is to be lowered."""

    BINDINGS = [  # noqa: RUF012
        Binding("space", "mark", "mark", id="mark"),
        Binding("a,A", "mark_all", "mark all", id="mark_all"),
        Binding("left_square_bracket", "step(-1)", "lower", id="lower"),
        Binding("right_square_bracket", "step(1)", "raise", id="raise"),
        Binding("R,r", "reset", "reset", id="reset"),
        Binding("enter", "apply", "apply", id="apply", priority=True),
        Binding("j", "move(1)", "down"),
        Binding("k", "move(-1)", "up"),
        Binding("escape,q,Q,ctrl+l", "dismiss", "close"),
    ]

    def __init__(self, live: Live) -> None:
        super().__init__()
        self.live = live
        self.marked: set[int] = set()
        self.plan: dict[int, Bits] = {}
        self.shown: list[tuple[Content | str, ...]] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="box -wide-box") as box:
            box.border_title = "kv cache by layer"
            yield DataTable(cursor_type="row", zebra_stripes=False)
            yield Static(id="layers-foot")
            yield Static(
                "[b]space[/] mark  [b]a[/] all  [b]\\[[/] lower  [b]][/] raise  "
                "[b]enter[/] apply  [b]r[/] reset  [b]q[/] back",
                classes="hint",
            )

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        for name, width in COLUMNS.items():
            label = f"{name:>{width}}" if name in RIGHT else name
            table.add_column(label, width=width, key=name or "mark")
        self.draw()
        self.set_interval(1.0, self.draw)
        table.focus()

    @property
    def reports(self) -> Sequence[LayerReport]:
        return self.live.layers.layers if self.live.layers else ()

    def cells(self, layer: LayerReport) -> tuple[Content | str, ...]:
        new = self.plan.get(layer.index)
        part = (
            f" {layer.nbytes / layer.half_nbytes:>4.0%}" if layer.half_nbytes else figures.UNKNOWN
        )
        return (
            "▌" if layer.index in self.marked else " ",
            f"{layer.index:>5}",
            layer.kind,
            Content.styled(f"{bits(layer):>5}", style_of(layer.key_bits)),
            Content.styled(f"{new[0]}/{new[1]}", f"bold {style_of(new[0])}") if new else "",
            f"{figures.size(layer.nbytes):>6}",
            f"{figures.size(frees(layer, new)):>6}" if new else "",
            Content.assemble(
                fill(layer.nbytes, layer.half_nbytes, 10, style_of(layer.key_bits)), part
            ),
            f"{layer.tokens:>9,}",
            READS.get(layer.reads or "", ""),
        )

    def draw(self) -> None:
        """Writes the cells that changed."""
        self.forget_what_is_done()
        table = self.query_one(DataTable)
        rows = [self.cells(layer) for layer in self.reports]
        if len(rows) != len(self.shown):
            table.clear()
            for row in rows:
                table.add_row(*row)
        else:
            for y, (old, new) in enumerate(zip(self.shown, rows, strict=True)):
                for x, (before, after) in enumerate(zip(old, new, strict=True)):
                    if not same(before, after):
                        table.update_cell_at(Coordinate(y, x), after)
        self.shown = rows
        self.query_one("#layers-foot", Static).update(self.foot())

    def forget_what_is_done(self) -> None:
        """The watchdog may have been faster than the plan."""
        held = {layer.index: (layer.key_bits, layer.value_bits) for layer in self.reports}
        self.plan = {
            index: planned
            for index, planned in self.plan.items()
            if index in held and planned != held[index]
        }

    def foot(self) -> Content:
        cache = self.live.layers
        held, half = (cache.nbytes, cache.half_nbytes) if cache else (None, None)
        saved = sum(frees(layer, self.plan.get(layer.index)) or 0 for layer in self.reports)
        planned = f" · applying frees {figures.size(saved)}" if self.plan else ""
        return Content(
            f"{figures.size(held)} held · fp16 would be {figures.size(half)} · "
            f"{figures.compression(half, held)}{planned}"
        )

    def chosen(self) -> list[LayerReport]:
        """The marked layers, or the one under the cursor; only those whose bits can drop."""
        row = self.query_one(DataTable).cursor_row
        return [
            layer
            for y, layer in enumerate(self.reports)
            if layer.kind == "packed"
            and layer.key_bits is not None
            and (layer.index in self.marked if self.marked else y == row)
        ]

    def action_mark(self) -> None:
        row = self.query_one(DataTable).cursor_row
        if row < len(self.reports):
            self.marked ^= {self.reports[row].index}
            self.draw()
            self.action_move(1)

    def action_mark_all(self) -> None:
        everything = {layer.index for layer in self.reports if layer.kind == "packed"}
        self.marked = set() if self.marked == everything else everything
        self.draw()

    def action_step(self, direction: int) -> None:
        for layer in self.chosen():
            held = layer.key_bits or 0, layer.value_bits or 0
            planned = self.plan.get(layer.index, held)
            self.plan[layer.index] = below(planned) if direction < 0 else above(planned, held)
        self.draw()

    def action_reset(self) -> None:
        self.plan.clear()
        self.marked.clear()
        self.draw()

    def action_move(self, step: int) -> None:
        table = self.query_one(DataTable)
        table.move_cursor(row=table.cursor_row + step)

    def action_apply(self) -> None:
        if not self.plan:
            self.notify("Nothing is planned: [ lowers the marked layers.", markup=False)
            return
        saved = sum(frees(layer, self.plan.get(layer.index)) or 0 for layer in self.reports)
        sentence = (
            f"Lower {ranges(tuple(self.plan))}? It frees {figures.size(saved)}; "
            "the bits that go do not come back in this chat."
        )
        self.app.push_screen(Question(sentence), self.answered)

    def answered(self, yes: bool | None) -> None:
        if yes:
            self.dismiss(requests(self.plan))


def same(before: Content | str, after: Content | str) -> bool:
    if isinstance(before, Content) and isinstance(after, Content):
        return before.is_same(after)
    return before == after
