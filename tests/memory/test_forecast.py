"""The projection's figures."""

import pytest
from example_cache import cache, layer, state

from kvcore.budget import Plan
from kvcore.ladder import token_cost
from kvcore.memory.forecast import Forecast, project
from kvcore.memory.sample import MemorySample
from kvcore.memory.size import in_words

MIB = 1 << 20
GIB = 1 << 30


def sample(**known) -> MemorySample:
    return MemorySample(time=0.0, **known)


def each(held) -> float:
    return sum(token_cost(report) for report in held.layers)


def test_without_a_token_to_judge_by_nothing_is_known():
    assert project(sample(available=GIB), state([]), Plan(kv_limit=GIB)) == Forecast()


def test_without_a_bound_only_the_cost_of_a_token_is_known():
    held = cache(1000)
    assert project(sample(), held, Plan()) == Forecast(bytes_per_token=each(held))


def test_the_nearest_limit_is_named():
    held = cache(1000)
    machine = sample(available=10 * GIB, total=16 * GIB, mlx_active=2 * GIB, gpu_limit=12 * GIB)
    names = [
        project(machine, held, plan).limit
        for plan in (Plan(), Plan(memory_limit=3 * GIB), Plan(kv_limit=20 * MIB))
    ]
    assert names == ["system", "--memory-limit", "--kv-limit"]
    gpu = sample(available=10 * GIB, total=16 * GIB, mlx_active=10 * GIB, gpu_limit=12 * GIB)
    assert project(gpu, held, Plan()).limit == "GPU"


def test_tokens_are_bytes_left_over_bytes_a_token():
    held = cache(1000)
    forecast = project(
        sample(available=4 * GIB, total=16 * GIB, warn_below=GIB),
        held,
        Plan(kv_limit=held.nbytes + 100 * round(each(held))),
    )
    assert forecast.tokens_to_limit == 100
    assert forecast.tokens_to_warn == int(3 * GIB / each(held))
    assert forecast.tokens_at_floor is not None and forecast.tokens_at_floor > 1000


def test_past_a_limit_no_tokens_are_left_and_at_the_floor_the_floor_is_where_we_are():
    held = cache(4096, 30, 2, 2)
    over = project(sample(), held, Plan(kv_limit=1000))
    assert (over.tokens_to_limit, over.tokens_at_floor) == (0, 0)
    roomy = project(sample(), held, Plan(kv_limit=GIB))
    assert roomy.tokens_at_floor == roomy.tokens_to_limit


def test_at_the_floor_tokens_cost_what_they_would_in_a_cache_that_is_there():
    held, limit = cache(4096), 40 * MIB
    floor = cache(4096, 30, 2, 2)
    assert project(sample(), held, Plan(kv_limit=limit)).tokens_at_floor == pytest.approx(
        project(sample(), floor, Plan(kv_limit=limit)).tokens_to_limit, rel=0.01
    )


def test_a_window_costs_no_more_tokens():
    held = state([layer(0, 100, None, None, kind="sliding")])
    assert project(sample(), held, Plan(kv_limit=GIB)) == Forecast()


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1023, "1.00 KB"),
        (1536, "1.50 KB"),
        (20 * MIB, "20.0 MB"),
        (212 * MIB, "212 MB"),
        (1023 * MIB, "1.00 GB"),
        (3 << 40, "3.00 TB"),
        (5 << 50, "5120 TB"),
    ],
)
def test_sizes_in_words(nbytes, words):
    assert in_words(nbytes) == words
