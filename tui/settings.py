"""What the user may set, in config.toml and by flags, under one set of names."""

import os
import re
import reprlib
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
import tomli_w
from msgspec import Meta

from kvcore.config import KVCacheConfig
from tui import paths
from tui.messages import CacheOptions, Limits, Policy, Sampling, Setup, Turn
from tui.sizes import parse_size

_SETUP = Setup(model="smollm2")
_CACHE, _SAMPLING = _SETUP.cache, _SETUP.sampling


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each field is a key of config.toml and a flag of the command line.

    `title` says what it is, `description` what it may hold; both are shown to the user.
    """

    theme: Annotated[
        str,
        Meta(
            title="a shipped theme or one of your own; auto goes by the terminal's colours",
            description="the name of a theme",
        ),
    ] = "auto"
    fps: (
        Annotated[
            int,
            Meta(
                title="frames a second; unset: 30, over SSH 10",
                description="a whole number from 1 to 60",
                ge=1,
                le=60,
            ),
        ]
        | None
    ) = None
    ascii: Annotated[
        bool, Meta(title="draw with ASCII characters alone", description="true or false")
    ] = False

    model: Annotated[
        str,
        Meta(
            title="a Hugging Face id, a folder, a GGUF file, or smollm2",
            description="a model's name",
            min_length=1,
        ),
    ] = _SETUP.model
    system: (
        Annotated[str, Meta(title="the system prompt of new chats", description="text")] | None
    ) = None
    temperature: Annotated[
        float,
        Meta(
            title="0 always takes the likeliest token",
            description="a number from 0 to 5",
            ge=0,
            le=5,
        ),
    ] = _SAMPLING.temperature
    top_p: Annotated[
        float,
        Meta(
            title="choose among the likeliest tokens that together are this probable",
            description="a number above 0 and up to 1",
            gt=0,
            le=1,
        ),
    ] = _SAMPLING.top_p
    max_tokens: Annotated[
        int,
        Meta(
            title="the longest answer, in tokens",
            description="a whole number above 0",
            ge=1,
            lt=2**31,
        ),
    ] = _SAMPLING.max_tokens
    seed: (
        Annotated[
            int,
            Meta(
                title="makes sampling repeatable",
                description="a whole number from 0 to 4294967295",
                ge=0,
                lt=2**32,
            ),
        ]
        | None
    ) = _SAMPLING.seed

    method: Annotated[
        str, Meta(title="how keys and values are packed", description="a method's name")
    ] = _CACHE.method
    key_bits: (
        Annotated[
            int, Meta(title="bits of a key's code in a new chat", description="a whole number")
        ]
        | None
    ) = None
    value_bits: (
        Annotated[
            int, Meta(title="bits of a value's code in a new chat", description="a whole number")
        ]
        | None
    ) = None
    window: Annotated[
        int, Meta(title="the last tokens, kept in half precision", description="a whole number")
    ] = _CACHE.window
    sinks: Annotated[
        int, Meta(title="the first tokens, kept in half precision", description="a whole number")
    ] = _CACHE.sinks
    artefact: (
        Annotated[
            str,
            Meta(
                title="the folder that calibrate wrote, for methods that learn",
                description="a folder's name",
                min_length=1,
            ),
        ]
        | None
    ) = _CACHE.artefact

    memory_limit: (
        Annotated[
            int,
            Meta(
                title="budget for all that MLX holds: weights, cache, scratch",
                description='a size, as "900M"',
                gt=0,
                le=2**63 - 1,
            ),
        ]
        | None
    ) = None
    kv_limit: (
        Annotated[
            int,
            Meta(
                title="budget for the cache alone",
                description='a size, as "200M"',
                gt=0,
                le=2**63 - 1,
            ),
        ]
        | None
    ) = None
    policy: Annotated[
        Policy,
        Meta(
            title="how soon the cache is lowered when memory runs low",
            description="off, careful, balanced or hard",
        ),
    ] = _SETUP.policy

    def setup(self, session: Path | None = None, turns: tuple[Turn, ...] = ()) -> Setup:
        """What an engine is started with."""
        config = self.cache_config()
        return Setup(
            model=self.model,
            cache=CacheOptions(
                **{name: getattr(config, name) for name in CacheOptions.__struct_fields__}
            ),
            sampling=Sampling(
                temperature=self.temperature,
                top_p=self.top_p,
                max_tokens=self.max_tokens,
                seed=self.seed,
            ),
            limits=Limits(memory=self.memory_limit, kv=self.kv_limit),
            policy=self.policy,
            system=self.system,
            session=None if session is None else str(session),
            turns=turns,
        )

    def cache_config(self) -> KVCacheConfig:
        """What is not set is as the method has it. Raises ValueError for what it has not."""
        given = {name: getattr(self, name) for name in CacheOptions.__struct_fields__}
        return KVCacheConfig(**{name: x for name, x in given.items() if x is not None})


SIZES = ("memory_limit", "kv_limit")


class SettingsError(Exception):
    """One sentence: what is wrong, where, what is allowed."""


def load(path: Path | None = None) -> Settings:
    """The settings in `path`, or in the user's own file, which need not exist.

    Raises SettingsError for a file that cannot be read or holds what is not allowed.
    """
    file = path or paths.settings()
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError:
        if path is None:
            return Settings()
        raise SettingsError(f"There is no settings file {file}.") from None
    except UnicodeDecodeError:
        raise SettingsError(f"The settings file {file} is not UTF-8 text.") from None
    except OSError as error:
        raise SettingsError(f"Cannot read the settings file {file}: {error.strerror}.") from None
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise SettingsError(f"The settings file {file} is not TOML: {error}.") from None
    return _convert(document, lambda key: f"{file}{_line(text, key)}: {key}", strict=True)


def override(settings: Settings, flags: Mapping[str, Any]) -> Settings:
    """`settings` with what the command line gives, as text. Raises SettingsError."""
    values = msgspec.structs.asdict(settings) | dict(flags)
    return _convert(values, flag, strict=False)


def save(settings: Settings, path: Path | None = None) -> None:
    """Writes what differs from the defaults, in one step: a full disk leaves the old file."""
    path = path or paths.settings()
    default = msgspec.structs.asdict(Settings())
    values = msgspec.structs.asdict(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("wb", dir=path.parent, delete=False) as file:
        try:
            tomli_w.dump({key: v for key, v in values.items() if v != default[key]}, file)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def fields() -> dict[str, Meta]:
    """What each setting is and may hold."""
    metas = {}
    for name, hint in get_type_hints(Settings, include_extras=True).items():
        annotated = hint if hasattr(hint, "__metadata__") else hint.__args__[0]
        metas[name] = annotated.__metadata__[0]
    return metas


def flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that is most like `word`."""
    return get_close_matches(word, list(known), n=1, cutoff=0)[0]


def _convert(document: dict[str, Any], place: Callable[[str], str], strict: bool) -> Settings:
    """`place(key)` says where a key stands. Lenient conversion takes numbers out of text."""
    known = fields()
    for key in document:
        if key not in known:
            near = nearest(key, known)
            raise SettingsError(f"{place(repr(key)[1:-1])} is no setting; did you mean {near!r}?")
    values = dict(document)
    for key in SIZES:
        if isinstance(values.get(key), str):
            try:
                values[key] = parse_size(values[key])
            except ValueError as error:
                raise SettingsError(f"{place(key)} is not allowed: {error}.") from None
    try:
        settings = msgspec.convert(values, Settings, strict=strict)
    except msgspec.ValidationError as error:
        match = re.search(r"\$\.(\w+)", str(error))
        key = match[1] if match else next(iter(values))
        raise SettingsError(
            f"{place(key)} must be {known[key].description}, not {reprlib.repr(values[key])}."
        ) from None
    try:
        settings.cache_config()
    except ValueError as error:
        key, rest = str(error).split(" ", 1)
        raise SettingsError(f"{place(key)} {rest}") from None
    return settings


def _line(text: str, key: str) -> str:
    """Where `key` is set: ", line 3", or nothing when it is written in an unusual way."""
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(rf"""\s*\[?["']?{re.escape(key)}\b""", line):
            return f", line {number}"
    return ""
