"""Whether the next step fits, and what makes it fit: asked before the memory is taken.

On Metal an allocation that does not fit is no exception but a killed process, or worse
(ml-explore/mlx#3186): so the answer has to come first.
"""

from collections.abc import Iterator, Sequence

from kvcore.actions import Action, ClearPool, Refuse, SmallerChunk, lowers
from kvcore.budget import Budget, CacheState, Plan, budgets, slack
from kvcore.ladder import FLOOR, Step, steps, token_cost
from kvcore.memory.sample import MemorySample
from kvcore.memory.size import in_words

BRISK_CHUNK = 128
"""Tokens of a prefill chunk that still keep the device busy; chunks shrink to it before bits go."""

SMALLEST_CHUNK = 16


def admit(
    sample: MemorySample,
    cache: CacheState,
    plan: Plan,
    growth: float,
    scratch: float,
    tokens: int | None = None,
) -> tuple[Action, ...]:
    """What must happen before the next step of `tokens` tokens may run; () means go on.

    `growth`: bytes by which the step makes the cache larger. `scratch`: bytes that it needs only
    while it runs. Without `tokens` they are worked out from the growth. A chunk is made smaller
    first where only scratch is too much; it goes below BRISK_CHUNK only at the floor.
    """
    known = budgets(sample, cache, plan)
    if tokens is None:
        each = sum(token_cost(layer) for layer in cache.layers)
        tokens = int(growth / each) if each else 0
    clear = tuple(
        ClearPool(f"the next step needs what MLX keeps for reuse ({budget.name})")
        for budget in known
        if budget.pool and budget.over(growth, scratch) + budget.pool > 0
    )[:1]
    if _fits(known, growth, scratch):
        return () if plan.policy == "off" else clear
    worst = max(known, key=lambda budget: budget.over(growth, scratch))
    if plan.policy == "off":
        return (Refuse(_forbidden(worst, tokens, growth, scratch)),)
    reason = _need(worst, growth, scratch)
    if _fits(known, growth, 0):
        for chunk in _halvings(tokens, BRISK_CHUNK):
            share = chunk / tokens
            if _fits(known, growth * share, scratch * share):
                return (*clear, SmallerChunk(chunk, reason))
    taken = _least(known, cache, growth, scratch, tokens)
    if taken is not None:
        return clear + lowers(taken, reason)
    if _least(known, cache, growth, 0, tokens) is not None:
        for chunk in _halvings(tokens, SMALLEST_CHUNK):
            share = chunk / tokens
            taken = _least(known, cache, growth * share, scratch * share, chunk)
            if taken is not None:
                return (*clear, *lowers(taken, reason), SmallerChunk(chunk, reason))
    freed = _freed(list(steps(cache.layers)), growth, tokens)
    return (Refuse(_at_floor(worst, cache, tokens, growth - freed, scratch)),)


def _fits(known: Sequence[Budget], growth: float, scratch: float) -> bool:
    return all(budget.over(growth, scratch) <= 0 for budget in known)


def _halvings(tokens: int, least: int) -> Iterator[int]:
    chunk = tokens // 2
    while chunk >= least:
        yield chunk
        chunk //= 2


def _freed(taken: Sequence[Step], growth: float, tokens: int) -> float:
    """What the steps free, in the cache as it is and in what the next `tokens` add to it."""
    saved = min(sum(step.saves for step in taken) * tokens, growth)
    return sum(step.frees for step in taken) + saved


def _least(
    known: Sequence[Budget], cache: CacheState, growth: float, scratch: float, tokens: int
) -> list[Step] | None:
    """As few steps as make it fit, with slack where the ladder allows; None if none do."""
    if _fits(known, growth, scratch):
        return []
    tight = [budget for budget in known if budget.over(growth, scratch) > 0]
    enough: list[Step] | None = None
    taken: list[Step] = []
    for step in steps(cache.layers):
        taken.append(step)
        left = growth - _freed(taken, growth, tokens)
        if _fits(known, left, scratch):
            enough = enough or list(taken)
            if all(budget.over(left, scratch) <= -slack(cache) for budget in tight):
                return taken
    return enough


def _need(budget: Budget, growth: float, scratch: float) -> str:
    if budget.name == "system":
        return f"the next step needs {in_words(growth + scratch)}, {budget.in_words()}"
    after = budget.limit + budget.over(growth, scratch)
    return f"{in_words(after)} after the next step, {budget.in_words()}"


_ADVICE = {
    "--kv-limit": "raise --kv-limit, use a shorter prompt, or start a new chat",
    "--memory-limit": "raise --memory-limit, use a shorter prompt, or start a new chat",
    "GPU": "use a shorter prompt or a smaller model, or start a new chat",
    "system": "close other programs, use a shorter prompt, or start a new chat",
}


def _at_floor(budget: Budget, cache: CacheState, tokens: int, growth: float, scratch: float) -> str:
    ours = any(layer.kind == "packed" for layer in cache.layers)
    even = f"even at {FLOOR[0]}/{FLOOR[1]} bits " if ours else ""
    numbers = _numbers(budget, growth, scratch)
    return f"{_who(tokens)} not fit: {even}{numbers}; {_ADVICE[budget.name]}."


def _forbidden(budget: Budget, tokens: int, growth: float, scratch: float) -> str:
    return (
        f"{_who(tokens)} not fit: {_numbers(budget, growth, scratch)}, and --policy off keeps "
        f"every bit; use --policy balanced, {_ADVICE[budget.name]}."
    )


def _who(tokens: int) -> str:
    return f"The next {tokens:,} tokens do" if tokens > 1 else "The next token does"


def _numbers(budget: Budget, growth: float, scratch: float) -> str:
    if budget.name == "system":
        # Lowering may free more than the step takes: then its scratch alone is too much.
        need = max(0.0, growth) + scratch
        return f"{in_words(need)} would be needed and {budget.in_words()}"
    holder = "the cache" if budget.name == "--kv-limit" else "MLX"
    after = budget.limit + budget.over(growth, scratch)
    return f"{holder} would hold {in_words(after)} and {budget.in_words()}"
