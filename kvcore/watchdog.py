"""The watchdog: looks once a second and carries out what the policy decides.

The policy is pure, in kvcore.policy and kvcore.admission; those who carry it out find all its
names here.
"""

import logging
import threading
from collections.abc import Callable

from kvcore.actions import Action, ClearPool, Lower, Refuse, SmallerChunk
from kvcore.admission import admit
from kvcore.budget import CacheState, Plan, Policy
from kvcore.ladder import LADDER
from kvcore.memory.sample import MemorySample
from kvcore.policy import State, decide

__all__ = [
    "LADDER",
    "Action",
    "CacheState",
    "ClearPool",
    "Lower",
    "Plan",
    "Policy",
    "Refuse",
    "SmallerChunk",
    "State",
    "Watchdog",
    "admit",
    "decide",
]

log = logging.getLogger(__name__)


class Watchdog(threading.Thread):
    """`read_cache` gives None while there is no cache. `carry_out` gets what decide wants, on this
    thread. `plan` may be replaced at any time and holds from the next sample on."""

    def __init__(
        self,
        read_sample: Callable[[], MemorySample],
        read_cache: Callable[[], CacheState | None],
        carry_out: Callable[[tuple[Action, ...]], None],
        plan: Plan,
        interval: float = 1.0,
    ) -> None:
        super().__init__(name="watchdog", daemon=True)
        self.plan = plan
        self._read_sample = read_sample
        self._read_cache = read_cache
        self._carry_out = carry_out
        self._interval = interval
        self._stopping = threading.Event()

    def run(self) -> None:
        state = State()
        while not self._stopping.wait(self._interval):
            try:
                sample = self._read_sample()
                cache = self._read_cache()
                if cache is None:
                    continue
                state, actions = decide(state, sample, cache, self.plan)
                if actions:
                    self._carry_out(actions)
            except Exception:
                # One failed look must not leave the machine unwatched.
                log.exception("The watchdog could not carry out its look at memory.")

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stopping.set()
        if self.is_alive() and threading.current_thread() is not self:
            self.join()
