"""The thread: it looks, carries out, survives a failed look, and ends when told."""

import threading

import pytest
from example_cache import cache, carried_out

from kvcore.budget import Plan
from kvcore.memory.sample import Level, MemorySample
from kvcore.watchdog import Lower, Watchdog


class World:
    """A machine whose clock goes a second ahead with each sample taken."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.cache = cache(4096)
        self.second = 0
        self.acts: list[tuple] = []
        self.changed = threading.Condition()

    def sample(self) -> MemorySample:
        with self.changed:
            self.second += 1
            self.changed.notify_all()
            return MemorySample(time=0.0, monotonic=float(self.second), level=self.level)

    def carry_out(self, actions: tuple) -> None:
        with self.changed:
            self.acts.append(actions)
            self.cache = carried_out(self.cache, actions)
            self.changed.notify_all()

    def wait_for(self, condition) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout=30)


@pytest.fixture
def start():
    running: list[Watchdog] = []

    def begin(world: World, plan: Plan, read_cache=None, carry_out=None) -> Watchdog:
        watchdog = Watchdog(
            world.sample,
            read_cache or (lambda: world.cache),
            carry_out or world.carry_out,
            plan,
            interval=0.001,
        )
        running.append(watchdog)
        watchdog.start()
        return watchdog

    yield begin
    for watchdog in running:
        watchdog.stop()


def test_it_carries_out_what_is_decided_and_goes_on(start):
    world = World("warn")
    start(world, Plan())
    world.wait_for(lambda: len(world.acts) == 6)
    rungs = [(lower.key_bits, lower.value_bits) for (lower,) in world.acts]
    assert rungs == [(5, 4), (4, 4), (4, 3), (3, 3), (3, 2), (2, 2)]
    assert all(isinstance(lower, Lower) for (lower,) in world.acts)


def test_a_new_plan_holds_from_the_next_sample_on(start):
    world = World("critical")
    watchdog = start(world, Plan("off"))
    world.wait_for(lambda: world.second > 20)
    assert world.acts == []
    watchdog.plan = Plan("balanced")
    world.wait_for(lambda: world.acts)


def test_without_a_cache_there_is_nothing_to_decide(start):
    world = World("critical")
    start(world, Plan("hard"), read_cache=lambda: None)
    world.wait_for(lambda: world.second > 20)
    assert world.acts == []


def test_a_look_that_fails_is_logged_and_the_next_one_taken(start, caplog):
    world = World("warn")
    failed = []

    def fail_once(actions: tuple) -> None:
        if not failed:
            failed.append(actions)
            raise RuntimeError("the model's thread is gone")
        world.carry_out(actions)

    start(world, Plan(), carry_out=fail_once)
    world.wait_for(lambda: world.acts)
    assert "the model's thread is gone" in caplog.text


def test_stop_ends_the_thread_even_before_it_ran():
    world = World("normal")
    watchdog = Watchdog(world.sample, lambda: world.cache, world.carry_out, Plan(), interval=3600)
    watchdog.stop()
    watchdog.start()
    watchdog.stop()
    assert not watchdog.is_alive()
