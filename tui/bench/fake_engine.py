"""An engine that recites: the client's three methods over a scripted stream of events.

The interface benchmark and the app's tests run on it. It loads no model and is deterministic:
with `rate=None` it never looks at the clock, it only gives the loop a turn after each token.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator

from kvcore.memory.sample import Level, MemorySample
from kvcore.report import LayerReport
from tui import messages as m

MODEL = m.ModelInfo(
    name="smollm2",
    context=8192,
    weights=538_000_000,
    layers=30,
    backend="CPU, recited",
)
ANSWER = (
    "The cache grows with every token, and nothing is given back.\n\n"
    "- keys tolerate 4 bits once they are rotated\n"
    "- values need more care in the first two layers\n\n"
    "```python\nsize = layers * heads * head_dim * tokens * bits // 8\n```\n\n"
    "Left open: how the ratio moves past 64k tokens.\n"
)
HEADS, HEAD_DIM, HALF_BITS = 3, 64, 16
CHUNK = 512


def pieces(text: str) -> Iterator[str]:
    """The text in pieces about as long as a model's tokens, nothing lost."""
    for match in re.finditer(r"\s*\S{1,5}|\s+\Z", text):
        yield match.group()


def layer_report(index: int, tokens: int, key_bits: int, value_bits: int) -> LayerReport:
    """A packed layer of SmolLM2's shape."""
    bit_nbytes = tokens * HEADS * HEAD_DIM // 8
    scales = tokens * HEADS * 2 * 2
    return LayerReport(
        index=index,
        kind="packed",
        tokens=tokens,
        nbytes=bit_nbytes * (key_bits + value_bits) + scales,
        half_nbytes=bit_nbytes * 2 * HALF_BITS,
        key_bits=key_bits,
        value_bits=value_bits,
        key_bit_nbytes=bit_nbytes,
        value_bit_nbytes=bit_nbytes,
        token_nbytes=HEADS * (HEAD_DIM * (key_bits + value_bits) // 8 + 4),
        reads="direct",
    )


class FakeEngine:
    """Answers each Ask with the next of `answers`, the last one over and over.

    `rate`: tokens a second, None for as fast as the loop turns. `prompt_tokens`: the length of
    the prefill. `stall_at`: the token after which an answer waits for a Stop, or for `resume()`.
    """

    def __init__(
        self,
        *answers: str,
        setup: m.Setup | None = None,
        model: m.ModelInfo | None = MODEL,
        rate: float | None = None,
        prompt_tokens: int = 1024,
        stall_at: int | None = None,
    ) -> None:
        self.answers = list(answers) or [ANSWER]
        self.setup = setup or m.Setup(model="smollm2")
        self.model = model
        self.rate = rate
        self.prompt_tokens = prompt_tokens
        self.stall_at = stall_at
        self.requests: list[m.AnyRequest] = []
        self.turns = list(self.setup.turns)
        self.tokens = 0
        self.bits = [(self.setup.cache.key_bits, self.setup.cache.value_bits)] * MODEL.layers
        self.closed = False
        self._events: asyncio.Queue[m.AnyEvent | None] = asyncio.Queue()
        self._resumed = asyncio.Event()
        self._answer: asyncio.Task[None] | None = None
        self._asked = 0

    @property
    def busy(self) -> bool:
        return self._answer is not None and not self._answer.done()

    # The client's three methods

    async def send(self, request: m.AnyRequest) -> None:
        self.requests.append(request)
        match request:
            case m.Ask():
                self._ask(request.text)
            case m.Regenerate(text=replacement):
                self._regenerate(replacement)
            case m.Stop():
                self._stop()
            case m.Reset():
                self._replace_turns(())
            case m.Restore(turns=turns):
                self._replace_turns(turns)
            case m.Load(model=model):
                self._load(model)
            case m.Lower(key_bits=key_bits, value_bits=value_bits, layers=layers):
                self.lower(key_bits, value_bits, layers, reason="asked for")
            case m.Shutdown():
                await self.close(shutdown=True)
            case m.System() | m.SetSampling() | m.Watch():
                pass

    async def events(self) -> AsyncIterator[m.AnyEvent]:
        yield self._welcome()
        while (event := await self._events.get()) is not None:
            yield event

    async def close(self, shutdown: bool) -> None:
        if not self.closed:
            self.closed = True
            if self._answer is not None:
                self._answer.cancel()
            self._events.put_nowait(None)

    # What a script does to it

    def emit(self, event: m.AnyEvent) -> None:
        self._events.put_nowait(event)

    def resume(self) -> None:
        """Let an answer that stalled go on."""
        self._resumed.set()

    def lower(
        self,
        key_bits: int,
        value_bits: int,
        layers: tuple[int, ...] | None = None,
        *,
        reason: str,
        level: Level | None = None,
    ) -> None:
        """Drop bits, as the watchdog would, and say so."""
        before = self._nbytes()
        chosen = tuple(range(len(self.bits))) if layers is None else layers
        for index in chosen:
            keys, values = self.bits[index]
            self.bits[index] = (min(keys, key_bits), min(values, value_bits))
        self.emit(
            m.Acted(
                act="lower",
                reason=reason,
                level=level,
                layers=chosen,
                key_bits=key_bits,
                value_bits=value_bits,
                freed=before - self._nbytes(),
                at_token=self.tokens,
            )
        )
        self.emit(self.layers())

    def sample(self, level: Level = "normal", used: int = 9 << 30) -> None:
        """A reading of a machine with 16 GiB."""
        total = 16 << 30
        self.emit(
            m.Sampled(
                memory=MemorySample(
                    time=1_800_000_000.0 + self.tokens,
                    total=total,
                    used=used,
                    available=total - used,
                    swap_used=0,
                    swap_out_per_second=0,
                    level=level,
                    level_source="recited",
                    process=1 << 30,
                    mlx_active=MODEL.weights + self._nbytes(),
                    mlx_cache=32 << 20,
                    mlx_peak=(MODEL.weights + self._nbytes()) * 5 // 4,
                ),
                weights=MODEL.weights,
                cache=self._nbytes(),
                projection=self._projection(total - used),
            )
        )

    def layers(self) -> m.Layers:
        reports = tuple(layer_report(i, self.tokens, *bits) for i, bits in enumerate(self.bits))
        return m.Layers(
            tokens=self.tokens,
            nbytes=sum(report.nbytes for report in reports),
            half_nbytes=sum(report.half_nbytes or 0 for report in reports),
            layers=reports,
        )

    def die(self, sentence: str = "The engine was killed by signal 9; the chat is saved.") -> None:
        """End the stream as the client does when the engine's process is gone."""
        if self._answer is not None:
            self._answer.cancel()
        self.emit(m.Error(sentence=sentence, fatal=True))
        self._events.put_nowait(None)

    # Inside

    def _welcome(self) -> m.Welcome:
        return m.Welcome(
            version="0",
            pid=os.getpid(),
            model=self.model,
            turns=tuple(self.turns),
            setup=self.setup,
            busy=self.busy,
        )

    def _ask(self, text: str) -> None:
        if self.busy:
            self.emit(
                m.Error(sentence="An answer is being written; stop it first, or wait for its end.")
            )
            return
        self.turns.append(m.Turn("user", text))
        answer = self.answers[min(self._asked, len(self.answers) - 1)]
        self._asked += 1
        self._answer = asyncio.get_running_loop().create_task(self._recite(answer))

    def _regenerate(self, replacement: str | None) -> None:
        while self.turns and self.turns[-1].role != "user":
            self.turns.pop()
        if not self.turns:
            self.emit(m.Error(sentence="There is no answer to write again; ask something first."))
            return
        asked = self.turns.pop().text
        self._ask(asked if replacement is None else replacement)

    def _stop(self) -> None:
        if self._answer is not None:
            self._answer.cancel()

    def _replace_turns(self, turns: tuple[m.Turn, ...]) -> None:
        self._stop()
        self.turns = list(turns)
        self.tokens = 0
        self.emit(self.layers())

    def _load(self, name: str) -> None:
        for done in range(5):
            self.emit(m.Loading(stage="weights", done=done, total=4))
        self.model = m.ModelInfo(
            name=name,
            context=MODEL.context,
            weights=MODEL.weights,
            layers=MODEL.layers,
            backend=MODEL.backend,
        )
        self.emit(m.Ready(self.model))

    async def _recite(self, answer: str) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        reused, written, said = self.tokens, 0, ""
        reason = "stop"
        self._resumed.clear()
        self.emit(m.Began(prompt_tokens=self.prompt_tokens, reused_tokens=reused))
        try:
            for done in range(CHUNK, self.prompt_tokens + CHUNK, CHUNK):
                await asyncio.sleep(0)
                done = min(done, self.prompt_tokens)
                self.emit(m.Prefill(done=done, total=self.prompt_tokens, rate=600.0))
            self.tokens += self.prompt_tokens
            first = loop.time()
            for piece in pieces(answer):
                due = 0.0 if self.rate is None else first + written / self.rate - loop.time()
                await asyncio.sleep(max(0.0, due))
                written += 1
                self.tokens += 1
                said += piece
                self.emit(m.Token(text=piece, count=written, rate=self.rate))
                if written % round(self.rate or 60) == 0:
                    self.emit(self.layers())
                    self.sample()
                if written == self.stall_at:
                    await self._resumed.wait()
        except asyncio.CancelledError:
            reason = "cancelled"
        self.turns.append(m.Turn("assistant", said, complete=reason == "stop"))
        if self.closed:
            return
        self.emit(self.layers())
        self.emit(
            m.Done(
                reason=reason,
                prompt_tokens=self.prompt_tokens,
                reused_tokens=reused,
                tokens=written,
                prefill_rate=600.0,
                decode_rate=self.rate,
                first_token=0.1,
                seconds=loop.time() - start,
                cache=self._nbytes(),
            )
        )

    def _nbytes(self) -> int:
        return self.layers().nbytes

    def _projection(self, available: int) -> m.Projection:
        cost = sum(layer_report(i, 0, *bits).token_nbytes or 0 for i, bits in enumerate(self.bits))
        floor = (layer_report(0, 0, 2, 2).token_nbytes or 0) * len(self.bits)
        return m.Projection(
            bytes_per_token=float(cost),
            tokens_to_warn=available // 2 // cost,
            tokens_to_limit=available // cost,
            limit="system",
            tokens_to_context=max(0, (MODEL.context or 0) - self.tokens),
            tokens_at_floor=available // floor,
        )
