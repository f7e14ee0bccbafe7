"""One row above the prompt: how far a load or the reading of a prompt has come."""

from textual.content import Content

from tui import figures
from tui.messages import Loading, Prefill
from tui.widgets.panel import MUTED, Panel, Piece, spread, text

LABELS = {
    "download": "downloading the model",
    "convert": "converting the model",
    "weights": "reading the weights",
    "cache": "preparing the cache",
}
FULL, EMPTY = "━", "─"


def bar(done: int, total: int, width: int) -> list[Piece]:
    cells = min(width, round(done / total * width)) if total else 0
    return [(FULL * cells, "$accent"), (EMPTY * (width - cells), MUTED)]


def prefill_figures(event: Prefill) -> str:
    """ "12,288/18,012  612 tok/s  ≈ 9.4 s left"; what is not known yet is left out."""
    parts = [f"{event.done:,}/{event.total:,}"]
    if event.rate:
        parts.append(f"{figures.rate(event.rate)} tok/s")
        parts.append(f"≈ {figures.seconds((event.total - event.done) / event.rate)} left")
    return "  ".join(parts)


def loading_figures(event: Loading, spent: float) -> str:
    if not event.total:
        return figures.seconds(spent)
    if event.stage == "download":
        return f"{figures.size(event.done)} of {figures.size(event.total)}"
    return f"{event.done / event.total:.0%}  {figures.seconds(spent)}"


class Progress(Panel):
    """Empty while nothing is read or loaded; who mounts it hides it then."""

    @property
    def wanted(self) -> bool:
        live = self.live
        return live.phase == "prefill" or (live.phase == "loading" and live.loading is not None)

    def rows(self, width: int, height: int, now: float) -> list[Content]:
        live = self.live
        if live.phase == "loading" and live.loading is not None:
            event = live.loading
            label = LABELS[event.stage]
            right = loading_figures(event, now - (live.loading_since or now))
            done, total = event.done, event.total or 0
        else:
            label = "reading the prompt"
            if live.began is not None and live.began.forecast_bytes is not None:
                label += f", cache to be {figures.size(live.began.forecast_bytes)}"
            right = prefill_figures(live.prefill) if live.prefill else ""
            done, total = (live.prefill.done, live.prefill.total) if live.prefill else (0, 0)
        room = width - len(label) - len(right) - 5
        if room < 4:
            return [spread(width, text(" ", (label, MUTED)), text(right, " "))]
        return [text(" ", (label, MUTED), " ", *bar(done, total, room), "  ", right)]

    def note(self, now: float) -> str:
        return ""
