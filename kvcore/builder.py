"""One call gives a model its caches."""

from typing import Any

import mlx.nn as nn
from mlx_lm.models.cache import CacheList, KVCache, make_prompt_cache

from kvcore.attach import hook
from kvcore.cache import PackedKVCache
from kvcore.config import KVCacheConfig


class KVCacheBuilder:
    """Builds packed caches."""

    @staticmethod
    def for_model(model: nn.Module, config: KVCacheConfig | None = None) -> list[Any]:
        """One cache a layer, for `prompt_cache=` of mlx-lm's functions; also hooks the model.

        Only plain `KVCache` entries are packed, those inside a `CacheList` too. Sliding-window,
        recurrent and latent (MLA) caches are bounded or small already and stay as they are.
        """
        config = config or KVCacheConfig()
        caches = make_prompt_cache(model)
        if _attends_to_latents(model):
            for cache in _plain_caches(caches):
                setattr(cache, "latent", True)  # noqa: B010  for layer_reports
            return caches
        hook(model)
        return [_packed(cache, config) for cache in caches]


def _packed(cache: Any, config: KVCacheConfig) -> Any:
    if isinstance(cache, CacheList):
        return CacheList(*(_packed(inner, config) for inner in cache.caches))
    return PackedKVCache(config) if type(cache) is KVCache else cache


def _plain_caches(caches: list[Any]) -> list[KVCache]:
    inner = [part for c in caches for part in (c.caches if isinstance(c, CacheList) else [c])]
    return [cache for cache in inner if type(cache) is KVCache]


def _attends_to_latents(model: nn.Module) -> bool:
    """Multi-head latent attention, absorbed: mlx-lm's modules then embed the query."""
    return any(hasattr(module, "embed_q") for _, module in model.named_modules())
