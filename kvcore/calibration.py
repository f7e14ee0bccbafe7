"""Calibration: a model reads a text, and a method learns from its keys, values and queries."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Literal

import mlx.core as mx
import mlx.nn as nn

from kvcore.artefact import Artefact, fingerprint
from kvcore.codecs import Side
from kvcore.config import KVCacheConfig
from kvcore.listening import CONTEXT, KEPT_TOKENS, listen
from kvcore.methods import METHODS

Report = Callable[[Literal["read", "learn"], int, int], None]
"""(stage, done, total): tokens read, then layers learnt."""


def calibrate(
    model: nn.Module,
    name: str,
    tokens: Sequence[int],
    config: KVCacheConfig,
    context: int = CONTEXT,
    kept_tokens: int = KEPT_TOKENS,
    report: Report = lambda stage, done, total: None,
) -> tuple[Artefact, dict[str, mx.array]]:
    """What `config`'s method learns from `tokens`, for kvcore.artefact.save.

    `config`: of a cache that shall use it; its artefact is not read. `context`, `kept_tokens`: as
    for kvcore.listening.listen. Raises ValueError, with a sentence, where nothing can be learnt.
    """
    sides = [side for side in _sides(config) if METHODS[config.method].calibrated]
    if not sides:
        known = ", ".join(name for name, method in METHODS.items() if method.calibrated)
        raise ValueError(f"method {config.method!r} needs no calibration; these do: {known}.")
    samples = listen(model, tokens, context, kept_tokens, lambda *at: report("read", *at))
    dtype = str(samples[0].keys.dtype).removeprefix("mlx.core.")
    module = import_module(f"kvcore.codecs.{config.method}")
    arrays: dict[str, mx.array] = {}
    layers = len(samples)
    for layer in range(layers):
        report("learn", layer, layers)
        # Taken off the list, so that it is freed when its arrays are there.
        sample = samples.pop(0)
        for side in sides:
            learnt = module.learn(side, sample)
            arrays |= {f"layers.{layer}.{side.name}.{key}": x for key, x in learnt.items()}
        mx.eval(arrays)
    report("learn", layers, layers)
    bits = {side.name: side.bits for side in sides}
    artefact = Artefact(
        model=name,
        method=config.method,
        key_bits=bits["keys"],
        value_bits=bits.get("values"),
        conditioning=config.conditioning or "none",
        options=dict(config.options),
        value_options=dict(config.value_options) if "values" in bits else {},
        seed=config.seed,
        tokens=len(tokens),
        context=min(context, len(tokens)),
        dtype=dtype,
        fingerprint=fingerprint(model),
    )
    return artefact, arrays


def _sides(config: KVCacheConfig) -> list[Side]:
    """Those that the keys' method packs; an artefact holds one method's arrays."""
    keys = Side(
        "keys",
        config.key_bits,
        config.seed,
        config.options,
        conditioning=config.conditioning or "none",
    )
    values = Side("values", config.value_bits, config.seed, config.value_options)
    return [keys, values] if config.value_method == config.method else [keys]
