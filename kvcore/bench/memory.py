"""Bytes that a cache really holds: the sum over its arrays beside what MLX's allocator says."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, make_prompt_cache


@dataclass(frozen=True)
class Held:
    """`arrays`: sum over the arrays. `active`: growth of MLX's active memory. `half`: bytes of the
    same tokens as plain fp16 keys and values. `peak`: highest active memory above what was held
    before, while the tokens were read."""

    name: str
    tokens: int
    arrays: int
    active: int
    half: int
    peak: int


def measure(
    model: nn.Module,
    tokens: list[int],
    kinds: dict[str, Callable[[nn.Module], list[Any]]],
    chunk: int = 512,
) -> Iterator[Held]:
    """Reads `tokens` into a cache of each kind."""
    half = len(tokens) * _half_nbytes_of_a_token(model)
    for name, make in kinds.items():
        # What is compiled or built once must not count as the cache's.
        _read(model, tokens[: 2 * chunk], make(model), chunk)
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        caches = _read(model, tokens, make(model), chunk)
        peak = mx.get_peak_memory() - before
        mx.clear_cache()
        active = mx.get_active_memory() - before
        arrays = sum(cache.nbytes for cache in caches)
        del caches
        yield Held(name, len(tokens), arrays, active, half, peak)


def table(rows: Iterable[Held]) -> str:
    """A Markdown table; the only ratio is fp16's bytes over all that is held."""
    lines = [
        "| cache | tokens | sum of arrays | MLX active | fp16 | held, of fp16 | times smaller "
        "| peak while reading |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.name} | {row.tokens:,} | {row.arrays:,} | {row.active:,} | {row.half:,} "
            f"| {row.arrays / row.half:.3f} | {row.half / row.arrays:.2f} | {row.peak:,} |"
        )
    return "\n".join(lines)


def _half_nbytes_of_a_token(model: nn.Module) -> int:
    caches = _read(model, [0], make_prompt_cache(model), 1)
    plain = [cache for cache in caches if type(cache) is KVCache]
    sides = (side for cache in plain for side in cache.keys_and_values())
    return sum(2 * side.size for side in sides if side is not None)


def _read(model: nn.Module, tokens: list[int], caches: list[Any], chunk: int) -> list[Any]:
    for start in range(0, len(tokens), chunk):
        model(mx.array([tokens[start : start + chunk]]), cache=caches)
        mx.eval([cache.state for cache in caches])
    return caches
