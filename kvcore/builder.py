"""One call gives a model its caches; a chain of calls gives a single head one, with no model."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Literal

import mlx.nn as nn
from mlx_lm.models.cache import KVCache

from kvcore.artefact import check_model, read
from kvcore.attach import hook
from kvcore.bitplanes import GROUP
from kvcore.cache import PackedKVCache
from kvcore.config import KVCacheConfig
from kvcore.model_caches import is_a, is_plain, own_caches
from kvcore.sensitivity import layer_configs
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
        Raises ArtefactError for an artefact that is not of this model, or not as `config` needs it,
        and ValueError for a budget that is too small for it.
        """
        config = config or KVCacheConfig()
        if config.artefact is not None:
            check_model(read(config.artefact), model)
        caches = own_caches(model)
        if attends_to_latents(model):
            replace_plain(caches, _marked_as_latent)
            return caches
        hook(model)
        if config.sensitivity is None:
            return replace_plain(caches, lambda layer, _: PackedKVCache(config, layer))
        configs = layer_configs(config, model)
        return replace_plain(caches, lambda layer, _: PackedKVCache(configs[layer], layer))


def replace_plain(caches: list[Any], make: Callable[[int, KVCache], Any]) -> list[Any]:
    """The caches, each plain `KVCache` among them replaced by `make(its number, it)`; they are
    numbered as they come, those inside a `CacheList` too."""
    numbers = count()

    def replaced(cache: Any) -> Any:
        if is_a(cache, "CacheList"):
            return type(cache)(*(replaced(inner) for inner in cache.caches))
        return make(next(numbers), cache) if is_plain(cache) else cache

    return [replaced(cache) for cache in caches]


def attends_to_latents(model: nn.Module) -> bool:
    """Multi-head latent attention, absorbed: mlx-lm's modules then embed the query."""
    return any(hasattr(module, "embed_q") for _, module in model.named_modules())


def _marked_as_latent(layer: int, cache: KVCache) -> KVCache:
    setattr(cache, "latent", True)  # noqa: B010  for layer_reports
    return cache
