"""What happens, in one plain sentence each: for the event log, the status line and `ask`."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from tui import figures
from tui.messages import Acted, AnyEvent, Began, Done, Error, Ready

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


def short(model: str) -> str:
    """The last part of an id or a path: it is what tells models apart."""
    return Path(model).name or model


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


def together(acts: Sequence[Acted]) -> str:
    """Acts that followed at once: "cache lowered to 5/4, 4/4, 420K freed"."""
    bits = dict.fromkeys(f"{each.key_bits}/{each.value_bits}" for each in acts if each.layers)
    if len(acts) == 1 or not bits:
        return "; ".join(map(act, acts))
    freed = sum(each.freed or 0 for each in acts)
    return f"cache lowered to {', '.join(bits)}, {figures.size(freed)} freed"


def sentence(event: AnyEvent) -> str | None:
    """`event` as a line of the log; None for what the panels alone show."""
    match event:
        case Ready():
            return f"{short(event.model.name)} is ready ({event.model.backend})"
        case Began():
            reused = f", {event.reused_tokens:,} reused" if event.reused_tokens else ""
            return f"reading {event.prompt_tokens:,} tokens{reused}"
        case Acted(act="stop"):
            return None  # Done, which follows, has the same sentence
        case Acted():
            return f"{act(event)}: {event.reason}"
        case Done():
            speed = f", {figures.rate(event.decode_rate)} tok/s" if event.decode_rate else ""
            end = event.sentence or f"{ENDS[event.reason]}, {event.tokens:,} tokens{speed}"
            return end
        case Error():
            return event.sentence
    return None
