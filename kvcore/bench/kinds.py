"""The caches that are measured, by the names that they have on the command line."""

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import mlx.nn as nn
from mlx_lm.models.cache import QuantizedKVCache, make_prompt_cache

from kvcore.artefact import read
from kvcore.builder import KVCacheBuilder
from kvcore.config import KVCacheConfig
from kvcore.methods import METHODS
from kvcore.model_caches import is_plain

Make: TypeAlias = Callable[[nn.Module], list[Any]]
"""A model's caches, made anew."""
FP16 = "fp16"
"""The model's own cache, which all are compared with: float32 where the model computes in that,
counted as half precision all the same."""
HELP = (
    "joined by commas: 6/4 (key/value bits), lowered:4/3 (a 6/4 cache lowered), METHOD,"
    " METHOD:4/2, METHOD@ARTEFACT:4/2, kv_bits=4 (mlx-lm's),"
    " ratequant:ARTEFACT:3.3 (bits by layer, the mean with scales and means)"
)
_PACKED = re.compile(
    r"((?P<method>\w+)(@(?P<artefact>.+?))?(:|$))?((?P<keys>\d+)/(?P<values>\d+))?"
)


def parse(name: str) -> Make:
    """Raises ValueError, with a sentence, for what names no cache."""
    if name == FP16:
        return make_prompt_cache
    if name.startswith("kv_bits="):
        width = name.removeprefix("kv_bits=")
        if width in ("2", "3", "4", "6", "8"):
            return _quantised_by_mlx_lm(int(width))
    elif name.startswith("ratequant:"):
        folder, _, mean_bits = name.removeprefix("ratequant:").rpartition(":")
        if folder and re.fullmatch(r"\d+(\.\d+)?", mean_bits):
            return _by_sensitivity(folder, float(mean_bits))
    elif (match := _PACKED.fullmatch(name)) and name:
        found = {key: text for key, text in match.groupdict().items() if text}
        bits: dict[str, Any] = {
            f"{side[:-1]}_bits": int(found[side]) for side in ("keys", "values") & found.keys()
        }
        if found.get("method") == "lowered" and bits:
            return _lowered(**bits)
        names: dict[str, Any] = {key: found[key] for key in ("method", "artefact") if key in found}
        return _packed(KVCacheConfig(**names, **bits))
    raise ValueError(f"{name!r} is no cache: write, {HELP}.")


def without_calibration() -> list[str]:
    """Every method that needs none, at the bits nearest to 4/4, after the default of the app."""
    names = ["6/4"]
    for method in METHODS.values():
        if method.calibrated or method.key_bits is None or method.name == "fp16":
            continue
        keys = _nearest(4, method.key_bits)
        names.append(f"{method.name}:{keys}/{_nearest(4, method.value_bits or (4, 4))}")
    return [*names, "kv_bits=4"]


def _nearest(bits: int, limits: tuple[int, int]) -> int:
    return max(limits[0], min(bits, limits[1]))


def _packed(config: KVCacheConfig) -> Make:
    return lambda model: KVCacheBuilder.for_model(model, config)


def _by_sensitivity(folder: str, mean_bits: float) -> Make:
    """Bits by layer, packed as the sensitivity in the folder was measured."""
    methods = read(folder).options
    names = {key: methods[key] for key in ("method", "value_method") if key in methods}
    return _packed(KVCacheConfig(**names, sensitivity=folder, mean_bits=mean_bits))


def _lowered(key_bits: int, value_bits: int) -> Make:
    """A cache that starts at 6/4 bits and is lowered before the first token, as under pressure."""

    def make(model: nn.Module) -> list[Any]:
        caches = KVCacheBuilder.for_model(model, KVCacheConfig())
        for cache in caches:
            cache.lower(key_bits, value_bits)
        return caches

    return make


def _quantised_by_mlx_lm(bits: int) -> Make:
    """mlx-lm's `kv_bits`, from the first token on."""

    def make(model: nn.Module) -> list[Any]:
        return [
            QuantizedKVCache(group_size=_group_size(model), bits=bits) if is_plain(cache) else cache
            for cache in make_prompt_cache(model)
        ]

    return make


def _group_size(model: nn.Module) -> int:
    """mlx-lm's default, or what its kernels have for a small head."""
    head_dim = getattr(getattr(model, "args", None), "head_dim", None) or 64
    return 64 if head_dim % 64 == 0 else 32
