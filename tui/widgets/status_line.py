"""The line above the chat; two lines that stand for all panels where these are folded."""

import socket
from pathlib import Path

from textual.content import Content

from tui import figures
from tui.glyphs import HEIGHTS, LEVELS
from tui.guard import over_ssh
from tui.live import Live
from tui.messages import Loading
from tui.sentences import act, short
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

    def badge(self) -> list[Piece]:
        name = self.live.model.name if self.live.model else self.live.setup.model
        return [(" VX ", "bold $background on $primary"), "  ", (short(name), "bold")]

    def context(self) -> str:
        tokens = self.live.layers.tokens if self.live.layers else 0
        window = self.live.model.context if self.live.model else None
        return f"{figures.count(tokens)}/{figures.count(window)} tokens"

    def first(self, width: int, now: float) -> Content:
        right = text(doing(self.live, now))
        cache = self.live.layers
        options = self.live.setup.cache
        used = bits_in_use(cache.layers) if cache else f"{options.key_bits}/{options.value_bits}"
        left = fitted(width, self.badge(), [f" · kv {used}-bit", f" · {self.context()}"], right)
        return spread(width - 1, left, right)

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
        setup, model = self.live.setup, self.live.model
        right = text(doing(self.live, now))
        parts = [
            f" · {Path(setup.session).stem}" if setup.session else "",
            f" · temperature {setup.sampling.temperature:g}",
            f" · {model.backend}" if model else "",
            f" · {socket.gethostname().split('.')[0]} over ssh" if over_ssh() else "",
        ]
        return spread(width - 1, fitted(width, self.badge(), parts, right), right)


def fitted(width: int, left: list[Piece], parts: list[str], right: Content) -> Content:
    """`left` with as many of the parts as leave room for `right`, from the first on."""
    for part in parts:
        if text(*left, part).cell_length + right.cell_length + 3 > width:
            break
        left.append((part, MUTED))
    return text(*left)
