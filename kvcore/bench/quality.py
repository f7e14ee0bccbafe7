"""What a packed cache does to the model's next-token distribution, beside a half-precision one.

Each window is fed in chunks to a cache of each kind and to the model's own; a chunk's queries see
the chunk in full, as they do in a chat, so chunks of 128 leave them as little as decode does.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import KVCache, QuantizedKVCache, make_prompt_cache

from kvcore.builder import KVCacheBuilder
from kvcore.config import KVCacheConfig

QUARTERS = 4


@dataclass(frozen=True)
class Quality:
    """`kl`: mean KL divergence to the half-precision cache, nats. `flips`: share of positions whose
    most probable token differs. `held`: bytes over those of fp16, everything counted."""

    name: str
    perplexity: float
    kl: float
    kl_by_quarter: tuple[float, ...]
    flips: float
    held: float


def packed(key_bits: int, value_bits: int) -> Callable[[nn.Module], list[Any]]:
    config = KVCacheConfig(key_bits=key_bits, value_bits=value_bits)
    return lambda model: KVCacheBuilder.for_model(model, config)


def lowered(key_bits: int, value_bits: int) -> Callable[[nn.Module], list[Any]]:
    """A cache that starts at 6/4 bits and is lowered before the first token, as under pressure."""

    def make(model: nn.Module) -> list[Any]:
        caches = KVCacheBuilder.for_model(model, KVCacheConfig())
        for cache in caches:
            cache.lower(key_bits, value_bits)
        return caches

    return make


def quantised_by_mlx_lm(bits: int) -> Callable[[nn.Module], list[Any]]:
    """mlx-lm's `kv_bits`, from the first token on."""

    def make(model: nn.Module) -> list[Any]:
        return [
            QuantizedKVCache(group_size=64, bits=bits) if type(cache) is KVCache else cache
            for cache in make_prompt_cache(model)
        ]

    return make


def measure(
    model: nn.Module,
    windows: list[list[int]],
    kinds: dict[str, Callable[[nn.Module], list[Any]]],
    chunk: int,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Quality]:
    """One `Quality` a kind, the model's own cache first, named "fp16"."""
    total = len(windows) * (len(kinds) + 1)
    sums = {name: _Sums() for name in ("fp16", *kinds)}
    for number, window in enumerate(windows):
        half_nbytes = 0.0
        reference: list[np.ndarray] = []
        for index, name in enumerate(sums):
            report(number * len(sums) + index, total)
            caches = make_prompt_cache(model) if name == "fp16" else kinds[name](model)
            for at, logits in enumerate(_chunks(model, caches, window, chunk)):
                if name == "fp16":
                    reference.append(np.array(logits.astype(mx.float32)))
                compared = mx.array(reference[at])
                start = at * chunk
                sums[name].add(compared, logits, window[start + 1 : start + chunk + 1])
            if name == "fp16":
                half_nbytes = _half_nbytes(caches)
            sums[name].held.append(_held(caches) / half_nbytes if name != "fp16" else 1.0)
            del caches
    report(total, total)
    for name, of_kind in sums.items():
        yield of_kind.quality(name, len(windows))


def table(rows: Iterable[Quality]) -> str:
    """A Markdown table."""
    lines = [
        "| cache | bytes held, of fp16 | perplexity | KL | KL by quarter | flips |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        quarters = " ".join(f"{kl:.5f}" for kl in row.kl_by_quarter)
        lines.append(
            f"| {row.name} | {row.held:.3f} | {row.perplexity:.3f} | {row.kl:.5f} | {quarters} "
            f"| {row.flips:.4f} |"
        )
    return "\n".join(lines)


class _Sums:
    """What is added up over the windows of one kind."""

    def __init__(self) -> None:
        self.kl: list[np.ndarray] = []
        self.flips: list[np.ndarray] = []
        self.loss: list[np.ndarray] = []
        self.held: list[float] = []

    def add(self, reference: mx.array, logits: mx.array, targets: list[int]) -> None:
        expected = _log_softmax(reference)
        got = _log_softmax(logits)
        kl = (mx.exp(expected) * (expected - got)).sum(axis=-1)
        flips = mx.argmax(reference, axis=-1) != mx.argmax(logits, axis=-1)
        # The last token of a window has no target.
        loss = -got[mx.arange(len(targets)), mx.array(targets)]
        mx.eval(kl, flips, loss)
        self.kl.append(np.array(kl))
        self.flips.append(np.array(flips))
        self.loss.append(np.array(loss))

    def quality(self, name: str, windows: int) -> Quality:
        by_window = np.concatenate(self.kl).reshape(windows, -1)
        quarters = np.array_split(by_window, QUARTERS, axis=1)
        return Quality(
            name,
            float(np.exp(np.concatenate(self.loss).mean())),
            float(by_window.mean()),
            tuple(float(quarter.mean()) for quarter in quarters),
            float(np.concatenate(self.flips).mean()),
            float(np.mean(self.held)),
        )


def _chunks(
    model: nn.Module, caches: list[Any], window: list[int], chunk: int
) -> Iterator[mx.array]:
    """Logits [chunk, vocabulary] of the window, chunk after chunk."""
    for start in range(0, len(window), chunk):
        tokens = mx.array([window[start : start + chunk]])
        logits = model(tokens, cache=caches)[0]
        mx.eval(logits, [cache.state for cache in caches])
        yield logits


def _log_softmax(logits: mx.array) -> mx.array:
    logits = logits.astype(mx.float32)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def _held(caches: list[Any]) -> int:
    return sum(cache.nbytes for cache in caches)


def _half_nbytes(caches: list[Any]) -> float:
    """Bytes of a plain cache's tokens at two bytes an element, without its padding."""
    plain = [cache for cache in caches if type(cache) is KVCache]
    sides = (side for cache in plain for side in cache.keys_and_values())
    return sum(2 * side.size for side in sides if side is not None)
