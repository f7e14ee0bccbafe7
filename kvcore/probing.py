"""Measures what few bits in one layer do to the next-token distribution, layer by layer.

A window of text is read once in half precision. Then for each unit in turn, the keys or values of
a layer or of one of its KV heads, what lies between sinks and window is replaced by what the codec
would give back of it, and the model reads the last 128 tokens again.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import KVCache

from kvcore.builder import attends_to_latents
from kvcore.codes import BLOCK
from kvcore.config import KVCacheConfig
from kvcore.model_caches import is_plain, own_caches, parts
from kvcore.sensitivity import SIDES, Sensitivity, SideName, codec_at, widths

CONTEXT = 1024
"""Tokens of a window, by default."""
WINDOWS = 4
"""Of the text, by default."""
PROBE_BITS = 2
"""Or the fewest that the method has: few enough to be seen above the rounding of half precision."""

Place = tuple[int, SideName, int | None]
"""Layer, side, KV head or all."""


def probe(
    model: nn.Module,
    tokens: Sequence[int],
    config: KVCacheConfig,
    context: int = CONTEXT,
    windows: int = WINDOWS,
    by_head: bool = False,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[Sensitivity]:
    """The sensitivity of every layer that a packed cache would pack, keys before values.

    `config`: methods, window and sinks as in the chat; its bits are not read. `context`: tokens of
    a window; `windows`: so many, evenly spread over `tokens`. `by_head`: of each KV head apart.
    `report`: readings done, and all. Raises ValueError for a text that is too short, and for a
    model or a method that leaves nothing to choose.
    """
    if attends_to_latents(model):
        raise ValueError("this model's cache holds latents (MLA), which no method here packs.")
    if all(len(widths(config, side)) < 2 for side in SIDES):
        raise ValueError(f"method {config.method!r} has one width: there are no bits to share out.")
    context = min(context, len(tokens))
    if context < (needed := config.sinks + config.window + 2 * BLOCK):
        raise ValueError(
            f"windows of {context:,} tokens are too short: at least {needed:,} are needed."
        )
    windows = min(windows, len(tokens) // context)
    step = (len(tokens) - context) // max(1, windows - 1)
    found: dict[Place, list[Sensitivity]] = {}
    places: list[Place] = []
    for number in range(windows):
        reading = _Reading(model, tokens[number * step : number * step + context], config)
        places = reading.places(by_head)
        for at, place in enumerate(places):
            report(number * len(places) + at, windows * len(places))
            found.setdefault(place, []).append(reading.sensitivity(*place))
    report(windows * len(places), windows * len(places))
    return [_mean(of_place) for of_place in found.values()]


class _Reading:
    """One window of text, read up to its last 128 tokens."""

    def __init__(self, model: nn.Module, tokens: Sequence[int], config: KVCacheConfig) -> None:
        self._model, self._config = model, config
        before, self._last = list(tokens[:-BLOCK]), mx.array([list(tokens[-BLOCK:])])
        blocks = (len(before) - config.sinks - config.window) // BLOCK
        self._body = slice(config.sinks, config.sinks + blocks * BLOCK)
        self._caches = own_caches(model)
        for start in range(0, len(before), BLOCK):
            model(mx.array([before[start : start + BLOCK]]), cache=self._caches)
            mx.eval([cache.state for cache in self._caches])
        self._expected = self._log_probabilities(copy.deepcopy(self._caches))
        mx.eval(self._expected)

    def places(self, by_head: bool) -> list[Place]:
        layers = [_held(cache, "keys").shape[1] for cache in _plain(self._caches)]
        return [
            (layer, side, head)
            for layer, kv_heads in enumerate(layers)
            for side in SIDES
            for head in (range(kv_heads) if by_head else (None,))
        ]

    def sensitivity(self, layer: int, side: SideName, head: int | None) -> Sensitivity:
        caches = copy.deepcopy(self._caches)
        cache = _plain(caches)[layer]
        whole = _held(cache, side)
        vectors = whole[:, :, self._body].astype(mx.float32)
        bits = widths(self._config, side)
        probed = min(max(PROBE_BITS, bits[0]), bits[-1])
        errors: dict[int, float] = {}
        heads = slice(None) if head is None else slice(head, head + 1)
        for width in bits:
            codec = codec_at(self._config, layer, side, width)
            decoded = codec.decode(codec.encode(vectors, width, self._body.start))
            error = mx.square(decoded - vectors)[:, heads].sum()
            errors[width] = _number(error / mx.square(vectors[:, heads]).sum())
            if width == probed:
                packed = mx.array(whole)
                packed[:, heads, self._body] = decoded[:, heads].astype(whole.dtype)
                setattr(cache, side, packed)
        got = self._log_probabilities(caches)
        kl = (mx.exp(self._expected) * (self._expected - got)).sum(axis=-1).mean()
        return Sensitivity(
            layer, side, head, whole.shape[1], whole.shape[-1], probed, _number(kl), errors
        )

    def _log_probabilities(self, caches: list[Any]) -> mx.array:
        """Float32 [128, vocabulary], after each of the last tokens."""
        logits = self._model(self._last, cache=caches)[0].astype(mx.float32)
        return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def _plain(caches: list[Any]) -> list[KVCache]:
    return [part for cache in caches for part in parts(cache) if is_plain(part)]


def _held(cache: KVCache, side: SideName) -> mx.array:
    """[1, kv_heads, n, head_dim], with the buffer's room."""
    held = getattr(cache, side)
    assert isinstance(held, mx.array)
    return held


def _number(scalar: mx.array) -> float:
    return float(np.array(scalar))


def _mean(of_place: list[Sensitivity]) -> Sensitivity:
    """Of the windows."""
    first = of_place[0]
    return Sensitivity(
        first.layer,
        first.side,
        first.head,
        first.kv_heads,
        first.head_dim,
        first.bits,
        float(np.mean([one.effect for one in of_place])),
        {bits: float(np.mean([one.errors[bits] for one in of_place])) for bits in first.errors},
    )
