"""The caches a model makes for itself: mlx-lm's, or mlx-vlm's, which are other classes alike."""

from typing import Any

import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

_MODULES = ("mlx_lm.models.cache", "mlx_vlm.models.cache")


def own_caches(model: nn.Module) -> list[Any]:
    """One a layer. A vision-language model may leave it to its language model which these are."""
    language_model = getattr(model, "language_model", None)
    if language_model is not None and not hasattr(model, "make_cache"):
        model = language_model
    return make_prompt_cache(model)


def is_plain(cache: Any) -> bool:
    """Whether it keeps all keys and values and nothing else."""
    cls = type(cache)
    return cls.__name__ == "KVCache" and cls.__module__ in _MODULES


def is_a(cache: Any, name: str) -> bool:
    """Whether it is of the class of that name, or of one derived from it."""
    return any(cls.__name__ == name and cls.__module__ in _MODULES for cls in type(cache).__mro__)


def parts(cache: Any) -> list[Any]:
    """What a `CacheList` consists of; of others, the cache alone."""
    return list(cache.caches) if is_a(cache, "CacheList") else [cache]
