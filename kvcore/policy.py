"""When to act on memory pressure: a pure function of samples and what it remembers of them."""

from dataclasses import dataclass, replace

from kvcore.actions import Action, ClearPool, Refuse, lowers
from kvcore.budget import Budget, CacheState, Plan, budgets, slack
from kvcore.ladder import Step, steps
from kvcore.memory.sample import MemorySample
from kvcore.memory.size import in_words

SAMPLES = 3
"""Bad samples in a row before an act: one may be any program's short burst."""

CALM_SAMPLES = 30
"""Normal samples in a row after which a pressure is over; a sawtooth never gets there."""

WAIT = 10.0
"""Seconds between acts: what one frees must show in the samples before the next."""

POOL_SHARE = 0.01
"""Share of the total from which clearing MLX's pool is an act of its own, tried before others."""


@dataclass(frozen=True)
class State:
    """What decide remembers: how many samples in a row were at warn or worse, at critical, over
    a budget, normal; when it last acted; whether it has cleared the pool in this pressure; how
    long the cache is, and for how many samples it has been so."""

    warn: int = 0
    critical: int = 0
    over: int = 0
    calm: int = 0
    acted: float | None = None
    cleared: bool = False
    tokens: int | None = None
    still: int = SAMPLES


def decide(
    state: State, sample: MemorySample, cache: CacheState, plan: Plan
) -> tuple[State, tuple[Action, ...]]:
    """What the latest sample asks for. Refuse comes only when nothing is left to lower, and only
    where the cache has just changed: else no answer is being written."""
    state = _observe(state, sample, cache, plan)
    now = sample.time if sample.monotonic is None else sample.monotonic
    if state.acted is not None and now < state.acted:
        # The clock went back: wait from here, neither for ever nor not at all.
        state = replace(state, acted=now)
    if plan.policy == "off" or (state.acted is not None and now - state.acted < WAIT):
        return state, ()
    actions = _act(state, sample, cache, plan)
    if actions:
        cleared = state.cleared or any(isinstance(action, ClearPool) for action in actions)
        state = replace(state, acted=now, cleared=cleared)
    return state, actions


def _observe(state: State, sample: MemorySample, cache: CacheState, plan: Plan) -> State:
    def count(number: int, holds: bool) -> int:
        return number + 1 if holds else 0

    calm = count(state.calm, sample.level == "normal")
    return replace(
        state,
        warn=count(state.warn, sample.level in ("warn", "critical")),
        critical=count(state.critical, sample.level == "critical"),
        over=count(state.over, bool(_exceeded(sample, cache, plan))),
        calm=calm,
        cleared=state.cleared and calm < CALM_SAMPLES,
        tokens=cache.tokens,
        still=count(state.still, state.tokens in (None, cache.tokens)),
    )


def _exceeded(sample: MemorySample, cache: CacheState, plan: Plan) -> list[Budget]:
    """The budgets that are exceeded now. What the system has left is the level's business."""
    known = budgets(sample, cache, plan)
    return [budget for budget in known if budget.name != "system" and budget.over() > 0]


def _act(state: State, sample: MemorySample, cache: CacheState, plan: Plan) -> tuple[Action, ...]:
    critical = state.critical >= SAMPLES
    pressed = critical or (state.warn >= SAMPLES and plan.policy != "careful")
    exceeded = _exceeded(sample, cache, plan) if state.over >= SAMPLES else []
    if not pressed and not exceeded:
        return ()
    rungs = 0 if not pressed else 2 if plan.policy == "hard" else 1
    need = max((budget.over() + slack(cache) for budget in exceeded), default=0.0)
    reason = _pressure(sample) if pressed else _excess(exceeded[0])
    lower = lowers(_take(cache, rungs, need), reason)

    clear: tuple[Action, ...] = ()
    if pressed and sample.mlx_cache:
        clear = (ClearPool(reason),)
        # It costs nothing, so it is tried alone, except where there is no time for that.
        worth = sample.mlx_cache >= (sample.total or 0) * POOL_SHARE
        hurried = plan.policy == "hard" or (critical and bool(lower))
        if worth and not state.cleared and not exceeded and not hurried:
            return clear
    if lower:
        return clear + lower
    if critical and cache.tokens and state.still < SAMPLES:
        return (*clear, Refuse(_stopped(sample)))
    return clear if not state.cleared else ()


def _take(cache: CacheState, rungs: int, need: float) -> list[Step]:
    """The steps of the next `rungs` rungs, and those of more while `need` bytes are not freed."""
    if not cache.tokens:
        return []
    taken: list[Step] = []
    seen: set[int] = set()
    freed = 0
    for step in steps(cache.layers):
        seen.add(step.rung)
        if len(seen) > rungs:
            if freed >= need:
                break
            if not step.frees:
                continue
        taken.append(step)
        freed += step.frees
    return taken


def _pressure(sample: MemorySample) -> str:
    source = f" ({sample.level_source})" if sample.level_source else ""
    return f"memory pressure {sample.level}{source}"


def _excess(budget: Budget) -> str:
    return f"{in_words(budget.held - budget.pool)} held, {budget.in_words()}"


def _stopped(sample: MemorySample) -> str:
    source = f" ({sample.level_source})" if sample.level_source else ""
    return (
        f"Memory pressure is critical{source} and the cache has no more bits to give: the answer "
        "was stopped, its text and the cache are kept; close other programs, then go on."
    )
