"""What the engine and its clients say to each other: one JSON object a line.

A client sends requests, the engine answers with events. `ask --json` prints the same events.
Sizes are bytes, times seconds, rates tokens a second; None means not known.
"""

from typing import Literal

import msgspec

from kvcore.budget import Policy
from kvcore.memory.sample import Level, MemorySample
from kvcore.report import LayerReport

POLICIES: tuple[Policy, ...] = ("off", "careful", "balanced", "hard")


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is chosen. `max_tokens` bounds one answer."""

    temperature: float = 0.6
    top_p: float = 0.95
    max_tokens: int = 2048
    seed: int | None = None


class CacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The cache that new chats start with; the fields of kvcore.KVCacheConfig that people set."""

    method: str = "turboquant_mse"
    key_bits: int = 6
    value_bits: int = 4
    window: int = 128
    sinks: int = 4
    artefact: str | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Budgets of the user's own. `memory`: all that MLX holds; `kv`: the cache alone."""

    memory: int | None = None
    kv: int | None = None


class Turn(msgspec.Struct, frozen=True):
    role: Literal["system", "user", "assistant"]
    text: str
    complete: bool = True
    """False for an answer that was stopped, or is still being written."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """All that an engine is started with."""

    model: str
    cache: CacheOptions = CacheOptions()
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    policy: Policy = "balanced"
    system: str | None = None
    session: str | None = None
    """Path of the session file that finished turns are appended to; None keeps none."""
    turns: tuple[Turn, ...] = ()
    """The chat so far, where one is continued."""
    linger: float = 1800.0
    """How long the engine waits for a client after the last one left."""


# Requests


class Request(msgspec.Struct, frozen=True, tag_field="request", tag=str.lower):
    pass


class Ask(Request, frozen=True):
    """A user turn. Refused with an Error while an answer is being written."""

    text: str


class Regenerate(Request, frozen=True):
    """Write the last answer again; with `text`, the last user turn is replaced first."""

    text: str | None = None


class Stop(Request, frozen=True):
    """Stop the answer, keep its text. Also stops a load and a prefill."""


class Reset(Request, frozen=True):
    """Start an empty chat, with a session file of its own."""

    session: str | None = None


class Restore(Request, frozen=True):
    """Replace the chat by `turns`, going on in `session`."""

    turns: tuple[Turn, ...]
    session: str | None = None


class Load(Request, frozen=True):
    """Change the model; the chat's text stays."""

    model: str


class System(Request, frozen=True):
    text: str | None


class SetSampling(Request, frozen=True):
    """Change how tokens are chosen."""

    sampling: Sampling


class Lower(Request, frozen=True):
    """Drop bits now, by hand. `layers` None means all."""

    key_bits: int
    value_bits: int
    layers: tuple[int, ...] | None = None


class Watch(Request, frozen=True):
    """Change the watchdog's policy and budgets."""

    policy: Policy
    limits: Limits


class Shutdown(Request, frozen=True):
    pass


AnyRequest = (
    Ask
    | Regenerate
    | Stop
    | Reset
    | Restore
    | Load
    | System
    | SetSampling
    | Lower
    | Watch
    | Shutdown
)


# Events


class Event(msgspec.Struct, frozen=True, tag_field="event", tag=str.lower):
    pass


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    context: int | None
    """The longest context that the model was trained for, in tokens."""
    weights: int
    layers: int
    backend: str
    """What computes, in words: "Metal, Apple M4", "CPU, OpenBLAS"."""


class Welcome(Event, frozen=True, kw_only=True):
    """The state to draw from: the first event on every connection, and sent again where another
    client has changed the turns. `setup` is as now, but for its turns."""

    version: str
    pid: int
    model: ModelInfo | None
    turns: tuple[Turn, ...]
    setup: Setup
    busy: bool


class Loading(Event, frozen=True, kw_only=True):
    """`done` of `total`, in bytes where the stage is "download"."""

    stage: Literal["download", "convert", "weights", "cache"]
    done: int
    total: int | None


class Ready(Event, frozen=True):
    model: ModelInfo


class Began(Event, frozen=True, kw_only=True):
    """An answer begins. `forecast_bytes`: the cache's size after the prompt, as predicted."""

    prompt_tokens: int
    reused_tokens: int
    forecast_bytes: int | None = None


class Prefill(Event, frozen=True, kw_only=True):
    done: int
    total: int
    rate: float | None


class Token(Event, frozen=True, kw_only=True):
    """A piece of the answer's text; `text` may be empty while a character is incomplete."""

    text: str
    count: int
    rate: float | None


class Layers(Event, frozen=True, kw_only=True):
    """The cache, layer by layer: after each act, each answer, and once a second in between."""

    tokens: int
    nbytes: int
    half_nbytes: int | None
    layers: tuple[LayerReport, ...]


class Projection(msgspec.Struct, frozen=True, kw_only=True):
    """What is left, in tokens, at the present cost of one; None where nothing bounds it."""

    bytes_per_token: float | None = None
    tokens_to_warn: int | None = None
    tokens_to_limit: int | None = None
    limit: str | None = None
    """Which limit is the nearest, in words: "--kv-limit", "--memory-limit", "GPU", "system"."""
    tokens_to_context: int | None = None
    tokens_at_floor: int | None = None
    """Tokens to the same limit with every layer at the ladder's last rung."""


class Sampled(Event, frozen=True, kw_only=True, tag="sample"):
    memory: MemorySample
    weights: int | None = None
    cache: int | None = None
    projection: Projection = Projection()


class Acted(Event, frozen=True, kw_only=True):
    """The watchdog, or a request, changed something; `freed` is measured after it."""

    act: Literal["lower", "clear", "chunk", "stop"]
    reason: str
    level: Level | None
    layers: tuple[int, ...] = ()
    key_bits: int | None = None
    value_bits: int | None = None
    freed: int | None = None
    at_token: int | None = None


class Done(Event, frozen=True, kw_only=True):
    """The answer ended. `reason` "memory" means admission refused to go on."""

    reason: Literal["stop", "length", "context", "cancelled", "memory", "error"]
    prompt_tokens: int
    reused_tokens: int
    tokens: int
    prefill_rate: float | None
    decode_rate: float | None
    first_token: float | None
    seconds: float
    cache: int | None
    sentence: str | None = None


class Error(Event, frozen=True, kw_only=True):
    """One sentence: what is wrong, where, what to do. `exit_code` as in the command line's."""

    sentence: str
    exit_code: int = 1
    fatal: bool = False


AnyEvent = (
    Welcome | Loading | Ready | Began | Prefill | Token | Layers | Sampled | Acted | Done | Error
)

LINE_LIMIT = 16 * 1024 * 1024

_encoder = msgspec.json.Encoder()
_requests = msgspec.json.Decoder(AnyRequest)
_events = msgspec.json.Decoder(AnyEvent)


def encode(message: Request | Event) -> bytes:
    """The message as one line, newline included."""
    return _encoder.encode(message) + b"\n"


def decode_request(line: bytes) -> AnyRequest:
    """Raises msgspec.MsgspecError for a line that is no request."""
    return _requests.decode(line)


def decode_event(line: bytes) -> AnyEvent:
    """Raises msgspec.MsgspecError for a line that is no event."""
    return _events.decode(line)
