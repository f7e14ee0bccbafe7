"""The engine: a chat, the thread that computes it, and the watchdog that looks after both."""

import logging
from collections.abc import Callable
from dataclasses import replace

import msgspec

from kvcore import KVCacheConfig
from kvcore.artefact import ArtefactError
from kvcore.memory.forecast import project
from kvcore.memory.read import read_sample
from kvcore.memory.sample import MemorySample
from kvcore.watchdog import Action, Plan, Watchdog
from kvcore.watchdog import Lower as LowerLayers
from tui.engine import models
from tui.engine.chat import Chat, failed
from tui.engine.errors import ModelError
from tui.engine.journal import Journal
from tui.engine.model_thread import Cancelled, ModelThread
from tui.engine.room import Room
from tui.messages import (
    AnyRequest,
    Ask,
    Error,
    Event,
    Limits,
    Load,
    Loading,
    Lower,
    Policy,
    Projection,
    Ready,
    Regenerate,
    Reset,
    Restore,
    Sampled,
    SetSampling,
    Setup,
    Stop,
    System,
    Turn,
    Watch,
)
from tui.sessions import SessionError

log = logging.getLogger(__name__)

CANNOT_LOAD = 3
"""The exit code of an engine whose first model cannot be loaded."""

Sender = object
"""Whoever made a request, so that `show` can tell who does not know its outcome yet."""


class Engine:
    """Takes requests on one thread; calls `emit` and `show` on its own.

    `show` gets the chat's turns whenever they have changed, before the event that tells why, and
    the sender of the request that changed them. Each Ask and each Regenerate that is not refused
    ends in a Done.
    """

    def __init__(
        self,
        setup: Setup,
        emit: Callable[[Event], None],
        show: Callable[[tuple[Turn, ...], Sender], None],
    ) -> None:
        self._emit = emit
        self._show = show
        self._started = False
        self._sampling = setup.sampling
        plan = _plan(setup.policy, setup.limits)
        self._room = Room(plan, read_sample, emit)
        config = KVCacheConfig(**msgspec.structs.asdict(setup.cache))
        self._chat = Chat(config, self._room, emit, setup.turns)
        if setup.system is not None:
            self._chat.set_system(setup.system)
        self._journal = Journal(None, ())
        self._watchdog = Watchdog(self._sample, lambda: self._room.held, self._act, plan)
        self._thread = ModelThread(emit)
        self._thread.submit(lambda cancelled: self._begin(setup, cancelled))

    @property
    def turns(self) -> tuple[Turn, ...]:
        return self._chat.turns

    def start(self) -> None:
        """Load the model and take samples; more than the first call does nothing."""
        if not self._started:
            self._started = True
            self._thread.start()
            self._watchdog.start()

    def finish(self) -> None:
        """Stop the answer, keep it, and wait until none of the engine's threads is left."""
        if self._started:
            self._watchdog.stop()
            self._thread.finish()
        self._journal.close()

    def handle(self, request: AnyRequest, sender: Sender = None) -> None:
        """Raises ValueError, with a sentence, for a request that cannot be had now."""
        match request:
            case Ask(text):
                self._answer(lambda: self._chat.ask(text), sender)
            case Regenerate(text):
                self._answer(lambda: self._chat.take_back(text), sender)
            case Stop():
                self._thread.interrupt()
            case Reset(session):
                self._replace((), session, sender)
            case Restore(turns, session):
                self._replace(turns, session, sender)
            case Load(model):
                self._thread.interrupt()
                self._thread.submit(lambda cancelled: self._load(model, cancelled))
            case System(text):
                self._thread.submit(lambda _: self._set_system(text, sender))
            case SetSampling(sampling):
                self._sampling = sampling
            case Lower(key_bits, value_bits, layers):
                self._act((self._lower_by_hand(key_bits, value_bits, layers),))
            case Watch(policy, limits):
                self._room.plan = self._watchdog.plan = _plan(policy, limits)

    # Jobs of the model's thread

    def _begin(self, setup: Setup, cancelled: Cancelled) -> Event:
        try:
            self._journal = Journal(setup.session, setup.turns)
        except SessionError as error:
            return Error(sentence=str(error), fatal=True)
        try:
            return self._load(setup.model, cancelled, first=True)
        except ArtefactError as error:
            sentence = f"{setup.model} cannot be used so: {error}"
            return Error(sentence=sentence, exit_code=CANNOT_LOAD, fatal=True)
        except Exception as error:
            log.exception("the first model failed")
            sentence = f"{setup.model} cannot be used: {error}. Name another model."
            return Error(sentence=sentence, exit_code=CANNOT_LOAD, fatal=True)

    def _load(self, name: str, cancelled: Cancelled, first: bool = False) -> Event:
        """The model `name`, in place of the present one, which comes back where that fails."""
        previous = None if self._chat.loaded is None else self._chat.loaded.info.name
        self._chat.unload()
        try:
            return self._load_now(name, cancelled)
        except ModelError as error:
            failure = Error(
                sentence=str(error), exit_code=CANNOT_LOAD, fatal=first and not cancelled()
            )
        if previous is None:
            return failure
        self._emit(failure)
        try:
            return self._load_now(previous, lambda: False)
        except ModelError as error:
            return Error(sentence=str(error), exit_code=CANNOT_LOAD)

    def _load_now(self, name: str, cancelled: Cancelled) -> Ready:
        loaded = models.load(name, self._emit, cancelled)
        self._emit(Loading(stage="cache", done=0, total=None))
        self._chat.load(loaded)
        self._chat.report()
        return Ready(loaded.info)

    def _answer(self, prepare: Callable[[], None], sender: Sender) -> None:
        def write(cancelled: Cancelled) -> Event:
            try:
                prepare()
            except ValueError as error:
                return failed(str(error))
            self._changed(sender)
            done = self._chat.answer(self._sampling, cancelled)
            self._changed(sender)
            return done

        if self._thread.answering:
            raise ValueError("An answer is being written: wait for its end, or stop it.")
        self._thread.submit(write, answers=True)

    def _replace(self, turns: tuple[Turn, ...], session: str | None, sender: Sender) -> None:
        def start_anew(_: Cancelled) -> None:
            self._chat.restore(turns)
            self._journal.close()
            try:
                self._journal = Journal(session, turns)
            except SessionError as error:
                self._journal = Journal(None, ())
                self._emit(Error(sentence=str(error)))
            self._changed(sender)
            self._chat.report()

        self._thread.interrupt()
        self._thread.submit(start_anew)

    def _set_system(self, text: str | None, sender: Sender) -> None:
        self._chat.set_system(text)
        self._changed(sender)

    def _changed(self, sender: Sender) -> None:
        """The turns are on the disk before anybody is told of them."""
        if sentence := self._journal.save(self._chat.turns):
            self._emit(Error(sentence=sentence))
        self._show(self._chat.turns, sender)

    # The watchdog's thread

    def _sample(self) -> MemorySample:
        """One reading, for the policy and for the clients alike."""
        sample = read_sample()
        if sample.mlx_peak is not None:
            # MLX's own counter begins anew with each step that the room measures.
            sample = replace(sample, mlx_peak=max(sample.mlx_peak, self._room.peak))
        held, loaded = self._room.held, self._chat.loaded
        self._emit(
            Sampled(
                memory=sample,
                weights=None if loaded is None else loaded.info.weights,
                cache=None if held is None else held.nbytes,
                projection=self._projection(sample),
            )
        )
        return sample

    def _projection(self, sample: MemorySample) -> Projection:
        held, loaded = self._room.held, self._chat.loaded
        if held is None or loaded is None:
            return Projection()
        forecast = project(sample, held, self._room.plan)
        context = loaded.info.context
        return Projection(
            bytes_per_token=forecast.bytes_per_token,
            tokens_to_warn=forecast.tokens_to_warn,
            tokens_to_limit=forecast.tokens_to_limit,
            limit=forecast.limit,
            tokens_to_context=None if context is None else max(0, context - held.tokens),
            tokens_at_floor=forecast.tokens_at_floor,
        )

    def _act(self, actions: tuple[Action, ...]) -> None:
        """Have them done on the model's thread: between two steps, or at once where it is idle."""
        self._room.post(actions)
        self._thread.submit(lambda _: self._chat.settle())

    def _lower_by_hand(
        self, key_bits: int, value_bits: int, layers: tuple[int, ...] | None
    ) -> LowerLayers:
        if not (1 <= key_bits <= 8 and 1 <= value_bits <= 8):
            raise ValueError(f"Bits go from 1 to 8, not {key_bits} and {value_bits}.")
        held = self._room.held
        packed = [layer.index for layer in held.layers if layer.kind == "packed"] if held else []
        chosen = tuple(packed if layers is None else layers)
        if not chosen or not set(chosen) <= set(packed):
            raise ValueError("Only layers of the packed cache can be lowered: see the layer panel.")
        return LowerLayers(chosen, key_bits, value_bits, "asked for")


def _plan(policy: Policy, limits: Limits) -> Plan:
    return Plan(policy, limits.memory, limits.kv)
