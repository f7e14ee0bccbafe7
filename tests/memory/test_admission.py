"""Admission: what a step is let do, at whose cost, and what it is told when it may not."""

import pytest
from example_cache import cache, carried_out, layer, state
from hypothesis import given
from hypothesis import strategies as st

from kvcore.actions import ClearPool, Lower, Refuse, SmallerChunk
from kvcore.admission import BRISK_CHUNK, SMALLEST_CHUNK, admit
from kvcore.budget import CacheState, Plan, budgets
from kvcore.ladder import steps, token_cost
from kvcore.memory.sample import MemorySample

MIB = 1 << 20
GIB = 1 << 30


def sample(**known) -> MemorySample:
    return MemorySample(time=0.0, monotonic=0.0, **known)


def growth_of(held: CacheState, tokens: int) -> float:
    return tokens * sum(token_cost(report) for report in held.layers)


def ask(taken: MemorySample, held: CacheState, plan: Plan, tokens: int, scratch: float = 0):
    return admit(taken, held, plan, growth_of(held, tokens), scratch, tokens)


def test_what_fits_goes_on():
    held = cache(1000)
    plan = Plan(memory_limit=GIB, kv_limit=GIB)
    roomy = sample(mlx_active=MIB, available=4 * GIB, total=8 * GIB, gpu_limit=6 * GIB)
    assert ask(roomy, held, plan, 512, 100 * MIB) == ()


def test_nothing_known_bounds_nothing():
    assert ask(sample(), cache(1000), Plan(memory_limit=1), 512, GIB) == ()


def test_kv_limit_is_met_by_lowering_middle_layers_first_and_no_more_than_needed():
    held = cache(4096)
    plan = Plan(kv_limit=held.nbytes)
    (lower,) = ask(sample(), held, plan, 16)
    assert isinstance(lower, Lower)
    assert (lower.key_bits, lower.value_bits) == (5, 4)
    assert 15 in lower.layers and 0 not in lower.layers and len(lower.layers) < 15
    after = carried_out(held, (lower,), tokens=16)
    assert after.nbytes <= held.nbytes


def test_lowering_leaves_room_so_that_the_next_step_need_not_lower_again():
    held = cache(4096)
    plan = Plan(kv_limit=held.nbytes)
    after = carried_out(held, ask(sample(), held, plan, 16))
    assert ask(sample(), after, plan, 16) == ()


def test_a_chat_goes_down_rung_by_rung_to_the_floor_and_is_refused_only_there():
    held = cache(1000)
    plan = Plan(kv_limit=20 * MIB)
    seen: list[tuple[int, int]] = []
    while True:
        actions = ask(sample(), held, plan, 64)
        if any(isinstance(action, Refuse) for action in actions):
            break
        seen += [(a.key_bits, a.value_bits) for a in actions if isinstance(a, Lower)]
        held = carried_out(held, actions, tokens=64)
    assert list(dict.fromkeys(seen)) == [(5, 4), (4, 4), (4, 3), (3, 3), (3, 2), (2, 2)]
    assert not [s for s in steps(held.layers) if s.frees > 0.02 * held.nbytes]
    assert held.tokens > 1.5 * 20 * MIB / growth_of(cache(1000), 1)


def test_the_sentence_has_the_numbers_and_what_to_do():
    held = cache(8192, 30, 2, 2)
    (refuse,) = ask(sample(), held, Plan(kv_limit=20 * MIB), 512)
    assert refuse == Refuse(
        "The next 512 tokens do not fit: even at 2/2 bits the cache would hold 32.5 MB and "
        "--kv-limit is 20.0 MB; raise --kv-limit, use a shorter prompt, or start a new chat."
    )


def test_policy_off_refuses_and_says_so():
    held = cache(4096)
    (refuse,) = ask(sample(), held, Plan("off", kv_limit=held.nbytes), 1)
    assert isinstance(refuse, Refuse)
    assert "--policy off keeps every bit" in refuse.sentence
    assert "use --policy balanced" in refuse.sentence and "--kv-limit" in refuse.sentence
    assert refuse.sentence.startswith("The next token does not fit: the cache would hold ")


def test_memory_limit_counts_weights_cache_growth_and_scratch():
    held, plan = cache(4096), Plan(memory_limit=900 * MIB)
    active = sample(mlx_active=900 * MIB - 10_000_000)
    assert ask(active, held, plan, 1, 9_000_000) == ()
    (lower,) = ask(active, held, plan, 1, 10_500_000)
    assert isinstance(lower, Lower)
    assert lower.reason.endswith("--memory-limit is 900 MB")


def test_a_chunk_shrinks_before_bits_go_where_scratch_is_what_does_not_fit():
    held, plan = cache(4096), Plan(memory_limit=900 * MIB)
    active = sample(mlx_active=800 * MIB)
    (smaller,) = ask(active, held, plan, 512, 300 * MIB)
    assert isinstance(smaller, SmallerChunk) and smaller.tokens == BRISK_CHUNK
    (smaller,) = ask(active, held, plan, 512, 150 * MIB)
    assert isinstance(smaller, SmallerChunk) and smaller.tokens == 256


def test_at_the_floor_a_chunk_shrinks_further_and_then_the_step_is_refused():
    floor, plan = cache(4096, 30, 2, 2), Plan(memory_limit=900 * MIB)
    active = sample(mlx_active=880 * MIB)
    (smaller,) = ask(active, floor, plan, 128, 100 * MIB)
    assert isinstance(smaller, SmallerChunk) and smaller.tokens < BRISK_CHUNK
    (refuse,) = ask(active, floor, plan, SMALLEST_CHUNK, 100 * MIB)
    assert isinstance(refuse, Refuse)
    assert "MLX would hold 980 MB and --memory-limit is 900 MB" in refuse.sentence


def test_gpu_limit_of_unified_memory_is_for_what_mlx_holds():
    metal = sample(mlx_active=10 * GIB, gpu_limit=10 * GIB + MIB)
    (refuse,) = ask(metal, cache(0), Plan(), 1, GIB)
    assert isinstance(refuse, Refuse) and "the GPU's limit is 10.0 GB" in refuse.sentence


def test_a_card_of_its_own_is_bounded_by_all_that_use_it_and_not_by_the_machines_memory():
    card = sample(mlx_active=GIB, gpu_used=79 * GIB, gpu_limit=80 * GIB, available=1, total=GIB)
    assert ask(card, cache(1000), Plan(), 16, GIB // 2) == ()
    (refuse,) = ask(card, cache(0), Plan(), 1, 2 * GIB)
    assert isinstance(refuse, Refuse) and "GPU" in refuse.sentence


def test_what_the_system_has_left_is_never_used_up():
    tight = sample(available=GIB, total=16 * GIB, mlx_active=0)
    assert ask(tight, cache(0), Plan(), 1, GIB // 4) == ()
    (refuse,) = ask(tight, cache(0), Plan(), 1, 900 * MIB)
    assert isinstance(refuse, Refuse)
    assert "900 MB would be needed and the system has 532 MB left" in refuse.sentence


def test_the_pool_is_cleared_where_only_it_is_in_the_way():
    pooled = sample(available=GIB, total=16 * GIB, mlx_cache=GIB)
    actions = ask(pooled, cache(1000), Plan(), 16, GIB)
    assert [type(action) for action in actions] == [ClearPool]
    assert ask(pooled, cache(1000), Plan("off"), 16, GIB) == ()


def test_without_the_number_of_tokens_it_is_worked_out_from_the_growth():
    held = cache(4096)
    plan, growth = Plan(kv_limit=held.nbytes), growth_of(held, 512)
    assert admit(sample(), held, plan, growth, 0) == admit(sample(), held, plan, growth, 0, 512)


def test_a_model_whose_layers_are_all_its_own_can_only_be_refused():
    own = state([layer(index, 4096, None, None, kind="full") for index in range(4)])
    (refuse,) = ask(sample(), own, Plan(kv_limit=own.nbytes), 1)
    assert isinstance(refuse, Refuse) and "bits" not in refuse.sentence


@st.composite
def questions(draw):
    bits = st.tuples(st.integers(1, 6), st.integers(1, 6))
    tokens = draw(st.sampled_from([0, 100, 700, 4096, 20_000]))
    pairs = draw(st.lists(bits, max_size=8))
    held = state(
        [layer(index, tokens, *pair) for index, pair in enumerate(pairs)]
        + [layer(len(pairs), tokens, kind="full")] * draw(st.booleans())
    )
    active = held.nbytes + draw(st.integers(0, 50 * MIB))

    def near(size: int) -> st.SearchStrategy[int | None]:
        return st.none() | st.integers(size // 2, size * 2 + MIB)

    taken = sample(
        mlx_active=draw(st.sampled_from([None, active])),
        mlx_cache=draw(st.sampled_from([None, 0, MIB])),
        available=draw(near(10 * MIB)),
        total=draw(st.sampled_from([None, 100 * MIB])),
        gpu_used=draw(st.sampled_from([None, active])),
        gpu_limit=draw(near(active)),
    )
    plan = Plan(
        draw(st.sampled_from(["off", "careful", "balanced", "hard"])),
        memory_limit=draw(near(active)),
        kv_limit=draw(near(held.nbytes)),
    )
    step = draw(st.integers(1, 2048))
    return taken, held, plan, step, draw(st.integers(0, 20 * MIB))


@given(questions())
def test_what_is_admitted_fits_and_what_is_refused_does_not(question):
    taken, held, plan, tokens, scratch = question
    growth = growth_of(held, tokens)
    actions = admit(taken, held, plan, growth, scratch, tokens)
    refused = [action for action in actions if isinstance(action, Refuse)]
    known = budgets(taken, held, plan)
    if refused:
        assert actions == tuple(refused)
        assert any(budget.over(growth, scratch) > 0 for budget in known)
        if plan.policy != "off":
            floor = [s.frees + s.saves * tokens for s in steps(held.layers)]
            left = growth - sum(floor)
            assert any(budget.over(left, scratch) > -1 for budget in known)
        return
    chunk = next((a.tokens for a in actions if isinstance(a, SmallerChunk)), tokens)
    assert SMALLEST_CHUNK <= chunk < tokens or chunk == tokens
    after = carried_out(held, actions)
    assert after.nbytes <= held.nbytes
    freed = held.nbytes - after.nbytes
    # The report rounds a token's bytes to whole ones, a layer at a time.
    rounding = chunk * len(held.layers)
    for budget in known:
        over = budget.over(growth_of(after, chunk) - freed, scratch * chunk / tokens)
        assert over <= rounding
    if any(isinstance(action, Lower) for action in actions):
        assert plan.policy != "off"
        assert any(budget.over(growth, scratch) > 0 for budget in known)


@given(questions())
def test_carrying_it_out_and_asking_again_comes_to_an_end(question):
    taken, held, plan, tokens, scratch = question
    for _ in range(40):
        actions = ask(taken, held, plan, tokens, scratch)
        if all(isinstance(action, ClearPool | Refuse) for action in actions):
            return
        lowered = carried_out(held, actions)
        freed = held.nbytes - lowered.nbytes
        fewer = next((a.tokens for a in actions if isinstance(a, SmallerChunk)), tokens)
        assert freed or fewer < tokens or lowered != held
        scratch, tokens, held = scratch * fewer / tokens, fewer, lowered
        taken = sample(
            mlx_active=None if taken.mlx_active is None else taken.mlx_active - freed,
            mlx_cache=taken.mlx_cache,
            available=None if taken.available is None else taken.available + freed,
            total=taken.total,
            gpu_used=None if taken.gpu_used is None else taken.gpu_used - freed,
            gpu_limit=taken.gpu_limit,
        )
    pytest.fail("admission never came to an end")
