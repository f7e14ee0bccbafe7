"""One call gives a model its caches; a chain of calls gives a single head one, with no model."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import mlx.nn as nn
from mlx_lm.models.cache import CacheList, KVCache, make_prompt_cache

from kvcore.attach import hook
from kvcore.bitplanes import GROUP
from kvcore.cache import PackedKVCache
from kvcore.config import KVCacheConfig
from kvcore.single_head import SingleHeadCache


@dataclass(frozen=True)
class KVCacheBuilder:
    """Builds packed caches.

    For one head, each `with_` returns a builder that knows more, and `build` the cache. It keeps no
    window and no sinks unless told to: the method shall be seen.
    """

    head_dim: int = 128
    fields: dict[str, Any] = field(default_factory=lambda: {"window": 0, "sinks": 0})
    """Of a KVCacheConfig."""

    def with_method(self, key: str, value: str | None = None) -> "KVCacheBuilder":
        """`value`: packs the values; the same method, or what goes with it, by default."""
        return self._with(method=key, value_method=value)

    def with_head_dim(self, head_dim: int) -> "KVCacheBuilder":
        """Raises ValueError unless it is a multiple of 8."""
        if head_dim <= 0 or head_dim % GROUP:
            raise ValueError(f"head_dim must be a multiple of {GROUP}, not {head_dim!r}.")
        return replace(self, head_dim=head_dim)

    def with_bit_width(self, inlier: int, value: int | None = None) -> "KVCacheBuilder":
        """Bits a code, `inlier` of the keys' channels that are no outliers, and of the values
        unless `value` is given."""
        return self._with(key_bits=inlier, value_bits=inlier if value is None else value)

    def with_outliers(self, channels: int) -> "KVCacheBuilder":
        return self._with(outliers=channels)

    def with_conditioning(self, conditioning: Literal["block_mean", "none"]) -> "KVCacheBuilder":
        return self._with(conditioning=conditioning)

    def with_jl_dim(self, jl_dim: int) -> "KVCacheBuilder":
        """Rows of the sign sketch, for the methods that keep one."""
        return self.with_options(jl_dim=jl_dim)

    def with_options(self, **options: int | float | str | bool) -> "KVCacheBuilder":
        """What belongs to the keys' method alone, as its own docstring says."""
        return self._with(options=self.fields.get("options", {}) | options)

    def with_window(self, tokens: int) -> "KVCacheBuilder":
        return self._with(window=tokens)

    def with_sinks(self, tokens: int) -> "KVCacheBuilder":
        return self._with(sinks=tokens)

    def with_seed(self, seed: int) -> "KVCacheBuilder":
        return self._with(seed=seed)

    def build(self) -> SingleHeadCache:
        """Raises ValueError, as KVCacheConfig does."""
        return SingleHeadCache(KVCacheConfig(**self.fields), self.head_dim)

    def _with(self, **fields: Any) -> "KVCacheBuilder":
        return replace(self, fields=self.fields | fields)

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
