"""The policy, by replaying series of samples against a cache that is lowered as it says."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from example_cache import cache, carried_out, layer, state
from hypothesis import given
from hypothesis import strategies as st

from kvcore.actions import Action, ClearPool, Lower, Refuse
from kvcore.budget import CacheState, Plan
from kvcore.ladder import FLOOR, steps
from kvcore.memory.sample import Level, MemorySample
from kvcore.policy import State, decide

GIB = 1 << 30
POLICIES = ("off", "careful", "balanced", "hard")


def sample(second: float, level: Level | None = "normal", **known) -> MemorySample:
    return MemorySample(time=1.8e9 + second, monotonic=second, total=16 * GIB, level=level, **known)


@dataclass
class Act:
    number: int
    second: float
    actions: tuple[Action, ...]
    latest: list[CacheState]
    """The cache at the last samples, this one's at the end."""

    @property
    def before(self) -> CacheState:
        return self.latest[-1]


def replay(
    samples: Iterable[MemorySample], plan: Plan, held: CacheState | None = None, tokens: int = 0
) -> tuple[list[Act], CacheState]:
    """Carries out what is decided, the cache growing by `tokens` a sample."""
    held = cache(4096) if held is None else held
    memory, acts, latest = State(), [], []
    for number, taken in enumerate(samples):
        latest = [*latest[-2:], held]
        memory, actions = decide(memory, taken, held, plan)
        if actions:
            assert taken.monotonic is not None
            acts.append(Act(number, taken.monotonic, actions, latest))
        held = carried_out(held, actions, tokens)
    return acts, held


def series(*levels: Level | None, **known) -> list[MemorySample]:
    return [sample(second, level, **known) for second, level in enumerate(levels)]


def kinds(acts: Sequence[Act]) -> list[list[type]]:
    return [[type(action) for action in act.actions] for act in acts]


def test_balanced_lowers_one_rung_after_three_samples_at_warn():
    acts, held = replay(series("normal", "warn", "warn", "warn"), Plan())
    (act,) = acts
    assert act.second == 3
    (lower,) = act.actions
    assert isinstance(lower, Lower)
    assert (lower.key_bits, lower.value_bits) == (5, 4)
    assert sorted(lower.layers) == list(range(30))
    assert held.nbytes < act.before.nbytes


def test_the_reason_names_level_and_source():
    acts, _ = replay(series(*["warn"] * 3, level_source="PSI full avg10 2.0 %"), Plan())
    (lower,) = acts[0].actions
    assert lower.reason == "memory pressure warn (PSI full avg10 2.0 %)"


def test_a_spike_is_let_pass():
    levels: list[Level | None] = ["normal"] * 5
    levels[2] = "critical"
    assert replay(series(*levels, *levels, *levels), Plan("hard"))[0] == []


def test_a_ramp_goes_down_the_whole_ladder_then_stops_the_answer():
    levels = ["normal"] * 5 + ["warn"] * 20 + ["critical"] * 60
    acts, held = replay(series(*levels), Plan(), tokens=5)
    assert kinds(acts[:7]) == [[Lower]] * 6 + [[Refuse]]
    assert [act.second for act in acts[:7]] == [7, 17, 27, 37, 47, 57, 67]
    assert not list(steps(held.layers))
    refuse = acts[6].actions[0]
    assert isinstance(refuse, Refuse) and "kept" in refuse.sentence


def test_warn_at_the_floor_leaves_the_answer_alone():
    assert replay(series(*["warn"] * 200), Plan(), cache(4096, 30, *FLOOR))[0] == []


def test_hard_takes_two_rungs_at_a_time():
    acts, _ = replay(series(*["warn"] * 3), Plan("hard"))
    (lower,) = acts[0].actions
    assert isinstance(lower, Lower) and (lower.key_bits, lower.value_bits) == (4, 4)


def test_careful_waits_for_critical():
    assert replay(series(*["warn"] * 60), Plan("careful"))[0] == []
    acts, _ = replay(series(*["warn"] * 9, "critical", "critical", "critical"), Plan("careful"))
    assert [act.second for act in acts] == [11]


def test_off_never_acts_even_over_a_budget():
    over = series(*["critical"] * 60, mlx_active=2 * GIB, mlx_cache=GIB)
    assert replay(over, Plan("off", memory_limit=GIB, kv_limit=1))[0] == []


def test_a_sawtooth_of_another_program_is_not_followed_downwards_between_its_teeth():
    tooth: list[Level | None] = ["warn", "warn", "normal", "critical", "normal"]
    assert replay(series(*tooth * 20), Plan())[0] == []


def test_a_sensor_that_dies_breaks_the_row_and_acts_on_nothing():
    assert replay(series("warn", "warn", None, "warn", "warn", None), Plan())[0] == []
    assert replay(series(*[None] * 60), Plan("hard"))[0] == []


def test_a_clock_that_goes_back_delays_by_one_wait_and_no_more():
    seconds = [100, 101, 102, *range(0, 30)]
    acts, _ = replay([sample(second, "warn") for second in seconds], Plan())
    assert [act.second for act in acts] == [102, 10, 20]


def test_a_clock_that_leaps_ahead_does_not_make_one_sample_count_for_three():
    acts, _ = replay([sample(0, "warn"), sample(90_000, "warn")], Plan())
    assert acts == []


def test_setting_the_wall_clock_changes_nothing():
    samples = series(*["warn"] * 40)
    jumping = [
        replace(taken, time=taken.time + (7200 if number % 2 else -7200))
        for number, taken in enumerate(samples)
    ]
    assert replay(jumping, Plan())[0] == replay(samples, Plan())[0]


def test_samples_without_a_steady_clock_are_taken_at_their_time():
    samples = [replace(sample(second, "warn"), monotonic=None) for second in range(5)]
    memory, acted = State(), 0
    for taken in samples:
        memory, actions = decide(memory, taken, cache(4096), Plan())
        acted += bool(actions)
    assert acted == 1


def test_the_pool_is_cleared_before_a_bit_is_dropped():
    acts, _ = replay(series(*["warn"] * 14, mlx_cache=GIB), Plan())
    assert kinds(acts) == [[ClearPool], [ClearPool, Lower]]


def test_at_critical_there_is_no_time_to_try_the_pool_alone():
    acts, _ = replay(series(*["critical"] * 3, mlx_cache=GIB), Plan())
    assert kinds(acts) == [[ClearPool, Lower]]


def test_the_answer_is_stopped_only_after_the_pool_was_tried():
    floor = cache(4096, 30, *FLOOR)
    acts, _ = replay(series(*["critical"] * 14, mlx_cache=GIB), Plan(), floor, tokens=1)
    assert kinds(acts) == [[ClearPool], [ClearPool, Refuse]]


def test_where_no_answer_is_written_there_is_none_to_stop():
    floor = cache(4096, 30, *FLOOR)
    assert replay(series(*["critical"] * 60), Plan(), floor)[0] == []


def test_an_answer_begun_while_it_is_still_critical_is_stopped_too():
    memory, floor, stopped = State(), cache(4096, 30, *FLOOR), []
    for second in range(60):
        growing = second < 5 or second > 40
        floor = carried_out(floor, (), tokens=growing)
        memory, actions = decide(memory, sample(second, "critical"), floor, Plan())
        stopped += [second] * bool(actions)
    assert stopped == [2, 41, 51]


def test_a_pressure_that_comes_back_soon_is_the_same_pressure():
    soon = ["warn"] * 3 + ["normal"] * 12 + ["warn"] * 3
    acts, _ = replay(series(*soon, mlx_cache=GIB), Plan())
    assert kinds(acts) == [[ClearPool], [ClearPool, Lower]]
    late = ["warn"] * 3 + ["normal"] * 40 + ["warn"] * 3
    acts, _ = replay(series(*late, mlx_cache=GIB), Plan())
    assert kinds(acts) == [[ClearPool], [ClearPool]]


def test_an_empty_cache_is_neither_lowered_nor_stopped():
    assert replay(series(*["critical"] * 90), Plan("hard"), cache(0))[0] == []


def test_a_budget_is_kept_between_admissions_with_as_few_layers_as_it_needs():
    held = cache(4096)
    limit = held.nbytes - 100_000
    acts, after = replay(series(*["normal"] * 4), Plan("careful", kv_limit=limit))
    (act,) = acts
    (lower,) = act.actions
    assert isinstance(lower, Lower)
    assert 0 < len(lower.layers) < 15 and not {0, 1, 28, 29} & set(lower.layers)
    assert lower.reason.endswith(f"--kv-limit is {limit / 2**20:.1f} MB")
    assert after.nbytes <= limit


def test_a_budget_is_kept_while_the_levels_sensor_is_dead():
    plan = Plan(memory_limit=GIB)
    acts, _ = replay(series(*[None] * 3, mlx_active=GIB + 1000), plan)
    assert kinds(acts) == [[Lower]]


def test_a_budget_that_lowering_cannot_keep_is_left_to_admission():
    floor = cache(4096, 30, *FLOOR)
    assert replay(series(*["normal"] * 60), Plan(kv_limit=1000), floor)[0] == []


def test_no_bits_are_given_up_for_a_budget_when_that_frees_nothing():
    assert replay(series(*["normal"] * 60), Plan(kv_limit=1000), cache(100))[0] == []


@st.composite
def sample_series(draw) -> list[MemorySample]:
    """Runs of levels, at a steady, a late or a jumping clock, with and without MLX's counters."""
    levels: list[Level | None] = ["normal", "warn", "critical", None]
    runs = draw(st.lists(st.tuples(st.sampled_from(levels), st.integers(1, 40)), max_size=10))
    jumps = st.sampled_from([0.5, 1.0, 1.0, 1.0, 3.0, 30.0, -5.0, -1000.0, 90_000.0])
    samples, second = [], 0.0
    for level, count in runs:
        known = {
            "mlx_cache": draw(st.sampled_from([None, 0, 1000, GIB])),
            "mlx_active": draw(st.sampled_from([None, GIB, 2 * GIB])),
        }
        for _ in range(count):
            second += draw(jumps)
            samples.append(sample(second, level, **known))
    return samples


plans = st.builds(
    Plan,
    policy=st.sampled_from(POLICIES),
    memory_limit=st.sampled_from([None, GIB, 4 * GIB]),
    kv_limit=st.sampled_from([None, 1000, 20_000_000, GIB]),
)
bits = st.tuples(st.integers(1, 6), st.integers(1, 6))
caches = st.builds(
    lambda pairs, tokens, foreign: state(
        [layer(index, tokens, *pair) for index, pair in enumerate(pairs)]
        + [layer(len(pairs) + extra, tokens, kind="full") for extra in range(foreign)]
    ),
    st.lists(bits, max_size=8),
    st.sampled_from([0, 100, 700, 4096]),
    st.integers(0, 2),
)


@given(sample_series(), plans, caches)
def test_whatever_happens(samples, plan, held):
    acts, _ = replay(samples, plan, held, tokens=3)
    times = [taken.monotonic for taken in samples]
    for act in acts:
        # Never on fewer than three samples that were bad one way or the other.
        assert act.number >= 2
        latest = samples[act.number - 2 : act.number + 1]
        pressed = [taken.level in ("warn", "critical") for taken in latest]
        exceeded = [
            at.nbytes > (plan.kv_limit or at.nbytes)
            or (taken.mlx_active or 0) > (plan.memory_limit or 1 << 60)
            for taken, at in zip(latest, act.latest, strict=True)
        ]
        assert all(pressed) or all(exceeded)
        lowered = carried_out(act.before, act.actions)
        for was, now in zip(act.before.layers, lowered.layers, strict=True):
            if was.kind != "packed":
                assert now == was
            else:
                assert now.key_bits <= was.key_bits and now.value_bits <= was.value_bits
        assert lowered.nbytes <= act.before.nbytes
        if any(isinstance(action, Refuse) for action in act.actions):
            assert not list(steps(act.before.layers))
            assert act.before.tokens > 0
            assert all(taken.level == "critical" for taken in latest)
    if times == sorted(times):
        for one, other in pairwise(acts):
            assert other.second - one.second >= 10
    if plan.policy == "off":
        assert acts == []


@pytest.mark.parametrize("policy", POLICIES)
@given(samples=sample_series())
def test_at_most_the_ladder_is_gone_down_and_nothing_loops(policy, samples):
    acts, held = replay(samples, Plan(policy))
    lowered = [act for act in acts if any(isinstance(action, Lower) for action in act.actions)]
    assert len(lowered) <= 6
    assert all((report.key_bits or 0) >= 2 for report in held.layers)
