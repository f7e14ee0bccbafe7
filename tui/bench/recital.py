"""The app under an engine that recites, with the event loop's stalls measured; run by interface.py.

Arguments: a text's name, tokens a second, the descriptor that the figures go to as JSON.
"""

import asyncio
import json
import os
import sys
import time
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


async def watch(lateness: list[float]) -> None:
    """Notes, tick by tick, how many seconds late the event loop came."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + TICK
        await asyncio.sleep(TICK)
        lateness.append(max(0.0, loop.time() - due))


def figures(lateness: list[float], busy: float, wall: float) -> dict[str, float]:
    ordered = sorted(lateness)
    return {
        "p50": ordered[len(ordered) // 2],
        "p99": ordered[len(ordered) * 99 // 100],
        "max": ordered[-1],
        "processor": busy / wall,
        "seconds": wall,
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
            lateness: list[float] = []
            watching = asyncio.create_task(watch(lateness))
            busy, wall = time.process_time(), time.monotonic()
            await said("recite")
            busy, wall = time.process_time() - busy, time.monotonic() - wall
            watching.cancel()
            os.write(report, json.dumps(figures(lateness, busy, wall)).encode())
            await app.action_quit()

        app.call_later(partial(app.run_worker, measure()))
        guard.spare_the_collector()
        app.run()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
