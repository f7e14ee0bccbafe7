"""A needle test: a random fact planted in filler text at several depths, asked for at the end.

A small model rarely answers right, so beside exact answers it counts how probable the right one is;
what a cache loses shows as the difference to the half-precision cache's.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from kvcore.bench.kinds import Make
from kvcore.bench.quality import log_softmax

DEPTHS = (0.1, 0.4, 0.7)
"""Shares of the filler before the fact; nearer to the end it would lie in the plain window."""
PLACES = ("Lisbon", "Oslo", "Nairobi", "Lima", "Kyoto", "Dublin", "Havana", "Cairo")


@dataclass(frozen=True)
class Needle:
    """`tokens`: the filler with the fact in it, and the question. `answer`: the right one's."""

    depth: float
    tokens: list[int]
    answer: list[int]


@dataclass(frozen=True)
class Found:
    """`needles`: share of answers whose every token was the most probable one.
    `needle_log_probability`: mean of the right answers', nats, depth after depth."""

    needles: float
    needle_log_probability: tuple[float, ...]


def needles(
    windows: list[list[int]], encode: Callable[[str], list[int]], count: int
) -> list[Needle]:
    """`count` of them at each depth, always the same. `windows`: the filler, used in turn.
    `encode`: text to tokens, no special ones added."""
    random = np.random.default_rng(0)
    made = []
    for number in range(count):
        filler = windows[number % len(windows)]
        for depth in DEPTHS:
            place = PLACES[int(random.integers(len(PLACES)))]
            secret = int(random.integers(10_000, 100_000))
            at = round(depth * len(filler))
            fact = encode(f"\nThe secret number of {place} is {secret}.\n")
            question = encode(
                f"\nQuestion: What is the secret number of {place}?"
                f"\nAnswer: The secret number of {place} is"
            )
            tokens = [*filler[:at], *fact, *filler[at:], *question]
            made.append(Needle(depth, tokens, encode(f" {secret}")))
    return made


def measure(
    model: nn.Module,
    needles: list[Needle],
    make: Make,
    chunk: int,
    report: Callable[[int], None] = lambda tokens: None,
) -> Found:
    """`report` is told the tokens of each chunk read."""
    exact: list[bool] = []
    by_depth: dict[float, list[float]] = {}
    for needle in needles:
        caches = make(model)
        # The last token of the question goes with the answer: its logits choose the first of it.
        read, asked = needle.tokens[:-1], [*needle.tokens[-1:], *needle.answer[:-1]]
        for start in range(0, len(read), chunk):
            tokens = read[start : start + chunk]
            model(mx.array([tokens]), cache=caches)
            mx.eval([cache.state for cache in caches])
            report(len(tokens))
        logits = model(mx.array([asked]), cache=caches)[0]
        answer = mx.array(needle.answer)
        log_probability = log_softmax(logits)[mx.arange(len(needle.answer)), answer].sum()
        by_depth.setdefault(needle.depth, []).append(float(log_probability))
        exact.append(bool((mx.argmax(logits, axis=-1) == answer).all()))
    return Found(float(np.mean(exact)), tuple(float(np.mean(each)) for each in by_depth.values()))
