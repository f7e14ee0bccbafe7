"""What happened, with the time, one plain sentence each."""

import time
from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from textual.content import Content

from tui import figures
from tui.live import Live
from tui.messages import Acted, AnyEvent, Began, Done, Error, Loading, Ready, Sampled
from tui.widgets.panel import MUTED, Panel

KEPT = 1000
STAGES = {
    "download": "downloading the model",
    "convert": "converting the model",
    "weights": "reading the weights",
    "cache": "preparing the cache",
}
ENDS = {
    "stop": "answered",
    "length": "answer cut at its longest",
    "context": "stopped at the context's end",
    "cancelled": "stopped",
    "memory": "stopped: memory",
    "error": "answer failed",
}


@dataclass(frozen=True)
class Entry:
    time: float
    """Seconds since the epoch."""
    sentence: str
    style: str = ""


def ranges(layers: tuple[int, ...]) -> str:
    """(2, 3, 4, 7) as "L2-4, L7"."""
    ordered = sorted(layers)
    breaks = [0] + [i + 1 for i, (a, b) in enumerate(pairwise(ordered)) if b != a + 1]
    runs = [ordered[a:b] for a, b in pairwise([*breaks, len(ordered)])]
    return ", ".join(f"L{run[0]}" + (f"-{run[-1]}" if len(run) > 1 else "") for run in runs if run)


def act(event: Acted) -> str:
    """What was done, without the reason: "L2-7 lowered to 5/4, 202M freed"."""
    what = {
        "lower": f"{ranges(event.layers) or 'cache'} lowered to"
        f" {event.key_bits or '–'}/{event.value_bits or '–'}",
        "clear": "scratch memory given back",
        "chunk": "prompt read in smaller pieces",
        "stop": "answer stopped",
    }[event.act]
    return what + (f", {figures.size(event.freed)} freed" if event.freed is not None else "")


def sentence(event: AnyEvent) -> str | None:
    """`event` as a line of the log; None for what the panels alone show."""
    match event:
        case Ready():
            return f"{event.model.name} is ready ({event.model.backend})"
        case Began():
            reused = f", {event.reused_tokens:,} reused" if event.reused_tokens else ""
            return f"reading {event.prompt_tokens:,} tokens{reused}"
        case Acted():
            return f"{act(event)}: {event.reason}"
        case Done():
            speed = f", {figures.rate(event.decode_rate)} tok/s" if event.decode_rate else ""
            end = event.sentence or f"{ENDS[event.reason]}, {event.tokens:,} tokens{speed}"
            return end
        case Error():
            return event.sentence
    return None


class EventLog:
    """The last entries, from events and from the app itself."""

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque(maxlen=KEPT)
        self.level: str | None = None
        self.stage: str | None = None

    def add(self, sentence: str, style: str = "") -> None:
        self.entries.append(Entry(time.time(), sentence, style))

    def take(self, event: AnyEvent) -> None:
        match event:
            case Sampled() if event.memory.level and event.memory.level != self.level:
                if self.level is not None:
                    level = event.memory.level
                    self.add(f"pressure {level}, was {self.level}", f"$pressure-{level}")
                self.level = event.memory.level
            case Loading() if event.stage != self.stage:
                self.stage = event.stage
                self.add(STAGES[event.stage])
            case Ready():
                self.stage = None
        if line := sentence(event):
            style = "$chat-action" if isinstance(event, Acted) else ""
            self.add(line, "$error" if isinstance(event, Error) else style)


def wrapped(entry: Entry, width: int) -> list[Content]:
    """The entry's rows: the time once, the sentence beside it."""
    clock = time.strftime("%H:%M:%S ", time.localtime(entry.time))
    lines = Content.styled(entry.sentence, entry.style).wrap(max(8, width - len(clock)))
    return [
        Content.assemble((clock if i == 0 else " " * len(clock), MUTED), line)
        for i, line in enumerate(lines)
    ]


class EventPanel(Panel):
    TITLE = "events"

    def __init__(self, live: Live, log: EventLog, id: str | None = None) -> None:
        super().__init__(live, id)
        self.events = log

    def rows(self, width: int, height: int, now: float) -> list[Content]:
        lines: list[Content] = []
        for entry in reversed(self.events.entries):
            lines[:0] = wrapped(entry, width)
            if len(lines) >= height:
                break
        return lines[-height:]

    def note(self, now: float) -> str:
        return ""
