"""One chat: its turns, and the answers to them."""

import gc
import logging
from collections.abc import Callable, Iterable

import mlx.core as mx

from kvcore import KVCacheConfig
from tui.engine.answer import Answer, End
from tui.engine.generation import CachedModel
from tui.engine.models import Loaded
from tui.engine.room import Room
from tui.engine.template import render
from tui.messages import Done, Event, Sampling, Turn

log = logging.getLogger(__name__)


class Chat:
    """Turns, which outlive every model, and the model that answers now, if there is one.

    Belongs to the model's thread, but for `turns`, which any thread may read.
    """

    def __init__(
        self,
        config: KVCacheConfig,
        room: Room,
        emit: Callable[[Event], None],
        turns: Iterable[Turn] = (),
    ) -> None:
        self.turns = tuple(turns)
        self.loaded: Loaded | None = None
        self.cached: CachedModel | None = None
        self._config = config
        self._room = room
        self._emit = emit

    def load(self, loaded: Loaded) -> None:
        self.cached = CachedModel(loaded.model, self._config)
        self._room.meet(self.cached)
        self.loaded = loaded

    def unload(self) -> None:
        """Give the model's memory back. The turns stay."""
        self.loaded = self.cached = self._room.held = None
        gc.collect()  # a model is full of cycles
        mx.synchronize()  # the last token's step may still be under way
        mx.clear_cache()

    def restore(self, turns: Iterable[Turn]) -> None:
        """Another chat with the same model."""
        self.turns = tuple(turns)
        if self.cached is not None:
            self.cached.clear()

    def report(self) -> None:
        """Say what the caches hold, layer by layer."""
        if self.cached is not None:
            self._room.report(self.cached)

    def settle(self) -> None:
        """Do what was posted while no answer is written: there is nothing to end then."""
        if self.cached is not None:
            self._room.settle(self.cached)

    def ask(self, text: str) -> None:
        """Raises ValueError, with a sentence, for an empty question."""
        self.turns += (_question(text),)

    def take_back(self, text: str | None = None) -> None:
        """Take the last answer back; with `text`, replace its question too.

        Raises ValueError, with a sentence, for a chat without a question.
        """
        asked = [index for index, turn in enumerate(self.turns) if turn.role == "user"]
        if not asked:
            raise ValueError("There is no answer to write again: ask something first.")
        question = self.turns[asked[-1]] if text is None else _question(text)
        self.turns = (*self.turns[: asked[-1]], question)

    def set_system(self, text: str | None) -> None:
        rest = tuple(turn for turn in self.turns if turn.role != "system")
        self.turns = (Turn("system", text), *rest) if text else rest

    def answer(self, sampling: Sampling, cancelled: Callable[[], bool]) -> Done:
        """Answer the last question; the text, as far as it came, becomes the last turn."""
        if self.loaded is None or self.cached is None:
            return failed("No model is loaded: load one, then ask again.")
        answer = Answer(
            self.cached,
            self.loaded.tokenizer,
            self.loaded.info.context,
            sampling,
            self._room,
            self._emit,
            cancelled,
        )
        try:
            end = answer.write(render(self.loaded.tokenizer, self.turns))
        except Exception as error:
            log.exception("the answer failed")
            self.cached.clear()
            end = End("error", f"The model failed: {error}. The chat is kept; ask again.")
        if answer.text:
            complete = end.reason in ("stop", "length")
            self.turns += (Turn("assistant", answer.text, complete),)
        elif end.reason == "context":
            # With the question that is too long, all later ones would be too long.
            self.turns = self.turns[:-1]
        self._room.report(self.cached)
        return answer.done(end)


def failed(sentence: str) -> Done:
    """The end of an answer that never began."""
    return Done(
        reason="error",
        prompt_tokens=0,
        reused_tokens=0,
        tokens=0,
        prefill_rate=None,
        decode_rate=None,
        first_token=None,
        seconds=0.0,
        cache=None,
        sentence=sentence,
    )


def _question(text: str) -> Turn:
    if not text.strip():
        raise ValueError("The message is empty: write something first.")
    return Turn("user", text)
