"""One answer of a real model, with the app's screen or without; run by interface.py.

Arguments: "screen" or "plain", the model, tokens, the descriptor that the figures go to as JSON.
"""

import asyncio
import json
import os
import sys
from functools import partial

from tui import guard, paths
from tui.engine.client import EngineClient
from tui.messages import Ask, Done, Error, Ready, Sampling, Setup
from tui.settings import Settings

PROMPT = "Write a long story about a lighthouse keeper, with a list of everything that he owns."


def main(how: str, model: str, tokens: int, report: int) -> None:
    setup = Setup(model=model, sampling=Sampling(temperature=0, max_tokens=tokens, seed=0))
    done = _with_screen(setup, report) if how == "screen" else asyncio.run(_without(setup))
    figures = {"tokens": done.tokens, "rate": done.decode_rate}
    os.write(report, json.dumps(figures).encode())


async def _without(setup: Setup) -> Done:
    client = await EngineClient.start(setup, paths.log())
    found: Done | None = None
    async for event in client.events():
        match event:
            case Ready():
                await client.send(Ask(PROMPT))
            case Done():
                found = event
                break
            case Error():
                raise RuntimeError(event.sentence)
    await client.close(shutdown=True)
    if found is None:
        raise RuntimeError("the engine left without an answer")
    return found


def _with_screen(setup: Setup, report: int) -> Done:
    guard.environment()
    with guard.private_terminal(paths.log()):
        # Not before the guard: textual reads the environment and the terminal at import.
        from tui.app import VeloxquantApp

        async def connect(setup: Setup) -> EngineClient:
            return await EngineClient.start(setup, paths.log())

        app = VeloxquantApp(setup, Settings(), connect)

        async def answer() -> None:
            while app.live.phase != "idle":
                await asyncio.sleep(0.05)
            os.write(report, b"\n")
            await app.submit(PROMPT)
            while app.live.done is None:
                await asyncio.sleep(0.05)
            await app.action_quit()

        app.call_later(partial(app.run_worker, answer()))
        app.run()
    if app.live.done is None:
        raise RuntimeError("the app left without an answer")
    return app.live.done


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
