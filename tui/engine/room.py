"""Room in memory for the model's next step: foreseen, asked for, and made."""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

import mlx.core as mx

from kvcore.memory.sample import Level, MemorySample
from kvcore.watchdog import (
    Action,
    CacheState,
    ClearPool,
    Lower,
    Plan,
    Refuse,
    SmallerChunk,
    admit,
)
from tui.engine.generation import PROBE, CachedModel
from tui.messages import Acted, Event, Layers

CHUNK = 512
"""Tokens of the prompt that are computed at once. More is hardly faster, needs more scratch, and
a stop has to wait for the end of the chunk."""

REMEMBERED = 2
"""Steps whose scratch the next one is judged by."""

CLEAR_INTERVAL = 10.0
"""Seconds in which the clearing of MLX's pool is told once."""

Step = Literal["prefill", "decode"]
Act = Literal["lower", "clear", "chunk", "stop"]


class Room:
    """Asks kvcore.watchdog before each step of the model, does what it says, and tells of it.

    Belongs to the model's thread. Any thread may `post` actions, replace `plan` and read `held`,
    the cache as it was at the last look, None without a model, and `peak`, the most bytes that
    MLX held in any step but the present one.
    """

    def __init__(
        self,
        plan: Plan,
        read_sample: Callable[[], MemorySample],
        emit: Callable[[Event], None],
    ) -> None:
        self.plan = plan
        self.chunk = CHUNK
        self.held: CacheState | None = None
        self.peak = 0
        self._read_sample = read_sample
        self._emit = emit
        self._posted: deque[Action] = deque()
        self._level: Level | None = None
        self._reported_at = -math.inf
        self._cleared_at = -math.inf
        self._scratch: dict[Step, deque[float]] = {}
        self._measured: tuple[Step, int] | None = None

    def meet(self, cached: CachedModel) -> None:
        """A new model: what the last one needed tells nothing of this one."""
        self._scratch = {
            "prefill": deque([cached.scratch / PROBE], maxlen=REMEMBERED),
            "decode": deque(maxlen=REMEMBERED),
        }
        self._measured = None

    def post(self, actions: tuple[Action, ...]) -> None:
        """Have the actions done between two steps."""
        self._posted.extend(actions)

    def look(self, cached: CachedModel) -> CacheState:
        self.held = cached.state()
        return self.held

    def report(self, cached: CachedModel, interval: float = 0.0) -> None:
        """Tell of the layers, unless that was done less than `interval` seconds ago."""
        now = time.monotonic()
        if now - self._reported_at >= interval:
            self._reported_at = now
            self._emit(layers_event(self.look(cached)))

    def settle(self, cached: CachedModel) -> str | None:
        """Do what was posted; a sentence where the answer under way has to end."""
        refusal = None
        while self._posted:
            refusal = self._carry_out(self._posted.popleft(), cached) or refusal
        return refusal

    def forecast(self, cached: CachedModel, tokens: int) -> tuple[int, Refuse | None]:
        """The cache's bytes with `tokens` more, at its present bits; and what has to be said
        where not even the fewest bits can hold them."""
        self._measured = None  # what has been freed since is not scratch
        state, growth = cached.outlook(tokens)
        actions = self._ask(state, growth, 0, tokens)
        refusals = (action for action in actions if isinstance(action, Refuse))
        return state.nbytes + growth, next(refusals, None)

    def admit(self, cached: CachedModel, step: Step, tokens: int) -> str | None:
        """Make room for the next `tokens`, of which prefill takes no more than `chunk` at once.
        A sentence where there is none to be made."""
        self._measure()
        seen = None
        while True:
            wanted = min(tokens, self.chunk) if step == "prefill" else tokens
            state, growth = cached.outlook(wanted)
            bits = [(layer.key_bits, layer.value_bits) for layer in state.layers]
            self._measured = (step, wanted)
            if seen == (wanted, bits):
                return None  # the last round changed nothing, and the next one would not
            seen = (wanted, bits)
            scratch = round(wanted * max(self._scratch[step], default=0.0))
            actions = self._ask(state, growth, scratch, wanted)
            for action in actions:
                if refusal := self._carry_out(action, cached):
                    return refusal
            if not any(isinstance(action, Lower | SmallerChunk) for action in actions):
                return None

    def _ask(self, state: CacheState, growth: int, scratch: int, tokens: int) -> tuple[Action, ...]:
        sample = self._read_sample()
        self._level = sample.level
        return admit(sample, state, self.plan, growth, scratch, tokens)

    def _measure(self) -> None:
        """What the last step needed for each token, beyond what it left; measuring begins anew."""
        peak = mx.get_peak_memory()
        self.peak = max(self.peak, peak)
        if self._measured is not None:
            step, tokens = self._measured
            # A short chunk needs more for each of its tokens than a long one ever will.
            if step == "decode" or tokens >= PROBE:
                scratch = max(0, peak - mx.get_active_memory())
                self._scratch[step].append(scratch / tokens)
        mx.reset_peak_memory()

    def _carry_out(self, action: Action, cached: CachedModel) -> str | None:
        match action:
            case Refuse():
                return self.refuse(action, cached)
            case ClearPool(reason):
                before = mx.get_cache_memory()
                mx.clear_cache()
                freed = before - mx.get_cache_memory()
                # Near a limit this comes before every step: worth telling now and then.
                if time.monotonic() - self._cleared_at >= CLEAR_INTERVAL:
                    self._cleared_at = time.monotonic()
                    self._tell("clear", reason, cached, freed=freed)
            case SmallerChunk(tokens, reason):
                self.chunk = tokens
                self._tell("chunk", f"{reason}; {tokens} tokens at once", cached)
            case Lower(layers, key_bits, value_bits, reason):
                before = cached.state().nbytes
                cached.lower(layers, key_bits, value_bits)
                self._tell(
                    "lower",
                    reason,
                    cached,
                    freed=before - cached.state().nbytes,
                    layers=layers,
                    key_bits=key_bits,
                    value_bits=value_bits,
                )
                self.report(cached)
                # The peak was this act's own.
                mx.reset_peak_memory()
        return None

    def refuse(self, refuse: Refuse, cached: CachedModel) -> str:
        self._tell("stop", refuse.sentence, cached)
        return refuse.sentence

    def _tell(self, act: Act, reason: str, cached: CachedModel, **figures: Any) -> None:
        self._emit(
            Acted(
                act=act,
                reason=reason,
                level=self._level,
                at_token=len(cached.tokens),
                **figures,
            )
        )


def layers_event(state: CacheState) -> Layers:
    halves = [layer.half_nbytes for layer in state.layers]
    half_nbytes = None
    if any(half is not None for half in halves):
        # A layer that is not ours counts the same on both sides of the comparison.
        half_nbytes = sum(
            layer.nbytes if layer.half_nbytes is None else layer.half_nbytes
            for layer in state.layers
        )
    return Layers(
        tokens=state.tokens, nbytes=state.nbytes, half_nbytes=half_nbytes, layers=state.layers
    )
