"""The caches and the tokens they are said to hold agree, and old ones serve like new ones."""

from itertools import islice

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models import llama
from tiny_model import CONFIG

from kvcore import KVCacheConfig
from tui.engine.generation import CachedModel, common_prefix

# A window so wide that nothing is packed: what is computed again comes out the same to the bit.
EXACT = KVCacheConfig(window=4096)
PACKED = KVCacheConfig(window=32, sinks=4)
PROMPT = [(7 * i + i // 5) % 256 for i in range(40)]


def greedy(logprobs: mx.array) -> mx.array:
    return mx.argmax(logprobs, axis=-1)


def answer(cached: CachedModel, prompt: list[int], count: int) -> list[int]:
    cached.reuse(prompt)
    rest = prompt[len(cached.tokens) : -1]
    if rest:
        cached.prefill(rest)
    return list(islice(cached.decode(prompt[-1], greedy), count))


def agree(cached: CachedModel) -> bool:
    return all(cache.offset == len(cached.tokens) for cache in cached.caches)


@pytest.fixture
def cached(tiny) -> CachedModel:
    return CachedModel(tiny.model, EXACT)


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_common_prefix(held, wanted):
    count = common_prefix(held, wanted)
    assert held[:count] == wanted[:count]
    assert count in (len(held), len(wanted)) or held[count] != wanted[count]


def test_a_model_begins_with_empty_caches(cached):
    assert cached.tokens == [] and agree(cached)
    assert cached.state().nbytes == 0


def test_the_caches_hold_what_was_yielded(cached):
    tokens = answer(cached, PROMPT, 9)
    assert cached.tokens == PROMPT + tokens
    assert agree(cached)


@pytest.mark.parametrize("taken", range(4))
def test_what_was_stopped_serves_the_next_prompt(cached, tiny, taken):
    """Stopped after so many tokens, in an answer that the next prompt goes on from or not."""
    tokens = answer(cached, PROMPT, taken)
    assert agree(cached)
    for prompt in (PROMPT + tokens + [1, 2, 3], [*PROMPT[:17], 9, 9], PROMPT):
        assert answer(cached, prompt, 12) == answer(CachedModel(tiny.model, EXACT), prompt, 12)
        assert agree(cached)


def test_only_what_differs_is_computed(cached):
    answer(cached, PROMPT, 5)
    assert cached.reuse([*PROMPT[:30], 250, 251]) == 30
    assert cached.reuse(PROMPT[:30]) == 29  # the last token's logits are needed


def test_packed_caches_go_back_too(tiny):
    cached = CachedModel(tiny.model, PACKED)
    prompt = PROMPT * 12
    answer(cached, prompt, 3)
    for kept in (470, 300, 133, 20, 0):
        assert cached.reuse([*prompt[:kept], 255, 255]) == kept
        assert agree(cached)


def test_a_window_that_has_wrapped_starts_anew():
    layers = ["sliding_attention", "full_attention"] * 2
    arguments = llama.ModelArgs.from_dict(CONFIG | {"layer_types": layers, "sliding_window": 16})
    model = llama.Model(arguments)
    cached = CachedModel(model, EXACT)
    first = answer(cached, PROMPT, 6)
    assert cached.reuse([*PROMPT[:25], 3, 3]) == 0
    assert agree(cached)
    assert answer(cached, PROMPT, 6) == first


@pytest.mark.parametrize("config", [EXACT, PACKED, KVCacheConfig()])
@pytest.mark.parametrize("steps", [[1], [40, 40, 100], [500], [300, 300], [512, 1, 90], [200] * 4])
def test_growth_is_foreseen(tiny, config, steps):
    cached = CachedModel(tiny.model, config)
    for step in steps:
        before, growth = cached.outlook(step)
        cached.prefill([step % 256] * step)
        # All but what a layer holds beside its tokens: the rotation's tables, the blocks' means.
        aside = 4 * 1024 if any(cache.body for cache in cached.caches) else 0
        grown = max(0, cached.state().nbytes - before.nbytes)
        assert grown == pytest.approx(growth, abs=aside)


def test_lowering_is_foreseen_in_empty_caches(tiny):
    cached = CachedModel(tiny.model, PACKED)
    _, fine = cached.outlook(1024)
    cached.lower(range(4), 2, 2)
    state, coarse = cached.outlook(1024)
    assert [layer.key_bits for layer in state.layers] == [2] * 4
    cached.prefill([1] * 1024)
    assert coarse < fine
    assert coarse == pytest.approx(cached.state().nbytes, rel=0.3)
