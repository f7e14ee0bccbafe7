"""What memory is bounded by: the user's own limits, the GPU's, and what the system has left."""

from dataclasses import dataclass
from typing import Literal

from kvcore.memory.sample import MemorySample
from kvcore.memory.size import in_words
from kvcore.report import LayerReport

Policy = Literal["off", "careful", "balanced", "hard"]

RESERVE_SHARE = 0.03
"""Share of the total that is never planned for: below it everything on the machine stalls."""

SLACK_SHARE = 1 / 32
"""Share of the cache that lowering frees on top of the need, so that the next is not at once."""


@dataclass(frozen=True)
class Plan:
    """What the user wants. `memory_limit`: bytes that MLX may hold, weights, cache and scratch;
    `kv_limit`: bytes that the cache may hold."""

    policy: Policy = "balanced"
    memory_limit: int | None = None
    kv_limit: int | None = None


@dataclass(frozen=True)
class CacheState:
    """The whole cache: `tokens` long, `nbytes` over all layers."""

    layers: tuple[LayerReport, ...]
    tokens: int
    nbytes: int


@dataclass(frozen=True)
class Budget:
    """`held` bytes of `limit` are taken; `pool` of these come back when MLX's pool is cleared.
    A step's scratch counts, unless the budget is for the cache alone."""

    name: str
    limit: int
    held: int
    pool: int = 0
    scratch: bool = True

    def over(self, growth: float = 0, scratch: float = 0) -> float:
        """Bytes too many once the pool is cleared; negative where there is room."""
        return self.held - self.pool + growth + scratch * self.scratch - self.limit

    def in_words(self) -> str:
        if self.name == "system":
            return f"the system has {in_words(max(0, self.limit + self.pool))} left"
        name = "the GPU's limit" if self.name == "GPU" else self.name
        return f"{name} is {in_words(self.limit)}"


def budgets(sample: MemorySample, cache: CacheState, plan: Plan) -> tuple[Budget, ...]:
    """The bounds that are known. What a dead sensor would have told bounds nothing."""
    found = []
    pool = sample.mlx_cache or 0
    if plan.kv_limit is not None:
        found.append(Budget("--kv-limit", plan.kv_limit, cache.nbytes, scratch=False))
    if plan.memory_limit is not None and sample.mlx_active is not None:
        found.append(Budget("--memory-limit", plan.memory_limit, sample.mlx_active))
    if sample.gpu_limit is not None and sample.gpu_used is not None:
        found.append(Budget("GPU", sample.gpu_limit, sample.gpu_used, min(pool, sample.gpu_used)))
    elif sample.gpu_limit is not None and sample.mlx_active is not None:
        found.append(Budget("GPU", sample.gpu_limit, sample.mlx_active))
    # On a card with memory of its own the cache takes none of the machine's.
    if sample.available is not None and sample.gpu_used is None:
        reserve = round((sample.total or 0) * RESERVE_SHARE)
        found.append(Budget("system", sample.available - reserve, 0, pool))
    return tuple(found)


def slack(cache: CacheState) -> float:
    """Bytes to free on top of what is needed."""
    return cache.nbytes * SLACK_SHARE
