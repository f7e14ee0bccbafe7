"""What the engine last said: one object that takes every event and that the panels draw from."""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from tui.messages import (
    Acted,
    AnyEvent,
    Began,
    Done,
    Error,
    Layers,
    Loading,
    ModelInfo,
    Prefill,
    Ready,
    Sampled,
    Setup,
    Token,
    Turn,
    Welcome,
)

Phase = Literal["connecting", "loading", "idle", "prefill", "writing", "dead"]

HISTORY = 60
STALE = 3.0
"""Seconds without a sample after which its figures are shown as old."""
ACTING = 6.0
"""Seconds that the status speaks of an act."""


@dataclass
class Live:
    """Events of one kind replace each other here, so a slow screen only skips figures."""

    setup: Setup
    phase: Phase = "connecting"
    model: ModelInfo | None = None
    loading: Loading | None = None
    loading_since: float | None = None
    prefill: Prefill | None = None
    began: Began | None = None
    sampled: Sampled | None = None
    sampled_at: float | None = None
    layers: Layers | None = None
    acted: Acted | None = None
    acted_at: float | None = None
    done: Done | None = None
    refused: str | None = None
    """The question, where the last answer was none because it is longer than the context."""
    asked_at: float | None = None
    first_token: float | None = None
    """Seconds from the question to the first piece of the answer, as the app saw them."""
    tokens: int = 0
    rate: float | None = None
    used_history: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    rate_history: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    turns: list[Turn] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        return self.phase in ("prefill", "writing")

    def age(self, now: float) -> float | None:
        """Seconds since the last sample where that is too long, else None."""
        if self.sampled_at is None:
            return None
        age = now - self.sampled_at
        return age if age > STALE else None

    def acting(self, now: float) -> Acted | None:
        """The last act while it is news."""
        recent = self.acted_at is not None and now - self.acted_at < ACTING
        return self.acted if recent else None

    def asked(self, text: str) -> None:
        """A user turn was sent: it counts as part of the chat from here on."""
        self.turns.append(Turn("user", text))
        self.begin()

    def again(self, text: str | None) -> None:
        """The last answer is asked for again; with `text`, of another question."""
        while self.turns and self.turns[-1].role == "assistant":
            self.turns.pop()
        if text is not None and self.turns and self.turns[-1].role == "user":
            self.turns[-1] = Turn("user", text)
        self.begin()

    def begin(self) -> None:
        """An answer is on its way."""
        self.phase = "prefill"
        self.tokens, self.rate, self.prefill, self.began = 0, None, None, None
        self.asked_at, self.first_token = time.monotonic(), None

    def take(self, event: AnyEvent, now: float | None = None) -> None:
        """Sets the state that `event` tells of; `now` in seconds of time.monotonic."""
        now = time.monotonic() if now is None else now
        match event:
            case Welcome():
                self.setup, self.model = event.setup, event.model
                self.turns = list(event.turns)
                self.loading = None
                self.phase = "writing" if event.busy else "idle" if event.model else "loading"
            case Loading():
                if self.loading is None or self.loading.stage != event.stage:
                    self.loading_since = now
                self.loading, self.phase = event, "loading"
            case Ready():
                self.model, self.loading, self.phase = event.model, None, "idle"
            case Began():
                if self.phase != "prefill":
                    self.begin()
                self.began = event
                self.turns.append(Turn("assistant", "", complete=False))
            case Prefill():
                self.prefill, self.phase = event, "prefill"
            case Token():
                self.phase, self.tokens = "writing", event.count
                if self.first_token is None and self.asked_at is not None and event.count <= 1:
                    self.first_token = now - self.asked_at
                self.rate = event.rate if event.rate is not None else self.rate
                self.grow(event.text)
            case Sampled():
                self.sampled, self.sampled_at = event, now
                if event.memory.used is not None:
                    self.used_history.append(event.memory.used)
                if self.phase == "writing" and self.rate is not None:
                    self.rate_history.append(self.rate)
            case Layers():
                self.layers = event
            case Acted():
                self.acted, self.acted_at = event, now
            case Done():
                self.done, self.phase = event, "idle"
                self.finish(complete=event.reason in ("stop", "length"))
                self.refused = None
                if event.reason == "context" and not event.tokens and self.turns:
                    # The engine takes a question out again that can never fit.
                    self.refused = self.turns.pop().text
            case Error():
                self.fail(event)

    def grow(self, text: str) -> None:
        """Adds a piece to the answer being written; an attached app may meet one half-done."""
        if not self.turns or self.turns[-1].role != "assistant":
            self.turns.append(Turn("assistant", "", complete=False))
        last = self.turns[-1]
        self.turns[-1] = Turn("assistant", last.text + text, complete=False)

    def finish(self, complete: bool) -> None:
        if self.turns and self.turns[-1].role == "assistant":
            self.turns[-1] = Turn("assistant", self.turns[-1].text, complete)

    def fail(self, error: Error) -> None:
        if error.fatal:
            self.phase, self.loading = "dead", None
            self.finish(complete=False)
        elif self.phase == "loading":
            self.loading, self.phase = None, "idle"
        elif self.phase == "prefill" and self.began is None:
            # The request was refused; a failure in the midst of an answer is followed by Done.
            self.phase = "idle"
