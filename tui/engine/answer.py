"""The writing of one answer: prefill, decode, and what was measured on the way."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx
from mlx_lm.sample_utils import make_sampler

from tui.engine.generation import CachedModel
from tui.engine.room import CHUNK, Room, Step
from tui.messages import Began, Done, Event, Prefill, Sampling, Token

ADMISSION_INTERVAL = 16
"""Decoded tokens between two admissions."""

LAYERS_INTERVAL = 1.0
"""Seconds between two reports of the layers."""


@dataclass(frozen=True)
class End:
    """Why an answer ended, and a sentence for the user where one is due."""

    reason: Literal["stop", "length", "context", "cancelled", "memory", "error"]
    sentence: str | None = None


class Answer:
    """Written once, by `write`, on the thread that owns the model."""

    def __init__(
        self,
        cached: CachedModel,
        tokenizer: Any,
        context: int | None,
        sampling: Sampling,
        room: Room,
        emit: Callable[[Event], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self._cached = cached
        self._tokenizer = tokenizer
        self._detokenizer = tokenizer.detokenizer
        self._context = context
        self._sampling = sampling
        self._room = room
        self._emit = emit
        self._cancelled = cancelled
        self._text: list[str] = []
        self._started = time.perf_counter()
        self._prompt_tokens = 0
        self._reused_tokens = 0
        self._count = 0
        self._prefill_rate: float | None = None
        self._first_token: float | None = None

    @property
    def text(self) -> str:
        return "".join(self._text)

    def write(self, prompt: list[int]) -> End:
        """Tokens in, events out, until something ends it. The caches hold what was computed."""
        self._prompt_tokens = len(prompt)
        if self._context is not None and len(prompt) >= self._context:
            self._emit(Began(prompt_tokens=len(prompt), reused_tokens=0))
            return End("context", _too_long(len(prompt), self._context))
        return self._prefill(prompt) or self._decode(prompt)

    def done(self, end: End) -> Done:
        return Done(
            reason=end.reason,
            prompt_tokens=self._prompt_tokens,
            reused_tokens=self._reused_tokens,
            tokens=self._count,
            prefill_rate=self._prefill_rate,
            decode_rate=self._decode_rate(),
            first_token=self._first_token and self._first_token - self._started,
            seconds=time.perf_counter() - self._started,
            cache=self._cached.state().nbytes,
            sentence=end.sentence,
        )

    def _prefill(self, prompt: list[int]) -> End | None:
        """All of the prompt but its last token, with which decoding begins."""
        cached, room = self._cached, self._room
        self._reused_tokens = cached.reuse(prompt)
        total = len(prompt) - self._reused_tokens
        forecast, refuse = room.forecast(cached, total)
        self._emit(
            Began(
                prompt_tokens=len(prompt),
                reused_tokens=self._reused_tokens,
                forecast_bytes=forecast,
            )
        )
        if refuse is not None:
            return End("memory", room.refuse(refuse, cached))

        room.chunk = CHUNK
        started = time.perf_counter()
        while left := len(prompt) - 1 - len(cached.tokens):
            done = total - 1 - left
            self._emit(Prefill(done=done, total=total, rate=self._prefill_rate))
            if end := self._pause("prefill", left):
                return end
            chunk = prompt[len(cached.tokens) :][: min(left, room.chunk)]
            cached.prefill(chunk)
            self._prefill_rate = _rate(done + len(chunk), time.perf_counter() - started)
        return self._pause("decode", ADMISSION_INTERVAL)

    def _decode(self, prompt: list[int]) -> End:
        sampling = self._sampling
        limit, limited = sampling.max_tokens, End("length")
        if self._context is not None and self._context - len(prompt) < limit:
            limit, limited = self._context - len(prompt), End("context", _full(self._context))
        mx.random.seed(_any_seed() if sampling.seed is None else sampling.seed)
        sampler = make_sampler(temp=sampling.temperature, top_p=sampling.top_p)
        end: End | None = None
        tokens = self._cached.decode(prompt[-1], sampler)
        while end is None:
            end = self._take(next(tokens), limit, limited)
        self._detokenizer.finalize()
        self._say()
        return end

    def _take(self, token: int, limit: int, limited: End) -> End | None:
        if self._first_token is None:
            self._first_token = time.perf_counter()
            total = self._prompt_tokens - self._reused_tokens
            self._emit(Prefill(done=total, total=total, rate=self._prefill_rate))
        if token in self._tokenizer.eos_token_ids:
            return End("stop")
        self._count += 1
        self._detokenizer.add_token(token)
        self._say()
        if self._count >= limit:
            return limited
        due = self._count % ADMISSION_INTERVAL == 0
        return self._pause("decode", ADMISSION_INTERVAL if due else None)

    def _pause(self, step: Step, tokens: int | None = None) -> End | None:
        """Between two steps: what was posted is done, a stop is heeded, and where the next step
        is `tokens` long, room is made for it."""
        if refusal := self._room.settle(self._cached):
            return End("memory", refusal)
        if self._cancelled():
            return End("cancelled")
        if tokens and (refusal := self._room.admit(self._cached, step, tokens)):
            return End("memory", refusal)
        self._room.report(self._cached, LAYERS_INTERVAL)
        return None

    def _say(self) -> None:
        segment = self._detokenizer.last_segment
        self._text.append(segment)
        self._emit(Token(text=segment, count=self._count, rate=self._decode_rate()))

    def _decode_rate(self) -> float | None:
        if self._first_token is None:
            return None
        return _rate(self._count - 1, time.perf_counter() - self._first_token)


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if tokens > 0 and seconds > 0 else None


def _any_seed() -> int:
    return int.from_bytes(os.urandom(8), "little")


def _too_long(tokens: int, context: int) -> str:
    return (
        f"The chat with this message has {tokens:,} tokens and the model's context ends at "
        f"{context:,}: shorten the message, or start a new chat."
    )


def _full(context: int) -> str:
    return f"The model's context of {context:,} tokens is full: start a new chat to go on."
