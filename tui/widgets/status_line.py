"""The line above the chat; two lines that stand for all panels where these are folded."""

import os
import socket
from pathlib import Path

from textual.content import Content

from tui import figures
from tui.glyphs import HEIGHTS, LEVELS
from tui.guard import over_ssh
from tui.live import Live
from tui.messages import Loading
from tui.sentences import act
from tui.widgets.layer_map import bits_in_use
from tui.widgets.memory_panel import bar, pressure
from tui.widgets.panel import MUTED, Panel, Piece, spread, text
from tui.widgets.projection import present_rate

STAGES = {
    "download": "downloading",
    "convert": "converting",
    "weights": "loading",
    "cache": "preparing",
}


def loading(event: Loading | None) -> str:
    """A load in a few words: "downloading 2.10G of 4.60G"."""
    if event is None:
        return "loading"
    stage = STAGES[event.stage]
    if not event.total:
        return stage
    if event.stage == "download":
        return f"{stage} {figures.size(event.done)} of {figures.size(event.total)}"
    return f"{stage} {event.done / event.total:.0%}"


def doing(live: Live, now: float) -> Piece:
    """What goes on, in a few words and its colour."""
    if live.phase == "dead":
        return ("engine ended", "$error")
    if acted := live.acting(now):
        return (f"{LEVELS['warn']} {act(acted)}", "$chat-action")
    match live.phase:
        case "connecting":
            return ("starting", MUTED)
        case "loading":
            return (loading(live.loading), MUTED)
        case "prefill":
            if live.prefill is None:
                return ("reading", "$accent")
            return (
                f"reading {live.prefill.done:,} of {live.prefill.total:,}",
                "$accent",
            )
        case "writing":
            return (f"writing {figures.rate(live.rate)} tok/s", "$accent")
    return ("ready", MUTED) if live.model else ("no model: /model NAME", "$warning")


def limiting(live: Live) -> str:
    """The nearest end: "31.2k tokens to warn"."""
    projection = live.sampled.projection if live.sampled else None
    if projection is None:
        return ""
    ends = [
        (projection.tokens_to_warn, "warn"),
        (projection.tokens_to_limit, projection.limit or "limit"),
        (projection.tokens_to_context, "context end"),
    ]
    known = [(tokens, end) for tokens, end in ends if tokens is not None]
    if not known:
        return ""
    tokens, end = min(known)
    return f"{figures.count(tokens)} tok to {end}"


class StatusLine(Panel):
    """One row beside open panels; where it has two rows, it stands for them."""

    def rows(self, width: int, height: int, now: float) -> list[Content]:
        if height > 1:
            return [self.first(width, now), self.second(width, now)]
        return [self.single(width, now)]

    def note(self, now: float) -> str:
        return ""

    @property
    def name_of_model(self) -> str:
        name = self.live.model.name if self.live.model else self.live.setup.model
        # An id or a path: the last part is what tells models apart.
        return Path(name).name or name

    def badge(self) -> list[Piece]:
        return [(" VX ", "bold $background on $primary"), "  ", (self.name_of_model, "bold")]

    def context(self) -> str:
        tokens = self.live.layers.tokens if self.live.layers else 0
        window = self.live.model.context if self.live.model else None
        return f"{figures.count(tokens)}/{figures.count(window)} tokens"

    def first(self, width: int, now: float) -> Content:
        right = text(doing(self.live, now))
        pieces = self.badge()
        cache = self.live.layers
        options = self.live.setup.cache
        used = bits_in_use(cache.layers) if cache else f"{options.key_bits}/{options.value_bits}"
        for part in (f" · kv {used}-bit", f" · {self.context()}"):
            if text(*pieces, part).cell_length + right.cell_length + 3 <= width:
                pieces.append((part, MUTED))
        return spread(width - 1, text(*pieces), right)

    def second(self, width: int, now: float) -> Content:
        live = self.live
        sampled = live.sampled
        memory = sampled.memory if sampled else None
        age = live.age(now)
        left = Content.assemble(
            " ",
            bar(sampled, 12),
            " ",
            f"{figures.size(memory and memory.used)}/{figures.size(memory and memory.total)} ",
            pressure(sampled) if age is None else text((f"{int(age)} s old", MUTED)),
        )
        held = live.layers.nbytes if live.layers else (sampled.cache if sampled else None)
        parts: list[Piece] = [("kv ", MUTED), figures.size(held)]
        # The last seconds, on the scale of the last minute.
        line = figures.spark(
            live.used_history,
            8,
            HEIGHTS,
            low=min(live.used_history, default=None),
            span=max(live.used_history, default=0.0) - min(live.used_history, default=0.0),
        )
        rate = present_rate(live)
        for piece in (
            [("  ", ""), (line, MUTED)] if len(line) > 1 else [],
            [("  ", ""), (limiting(live), MUTED)] if limiting(live) else [],
            [("  ", ""), (f"{figures.rate(rate)} tok/s", MUTED)] if rate else [],
        ):
            if left.cell_length + text(*parts, *piece).cell_length + 3 <= width:
                parts.extend(piece)
        return spread(width - 1, left, text(*parts))

    def single(self, width: int, now: float) -> Content:
        setup = self.live.setup
        pieces = self.badge()
        for part in (
            f" · {Path(setup.session).stem}" if setup.session else "",
            f" · temperature {setup.sampling.temperature:g}",
            f" · {self.live.model.backend}" if self.live.model else "",
        ):
            pieces.append((part, MUTED))
        place = socket.gethostname().split(".")[0] + (" (ssh)" if over_ssh() else "")
        fps = os.environ.get("TEXTUAL_FPS", "")
        right = text(
            (place, MUTED),
            (f" · {fps} fps" if over_ssh() and fps else "", MUTED),
            "   ",
            doing(self.live, now),
        )
        return spread(width - 1, text(*pieces), right)
