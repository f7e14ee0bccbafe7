"""Answers: stopped anywhere, seeded, refused, lowered while they are written."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcore import KVCacheConfig
from kvcore.memory.sample import MemorySample
from kvcore.watchdog import Lower, Plan, Refuse
from tui.engine.chat import Chat
from tui.engine.room import Room
from tui.messages import (
    Acted,
    Began,
    Done,
    Event,
    Layers,
    ModelInfo,
    Prefill,
    Sampling,
    Token,
    Turn,
)

GREEDY = Sampling(temperature=0.0, max_tokens=24)
WIDE = KVCacheConfig(window=4096)
UNBOUND = Plan()
QUESTION = "What costs the most memory in a long chat?"


class Bench:
    """A chat with all that it needs, whose events lie in a list."""

    def __init__(self, loaded, plan: Plan = UNBOUND, config: KVCacheConfig = WIDE) -> None:
        self.events: list[Event] = []
        self.heard: Callable[[Event], None] = lambda event: None
        self.room = Room(plan, lambda: MemorySample(time=0.0), self._emit)
        self.chat = Chat(config, self.room, self._emit)
        # A random model ends its answers anywhere: here only where a test says so.
        loaded.tokenizer.eos_token_ids = set()
        self.chat.load(loaded)

    def _emit(self, event: Event) -> None:
        self.events.append(event)
        self.heard(event)

    def ask(
        self,
        text: str,
        sampling: Sampling = GREEDY,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Done:
        self.chat.ask(text)
        return self.chat.answer(sampling, cancelled)

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def agrees(self) -> bool:
        cached = self.chat.cached
        assert cached is not None
        return all(cache.offset == len(cached.tokens) for cache in cached.caches)


def after(calls: int) -> Callable[[], bool]:
    """False so many times, then True."""
    left = iter(range(calls))
    return lambda: next(left, None) is None


def test_an_answer_is_told_from_its_beginning_to_its_end(tiny):
    bench = Bench(tiny)
    done = bench.ask(QUESTION)
    kinds = [type(event) for event in bench.events]
    assert kinds[0] is Began and kinds[-1] is Layers
    assert bench.of(Prefill)[0].done == 0
    assert bench.of(Prefill)[-1].done == bench.of(Prefill)[-1].total == done.prompt_tokens
    text = "".join(token.text for token in bench.of(Token))
    assert bench.chat.turns == (Turn("user", QUESTION), Turn("assistant", text))
    assert (done.reason, done.tokens) == ("length", GREEDY.max_tokens)
    assert done.first_token is not None and done.first_token <= done.seconds
    assert done.decode_rate and done.prefill_rate
    assert done.cache == bench.of(Layers)[-1].nbytes > 0


def test_the_end_token_ends_an_answer_and_is_not_shown(tiny):
    bench = Bench(tiny)
    bench.ask(QUESTION)
    first = bench.chat.turns[-1].text
    written = bench.chat.cached.tokens[-GREEDY.max_tokens :]
    ending = next(i for i, token in enumerate(written) if i > 4 and token not in written[:i])
    tiny.tokenizer.eos_token_ids = {written[ending]}
    bench.chat.take_back()
    done = bench.chat.answer(GREEDY, lambda: False)
    assert (done.reason, done.tokens) == ("stop", ending)
    assert bench.chat.turns[-1].complete and bench.agrees
    assert first.startswith(bench.chat.turns[-1].text)


def test_the_next_answer_computes_only_what_is_new(tiny):
    bench = Bench(tiny)
    bench.ask(QUESTION)
    done = bench.ask("And then?")
    fresh = Bench(tiny)
    fresh.chat.turns = bench.chat.turns[:2]
    again = fresh.ask("And then?")
    assert done.reused_tokens > len(QUESTION) and again.reused_tokens == 0
    assert bench.chat.turns == fresh.chat.turns


def test_the_seed_decides(tiny):
    def written(seed: int | None) -> str:
        bench = Bench(tiny)
        bench.ask(QUESTION, Sampling(temperature=1.5, top_p=1.0, max_tokens=40, seed=seed))
        return bench.chat.turns[-1].text

    assert written(7) == written(7) != written(8)
    assert written(None) != written(None)


@pytest.mark.parametrize("calls", [0, 1, 2, 3, 4, 5, 9, 20])
def test_a_stop_anywhere_leaves_all_in_order(tiny, calls):
    """The question takes three chunks; the cancelled flag is read before each and each token."""
    question = QUESTION * 30
    bench = Bench(tiny)
    done = bench.ask(question, cancelled=after(calls))
    assert done.reason == "cancelled" and bench.agrees
    written = [Turn("assistant", "".join(t.text for t in bench.of(Token)), complete=False)]
    assert list(bench.chat.turns[1:]) == (written if calls > 3 else [])
    assert done.tokens == max(0, calls - 3)

    fresh = Bench(tiny)
    fresh.chat.turns = bench.chat.turns
    assert bench.ask("Go on.").reason == "length"
    fresh.ask("Go on.")
    assert bench.chat.turns == fresh.chat.turns and bench.agrees


def test_an_answer_is_written_again(tiny):
    bench = Bench(tiny)
    bench.ask(QUESTION)
    first = bench.chat.turns
    bench.chat.take_back()
    bench.chat.answer(GREEDY, lambda: False)
    assert bench.chat.turns == first
    bench.chat.take_back("Another question.")
    bench.chat.answer(GREEDY, lambda: False)
    assert [turn.text for turn in bench.chat.turns if turn.role == "user"] == ["Another question."]
    assert bench.agrees


def test_there_is_nothing_to_write_again(tiny):
    bench = Bench(tiny)
    bench.chat.set_system("Be brief.")
    with pytest.raises(ValueError, match="ask something first"):
        bench.chat.take_back()
    bench.ask(QUESTION)
    turns = bench.chat.turns
    with pytest.raises(ValueError, match="empty"):
        bench.chat.take_back("  ")
    assert bench.chat.turns == turns


def test_a_prompt_longer_than_the_context_is_refused_before_it_is_computed(tiny):
    bench = Bench(tiny)
    bench.ask(QUESTION)
    held = list(bench.chat.cached.tokens)
    turns = bench.chat.turns
    done = bench.ask("x" * 3000)
    assert done.reason == "context" and "2,048" in done.sentence and done.tokens == 0
    assert bench.chat.turns == turns
    assert bench.chat.cached.tokens == held


def test_the_context_ends_an_answer(tiny):
    bench = Bench(tiny)
    done = bench.ask("x" * 2000, Sampling(temperature=0.0))
    assert done.reason == "context" and done.sentence
    assert done.prompt_tokens + done.tokens == 2048
    assert len(bench.chat.cached.tokens) == 2048 and bench.agrees
    assert not bench.chat.turns[-1].complete


def test_what_cannot_fit_is_refused_before_it_is_computed(tiny):
    bench = Bench(tiny, Plan(kv_limit=350_000), KVCacheConfig())
    done = bench.ask("x" * 1900)
    assert done.reason == "memory" and "--kv-limit" in done.sentence
    assert bench.of(Began)[0].forecast_bytes > 350_000
    assert bench.of(Prefill) == [] and bench.chat.cached.tokens == []
    assert bench.chat.turns == (Turn("user", "x" * 1900),)
    bench.room.plan = Plan()
    bench.chat.take_back()
    assert bench.chat.answer(GREEDY, lambda: False).reason == "length"


def test_policy_off_refuses_in_the_midst_and_keeps_what_there_is(tiny):
    bench = Bench(tiny, Plan("off", kv_limit=300_000), KVCacheConfig())
    done = bench.ask("x" * 150, Sampling(temperature=0.0, max_tokens=800))
    assert done.reason == "memory" and "--kv-limit" in done.sentence and done.tokens > 10
    assert done.cache <= 300_000 and bench.agrees
    assert bench.of(Acted)[-1].act == "stop"
    assert not bench.chat.turns[-1].complete
    bits = {(layer.key_bits, layer.value_bits) for layer in bench.of(Layers)[-1].layers}
    assert bits == {(6, 4)}


def test_bits_go_down_so_that_the_answer_can_go_on(tiny):
    limit = 480_000
    bench = Bench(tiny, Plan(kv_limit=limit), KVCacheConfig())
    done = bench.ask("x" * 150, Sampling(temperature=0.0, max_tokens=1100))
    assert done.reason == "length" and bench.agrees
    lowered = [act for act in bench.of(Acted) if act.act == "lower"]
    assert len(lowered) > 1 and all(act.freed >= 0 and act.at_token for act in lowered)
    assert sum(act.freed for act in lowered) > 0
    for act in lowered:
        assert isinstance(bench.events[bench.events.index(act) + 1], Layers)
    assert all(layers.nbytes <= limit for layers in bench.of(Layers))


def test_what_the_watchdog_posts_is_done_between_two_tokens(tiny):
    bench = Bench(tiny, config=KVCacheConfig(window=32))

    def post(event: Event) -> None:
        if isinstance(event, Token) and event.count == 10:
            bench.room.post((Lower((1, 2), 3, 2, "pressed"),))

    bench.heard = post
    done = bench.ask("x" * 600)
    act = bench.of(Acted)[0]
    assert (act.layers, act.key_bits, act.value_bits, act.reason) == ((1, 2), 3, 2, "pressed")
    before, later = (
        [e for e in part if isinstance(e, Token)]
        for part in (
            bench.events[: bench.events.index(act)],
            bench.events[bench.events.index(act) :],
        )
    )
    assert before[-1].count == 10 and later[-1].count == done.tokens == 24
    layers = bench.of(Layers)[-1].layers
    assert [layer.key_bits for layer in layers] == [6, 3, 3, 6]
    # Measured bytes: exactly what the dropped bits took.
    spans = [3 * layers[i].key_bit_nbytes + 2 * layers[i].value_bit_nbytes for i in (1, 2)]
    assert act.freed == pytest.approx(sum(spans), rel=0.05)


def test_the_watchdog_can_end_an_answer(tiny):
    bench = Bench(tiny)

    def post(event: Event) -> None:
        if isinstance(event, Token) and event.count == 5:
            bench.room.post((Refuse("Memory is critical."),))

    bench.heard = post
    done = bench.ask(QUESTION)
    assert (done.reason, done.sentence, done.tokens) == ("memory", "Memory is critical.", 5)
    assert bench.agrees


def test_a_model_that_fails_loses_the_cache_but_not_the_chat(tiny, monkeypatch):
    bench = Bench(tiny)
    bench.ask(QUESTION)
    turns = bench.chat.turns
    monkeypatch.setattr(bench.chat.cached, "prefill", lambda tokens: 1 // 0)
    done = bench.ask("And then?")
    assert done.reason == "error" and "division" in done.sentence
    assert bench.chat.turns == (*turns, Turn("user", "And then?"))
    assert bench.chat.cached.tokens == [] and bench.agrees
    monkeypatch.undo()
    assert bench.ask("Again.").reason == "length"


def test_without_a_model_there_is_a_sentence(tiny):
    bench = Bench(tiny)
    bench.chat.unload()
    assert bench.ask(QUESTION).sentence == "No model is loaded: load one, then ask again."
    bench.chat.load(tiny)
    assert bench.ask(QUESTION).reason == "length"


def test_a_system_turn_comes_first(tiny):
    bench = Bench(tiny)
    bench.ask(QUESTION)
    bench.chat.set_system("Be brief.")
    assert [turn.role for turn in bench.chat.turns] == ["system", "user", "assistant"]
    bench.chat.set_system("Be long.")
    assert bench.chat.turns[0].text == "Be long."
    bench.chat.set_system(None)
    assert [turn.role for turn in bench.chat.turns] == ["user", "assistant"]


def test_no_context_is_no_bound(tiny_folder, tiny):
    info = ModelInfo(name="tiny", context=None, weights=0, layers=4, backend="CPU")
    bench = Bench(type(tiny)(tiny.model, tiny.tokenizer, info))
    assert bench.ask("x" * 2100).reason == "length"


STEPS = st.one_of(
    st.tuples(st.just("ask"), st.text(min_size=1, max_size=60), st.integers(0, 12)),
    st.tuples(st.just("again"), st.none() | st.just("Another?"), st.integers(0, 12)),
    st.tuples(st.just("system"), st.none() | st.just("Be brief."), st.just(0)),
    st.tuples(st.just("restore"), st.integers(0, 4), st.just(0)),
)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(STEPS, min_size=2, max_size=7))
def test_whatever_was_done_before_the_next_answer_is_as_in_a_new_chat(tiny, steps):
    """Questions stopped at some step, taken back, other system turns, shorter chats."""
    bench = Bench(tiny)
    chat = bench.chat
    for kind, what, calls in steps:
        try:
            match kind:
                case "ask":
                    bench.ask(what, cancelled=after(calls))
                case "again":
                    chat.take_back(what)
                    chat.answer(GREEDY, after(calls))
                case "system":
                    chat.set_system(what)
                case "restore":
                    chat.restore(chat.turns[:what])
        except ValueError:
            pass  # an empty question, or nothing to write again
        assert bench.agrees
    fresh = Bench(tiny)
    fresh.chat.turns = chat.turns
    bench.ask(QUESTION)
    fresh.ask(QUESTION)
    assert chat.turns == fresh.chat.turns and bench.agrees
