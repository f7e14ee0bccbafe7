"""What a packed cache does to the model's next-token distribution, beside a half-precision one.

Each window is fed in chunks to a cache of the kind and to the model's own, side by side; a chunk's
queries see the chunk in full, as they do in a chat, so chunks of 128 leave them as little as decode
does. At three quarters of a window and at its end both go on greedily, until they differ.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from kvcore.bench.kinds import Make
from kvcore.model_caches import is_plain

QUARTERS = 4
CONTINUED = (3, 4)
"""Quarters at whose ends both caches go on greedily; before them, little may be packed."""


@dataclass(frozen=True)
class Quality:
    """`kl`: mean KL divergence to the half-precision cache, nats. `flips`: share of positions whose
    most probable token differs. `held`: bytes over those of fp16, everything counted.
    `nbytes_by_quarter`: held at the end of each quarter of a window. `alike`: mean tokens of a
    greedy continuation before the first that differs, None where none was asked for."""

    perplexity: float
    kl: float
    kl_by_quarter: tuple[float, ...]
    flips: float
    held: float
    nbytes_by_quarter: tuple[float, ...]
    alike: float | None


def measure(
    model: nn.Module,
    windows: list[list[int]],
    make: Make,
    chunk: int,
    continuation: int = 0,
    report: Callable[[int], None] = lambda tokens: None,
) -> Quality:
    """`continuation`: most tokens to go on for. `report` is told the tokens of each chunk read."""
    kl, flips, loss, held, nbytes, alike = [], [], [], [], [], []
    for window in windows:
        expected_caches, caches = make_prompt_cache(model), make(model)
        starts = range(0, len(window), chunk)
        ends = [round(quarter * len(starts) / QUARTERS) for quarter in range(1, QUARTERS + 1)]
        of_chunks = []
        for number, start in enumerate(starts, 1):
            tokens = mx.array([window[start : start + chunk]])
            expected = _read(model, tokens, expected_caches)
            got = _read(model, tokens, caches)
            for sums, found in zip(
                (kl, flips, loss),
                _compared(expected, got, window[start + 1 : start + chunk + 1]),
                strict=True,
            ):
                sums.append(found)
            of_chunks.append(_held(caches))
            if continuation and number in [ends[quarter - 1] for quarter in CONTINUED]:
                both = deepcopy(expected_caches), deepcopy(caches)
                alike.append(_alike(model, both, (expected[-1], got[-1]), continuation))
            report(tokens.size)
        held.append(of_chunks[-1] / _half_nbytes(expected_caches))
        nbytes.append([of_chunks[max(end, 1) - 1] for end in ends])
    by_window = np.concatenate(kl).reshape(len(windows), -1)
    quarters = np.array_split(by_window, QUARTERS, axis=1)
    return Quality(
        perplexity=float(np.exp(np.concatenate(loss).mean())),
        kl=float(by_window.mean()),
        kl_by_quarter=tuple(float(quarter.mean()) for quarter in quarters),
        flips=float(np.concatenate(flips).mean()),
        held=float(np.mean(held)),
        nbytes_by_quarter=tuple(map(float, np.mean(nbytes, axis=0))),
        alike=float(np.mean(alike)) if alike else None,
    )


def log_softmax(logits: mx.array) -> mx.array:
    logits = logits.astype(mx.float32)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def _compared(
    reference: mx.array, logits: mx.array, targets: list[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """KL divergence and whether the first choice differs, by position; the loss of each target."""
    expected, got = log_softmax(reference), log_softmax(logits)
    kl = (mx.exp(expected) * (expected - got)).sum(axis=-1)
    flips = mx.argmax(reference, axis=-1) != mx.argmax(logits, axis=-1)
    # The last token of a window has no target.
    loss = -got[mx.arange(len(targets)), mx.array(targets, mx.int32)]
    return np.array(kl), np.array(flips), np.array(loss)


def _alike(
    model: nn.Module,
    caches: tuple[list[Any], list[Any]],
    logits: tuple[mx.array, mx.array],
    most: int,
) -> int:
    """Tokens that both caches choose alike, from the logits [vocabulary] of the last token on."""
    for count in range(most):
        token, other = (int(mx.argmax(each)) for each in logits)
        if token != other:
            return count
        expected, got = (_read(model, mx.array([[token]]), each)[-1] for each in caches)
        logits = expected, got
    return most


def _read(model: nn.Module, tokens: mx.array, caches: list[Any]) -> mx.array:
    """Logits [tokens, vocabulary]."""
    logits = model(tokens, cache=caches)[0]
    mx.eval(logits, [cache.state for cache in caches])
    return logits


def _held(caches: list[Any]) -> int:
    """Of plain caches without their padding, at two bytes an element: all count as fp16."""
    plain = [cache for cache in caches if is_plain(cache)]
    return round(_half_nbytes(plain)) + sum(x.nbytes for x in caches if not is_plain(x))


def _half_nbytes(caches: list[Any]) -> float:
    """Bytes of a plain cache's tokens at two bytes an element, without its padding."""
    plain = [cache for cache in caches if is_plain(cache)]
    sides = (side for cache in plain for side in cache.keys_and_values())
    return sum(2 * side.size for side in sides if side is not None)
