"""The predictions, held against caches that are really there."""

import mlx.core as mx
import pytest

from kvcore.actions import Lower, Refuse, lowers
from kvcore.admission import admit
from kvcore.attach import layer_reports
from kvcore.budget import CacheState, Plan
from kvcore.cache import PackedKVCache
from kvcore.config import KVCacheConfig
from kvcore.ladder import steps, token_cost
from kvcore.memory.sample import MemorySample

KV_HEADS, HEAD_DIM = 2, 64


def append(caches: list[PackedKVCache], tokens: int) -> None:
    for cache in caches:
        keys, values = (mx.random.normal((1, KV_HEADS, tokens, HEAD_DIM)) for _ in range(2))
        mx.eval(cache.update_and_fetch(keys, values))


def look(caches: list[PackedKVCache]) -> CacheState:
    layers = layer_reports(caches)
    return CacheState(layers, caches[0].offset, sum(cache.nbytes for cache in caches))


def carry_out(caches: list[PackedKVCache], actions) -> int:
    """Bytes freed, as the caches say."""
    freed = 0
    for action in actions:
        assert isinstance(action, Lower)
        for index in action.layers:
            freed += caches[index].lower(action.key_bits, action.value_bits)
    return freed


@pytest.fixture
def caches() -> list[PackedKVCache]:
    mx.random.seed(1)
    found = [PackedKVCache(KVCacheConfig()) for _ in range(5)]
    append(found, 132 + 4 * 128)
    return found


@pytest.mark.parametrize("count", [1, 5, 8, 17, 30])
def test_steps_free_the_bytes_that_they_say(caches, count):
    before = look(caches)
    taken = list(steps(before.layers))[:count]
    freed = carry_out(caches, lowers(taken, "test"))
    assert freed == sum(step.frees for step in taken)
    assert look(caches).nbytes == before.nbytes - freed


def test_each_token_to_come_costs_less_by_what_the_steps_say(caches):
    before = look(caches)
    down = list(steps(before.layers))
    carry_out(caches, lowers(down, "test"))
    each = [sum(token_cost(layer) for layer in at.layers) for at in (before, look(caches))]
    assert each[0] - each[1] == pytest.approx(sum(step.saves for step in down), rel=0.01)


def test_a_chat_stays_within_its_limit_and_is_refused_only_where_the_floor_would_not_do(caches):
    plan, sample = Plan(kv_limit=look(caches).nbytes), MemorySample(time=0.0)
    assert plan.kv_limit is not None
    for _ in range(100):
        held = look(caches)
        # Recent tokens move on in whole blocks: what 128 more push out is two blocks at most.
        growth = 256 * sum(token_cost(layer) for layer in held.layers)
        actions = admit(sample, held, plan, growth, 0, 128)
        if any(isinstance(action, Refuse) for action in actions):
            break
        carry_out(caches, actions)
        append(caches, 128)
        assert look(caches).nbytes <= plan.kv_limit
    assert held.tokens > 644
    freed = carry_out(caches, [Lower((0, 1, 2, 3, 4), 2, 2, "to the floor")])
    floor_growth = 256 * sum(token_cost(layer) for layer in look(caches).layers)
    assert held.nbytes - freed + floor_growth > plan.kv_limit
