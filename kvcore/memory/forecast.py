"""How many tokens are left, at what a token costs now."""

from dataclasses import dataclass

from kvcore.budget import CacheState, Plan, budgets
from kvcore.ladder import steps, token_cost
from kvcore.memory.sample import MemorySample


@dataclass(frozen=True)
class Forecast:
    """Figures for the projection; None where nothing bounds it, or nothing is known yet.

    `limit` names the nearest: "--kv-limit", "--memory-limit", "GPU" or "system".
    `tokens_at_floor`: to that limit, with every layer at the ladder's last rung.
    """

    bytes_per_token: float | None = None
    tokens_to_warn: int | None = None
    tokens_to_limit: int | None = None
    limit: str | None = None
    tokens_at_floor: int | None = None


def project(sample: MemorySample, cache: CacheState, plan: Plan) -> Forecast:
    """Never a promise about other programs: what they take next is not in it."""
    each = sum(token_cost(layer) for layer in cache.layers)
    if each <= 0:
        return Forecast()
    to_warn = None
    if sample.available is not None and sample.warn_below is not None and sample.gpu_used is None:
        to_warn = _tokens(sample.available - sample.warn_below, each)
    nearest = max(budgets(sample, cache, plan), key=lambda budget: budget.over(), default=None)
    if nearest is None:
        return Forecast(bytes_per_token=each, tokens_to_warn=to_warn)
    down = list(steps(cache.layers))
    freed = sum(step.frees for step in down)
    each_at_floor = each - sum(step.saves for step in down)
    return Forecast(
        bytes_per_token=each,
        tokens_to_warn=to_warn,
        tokens_to_limit=_tokens(-nearest.over(), each),
        limit=nearest.name,
        tokens_at_floor=(
            _tokens(freed - nearest.over(), each_at_floor) if each_at_floor > 0 else None
        ),
    )


def _tokens(room: float, each: float) -> int:
    return max(0, int(room / each))
