"""The app under an engine that recites, with the event loop's stalls measured; run by interface.py.

Arguments: a text's name, tokens a second, the descriptor that the figures go to as JSON.
"""

import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass, field
from functools import partial

from tui import guard, paths
from tui.bench.fake_engine import FakeEngine
from tui.bench.texts import TEXTS
from tui.messages import Setup
from tui.settings import Settings

TICK = 0.01
"""Seconds between two looks at how late the event loop is."""
HISTORY = 30
"""Turns of an earlier chat above the answer, so that its length is paid for."""


@dataclass
class Watch:
    """How late the event loop came, tick by tick, and how long it computed meanwhile, in seconds.

    Lateness is what a key press feels. Computing alone is what the app is to blame for: on a busy
    machine the rest of the lateness is other programs' turn.
    """

    late: list[float] = field(default_factory=list)
    computed: list[float] = field(default_factory=list)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, busy = loop.time() + TICK, time.thread_time()
            await asyncio.sleep(TICK)
            self.late.append(max(0.0, loop.time() - due))
            self.computed.append(time.thread_time() - busy)

    def figures(self) -> dict[str, float]:
        late = sorted(self.late)
        return {
            "p50": late[len(late) // 2],
            "p99": late[len(late) * 99 // 100],
            "max": late[-1],
            "computed_max": max(self.computed),
        }


def main(name: str, rate: float, report: int) -> None:
    guard.environment()
    with guard.private_terminal(paths.log()):
        # Not before the guard: textual reads the environment and the terminal at import.
        from tui.app import VeloxquantApp

        engine = FakeEngine(TEXTS["mixed"])

        async def connect(setup: Setup) -> FakeEngine:
            return engine

        app = VeloxquantApp(Setup(model="smollm2"), Settings(), connect)

        async def said(text: str) -> None:
            """Ask, and wait until the answer has been shown to its end."""
            await app.submit(text)
            while not engine.turns or engine.turns[-1].role == "user" or app.live.busy:
                await asyncio.sleep(TICK)

        async def measure() -> None:
            while app.live.phase != "idle":
                await asyncio.sleep(TICK)
            for number in range(HISTORY):
                await said(f"earlier question {number}")
            engine.answers, engine.rate = [TEXTS[name]], rate
            os.write(report, b"\n")
            watch = Watch()
            watching = asyncio.create_task(watch.run())
            busy, wall = time.process_time(), time.monotonic()
            await said("recite")
            busy, wall = time.process_time() - busy, time.monotonic() - wall
            watching.cancel()
            found = {**watch.figures(), "processor": busy / wall, "seconds": wall}
            os.write(report, json.dumps(found).encode())
            await app.action_quit()

        app.call_later(partial(app.run_worker, measure()))
        guard.spare_the_collector()
        app.run()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
