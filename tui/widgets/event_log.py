"""What happened, with the time, one plain sentence each."""

import time
from collections import deque
from dataclasses import dataclass

from textual.content import Content

from tui.live import Live
from tui.messages import Acted, AnyEvent, Error, Loading, Ready, Sampled
from tui.sentences import STAGES, sentence
from tui.widgets.panel import MUTED, Panel

KEPT = 1000
BRIEF = 2
"""Rows of the panel that one entry may take."""


@dataclass(frozen=True)
class Entry:
    time: float
    """Seconds since the epoch."""
    sentence: str
    style: str = ""


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


def brief(entry: Entry, width: int) -> list[Content]:
    """The entry's first rows, with a sign where the rest is left to the log's own screen."""
    rows = wrapped(entry, width)
    if len(rows) > BRIEF:
        rows = [*rows[: BRIEF - 1], Content.assemble(rows[BRIEF - 1].truncate(width - 1), "…")]
    return rows


class EventPanel(Panel):
    TITLE = "events"

    def __init__(self, live: Live, log: EventLog, id: str | None = None) -> None:
        super().__init__(live, id)
        self.events = log

    def rows(self, width: int, height: int, now: float) -> list[Content]:
        lines: list[Content] = []
        for entry in reversed(self.events.entries):
            lines[:0] = brief(entry, width)
            if len(lines) >= height:
                break
        return lines[-height:]

    def note(self, now: float) -> str:
        return ""
