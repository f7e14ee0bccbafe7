"""`veloxquant-tui monitor`: memory of this machine, and caches of the engines that run on it."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from kvcore.memory.read import Reader
from kvcore.memory.sample import MemorySample
from kvcore.report import LayerReport
from tui import figures
from tui.arguments import Parser
from tui.engine.client import EngineClient
from tui.engine.endpoint import EngineError, running_engines
from tui.exits import DONE
from tui.live import Live
from tui.messages import Setup, Welcome

PATIENCE = 3.0
"""Seconds that an engine may take to say how it is."""
FASTEST = 100
OWN = ("process", "mlx_active", "mlx_cache", "mlx_peak")
"""What a sample says of the process that took it: here the monitor itself."""


@dataclass
class Watched:
    """An engine, and what it last said."""

    path: Path
    live: Live
    pid: int | None = None


def main(argv: Sequence[str]) -> int:
    parser = Parser("monitor", "Memory of this machine, and of the engines that run on it.")
    parser.add_argument("--once", action="store_true", help="look once, then leave")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "-i", "--interval", metavar="MS", type=int, default=1000, help="between two looks"
    )
    args = parser.read(argv)
    if args.interval < FASTEST:
        parser.error(f"-i must be at least {FASTEST} milliseconds, not {args.interval}")
    asyncio.run(_watch(args.once, args.json, args.interval / 1000))
    return DONE


async def _watch(once: bool, as_json: bool, interval: float) -> None:
    read_sample = Reader()
    async with aclosing(_looks(once, interval)) as looks:
        drawn = 0
        async for engines in looks:
            sample = read_sample()
            if as_json:
                print(msgspec.json.encode(to_json(sample, engines)).decode(), flush=True)
            else:
                drawn = _draw(to_text(sample, engines), drawn)


async def _looks(once: bool, interval: float) -> AsyncGenerator[list[Watched], None]:
    """The engines that run, as they last were: one time, or again and again."""
    followed: dict[Path, tuple[Watched, asyncio.Task[None]]] = {}
    try:
        while True:
            new = [path for path in running_engines() if path not in followed]
            for path in new:
                engine = Watched(path, Live(Setup(model=figures.UNKNOWN)))
                heard = asyncio.Event()
                followed[path] = engine, asyncio.create_task(_follow(engine, heard))
                with suppress(TimeoutError):
                    await asyncio.wait_for(heard.wait(), PATIENCE)
            for path in [path for path, (_, task) in followed.items() if task.done()]:
                del followed[path]
            yield [engine for engine, _ in followed.values()]
            if once:
                return
            await asyncio.sleep(interval)
    finally:
        for _, task in followed.values():
            task.cancel()
        await asyncio.gather(*(task for _, task in followed.values()), return_exceptions=True)


async def _follow(engine: Watched, heard: asyncio.Event) -> None:
    """Takes an engine's events until its end; `heard` is set once it has told its figures."""
    try:
        client = await EngineClient.attach(engine.path)
    except EngineError:
        heard.set()
        return
    try:
        async for event in client.events():
            engine.live.take(event)
            if isinstance(event, Welcome):
                engine.pid = event.pid
            if engine.live.sampled is not None or engine.live.phase == "dead":
                heard.set()
    finally:
        heard.set()
        await client.close(shutdown=False)


def to_json(sample: MemorySample, engines: Sequence[Watched]) -> dict[str, Any]:
    """The sample's fields, and "engines": one object each, null where nothing is known."""
    machine = {name: value for name, value in asdict(sample).items() if name not in OWN}
    return machine | {"engines": [_engine_json(engine) for engine in engines]}


def _engine_json(engine: Watched) -> dict[str, Any]:
    live = engine.live
    return {
        "pid": engine.pid,
        "socket": str(engine.path),
        "phase": live.phase,
        "model": live.model,
        "rate": live.rate,
        "sample": live.sampled,
        "layers": live.layers,
    }


def to_text(sample: MemorySample, engines: Sequence[Watched]) -> list[str]:
    lines = [
        f"memory   {sample.level or figures.UNKNOWN} ({sample.level_source or 'no sensor'})",
        f"         used {figures.size(sample.used)} of {figures.size(sample.total)}, "
        f"available {figures.size(sample.available)}, cached {figures.size(sample.cached)}, "
        f"compressed {figures.size(sample.compressed)}, swap {figures.size(sample.swap_used)}",
    ]
    for engine in engines:
        lines += ["", *_engine_text(engine)]
    if not engines:
        lines.append("engines  none")
    return lines


def _engine_text(engine: Watched) -> list[str]:
    live, sampled, layers = engine.live, engine.live.sampled, engine.live.layers
    model = live.model
    lines = [
        f"engine   {engine.pid or figures.UNKNOWN}, {live.phase}, "
        + (f"{model.name} on {model.backend}" if model else live.setup.model),
    ]
    if sampled is not None:
        weights, process = figures.size(sampled.weights), figures.size(sampled.memory.process)
        lines.append(
            f"         weights {weights}, process {process}, {figures.rate(live.rate)} tok/s"
        )
    if layers is not None:
        lines.append(
            f"cache    {layers.tokens:,} tokens in {figures.size(layers.nbytes)}; "
            f"fp16: {figures.size(layers.half_nbytes)}, "
            f"{figures.compression(layers.half_nbytes, layers.nbytes)}"
        )
        lines += [f"         {row}" for row in _layer_rows(layers.layers)]
    return lines


def _layer_rows(layers: Sequence[LayerReport]) -> list[str]:
    """One row for neighbours of one kind and precision."""
    rows = []
    for (kind, key_bits, value_bits), group in groupby(
        layers, lambda layer: (layer.kind, layer.key_bits, layer.value_bits)
    ):
        same = list(group)
        first, last = same[0].index, same[-1].index
        span = f"layer {first}" if first == last else f"layers {first}-{last}"
        bits = "" if key_bits is None else f" keys {key_bits} bits, values {value_bits} bits,"
        nbytes = figures.size(sum(layer.nbytes for layer in same))
        rows.append(f"{span:<13} {kind:<8}{bits} {nbytes}")
    return rows


def _draw(lines: list[str], drawn: int) -> int:
    """Prints; on a terminal over the `drawn` lines of before. Returns how many it printed."""
    if not sys.stdout.isatty():
        print("\n".join(lines), flush=True)
        return 0
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    shown = [line[: columns - 1] for line in lines[: rows - 1]]
    start = f"\x1b[{min(drawn, rows - 1)}A\x1b[J" if drawn else ""
    print(start + "\n".join(shown), flush=True)
    return len(shown)
