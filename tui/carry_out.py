"""What each slash command does."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from tui import figures, sizes
from tui.commands import COMMANDS, Call, bits, layer_numbers, usage
from tui.messages import POLICIES, Limits, Load, Lower, Sampling, SetSampling, System, Turn
from tui.settings import nearest
from tui.themes import ThemeError, theme_files
from tui.widgets.notice import Said
from tui.widgets.projection import present_rate

if TYPE_CHECKING:
    from tui.app import VeloxquantApp

RANGES: dict[str, tuple[type, float, float]] = {
    "temperature": (float, 0, 5),
    "top_p": (float, 0.01, 1),
    "max_tokens": (int, 1, 2**31 - 1),
    "seed": (int, 0, 2**32 - 1),
}
SHORT = {
    "temp": "temperature",
    "top-p": "top_p",
    "max-tokens": "max_tokens",
    "tokens": "max_tokens",
}


async def carry_out(app: "VeloxquantApp", call: Call) -> None:
    """Raises ValueError, with a sentence, for an argument that is not allowed."""
    argument = call.argument
    match call.name:
        case "model":
            await change_model(app, argument)
        case "system":
            await change_system(app, argument)
        case "set":
            await set_sampling(app, argument)
        case "bits":
            await lower(app, argument)
        case "policy":
            await change_policy(app, argument)
        case "limit":
            await change_limit(app, argument)
        case "forecast":
            app.chat.show_notice(Said("forecast", forecast(app)))
        case "stop":
            await app.stop()
        case "retry":
            await app.again()
        case "edit":
            app.chat.action_edit()
        case "new":
            await app.new_chat()
        case "sessions":
            app.open_sessions()
        case "copy":
            copy(app, argument)
        case "save":
            save(app, argument)
        case "export":
            export(app, argument)
        case "theme":
            change_theme(app, argument)
        case "panels":
            app.chat.action_panels()
        case "layers":
            app.open_layers()
        case "fps":
            change_fps(app, argument)
        case "plain":
            app.chat.transcript.plain = not app.chat.transcript.plain
        case "log":
            app.open_log()
        case "help":
            app.open_help()
        case "quit":
            await app.action_quit()


async def change_model(app: "VeloxquantApp", name: str) -> None:
    if not name:
        model = app.live.model
        app.notify(
            f"{model.name}: {model.layers} layers, {figures.size(model.weights)} of weights, "
            f"context {figures.full(model.context)}, {model.backend}."
            if model
            else "No model is loaded: /model NAME."
        )
        return
    app.change_setup(model=name)
    if app.live.phase == "dead":
        app.new_engine()
    else:
        await app.request(Load(name))


async def change_system(app: "VeloxquantApp", given: str) -> None:
    if not given:
        app.notify(app.live.setup.system or "No system prompt is set: /system TEXT.")
        return
    text = None if given == "off" else given
    app.change_setup(system=text)
    await app.request(System(text))
    app.notify("The system prompt is dropped." if text is None else "The system prompt is set.")


async def set_sampling(app: "VeloxquantApp", argument: str) -> None:
    name, _, value = argument.partition(" ")
    sampling = app.live.setup.sampling
    if not name:
        pairs = msgspec.structs.asdict(sampling).items()
        app.notify(", ".join(f"{key} {figures.UNKNOWN if v is None else v}" for key, v in pairs))
        return
    name = SHORT.get(name, name)
    if name not in RANGES:
        raise ValueError(f"{name!r} cannot be set; did you mean {nearest(name, RANGES)!r}?")
    kind, low, high = RANGES[name]
    try:
        number = kind(value.strip())
    except ValueError:
        number = None
    if number is None or not low <= number <= high:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name} is {what} from {low} to {high}, not {value.strip()!r}.")
    changed: Sampling = replace(sampling, **{name: number})
    app.change_setup(sampling=changed)
    await app.request(SetSampling(changed))
    app.notify(f"{name} is {number:g}." if kind is float else f"{name} is {number}.")


async def lower(app: "VeloxquantApp", argument: str) -> None:
    word, _, rest = argument.partition(" ")
    if not word:
        app.open_layers()
        return
    key_bits, value_bits = bits(word)
    await app.request(Lower(key_bits, value_bits, layer_numbers(rest)))


async def change_policy(app: "VeloxquantApp", name: str) -> None:
    setup = app.live.setup
    if not name:
        app.notify(f"The policy is {setup.policy}. Known: {', '.join(POLICIES)}.")
        return
    if name not in POLICIES:
        raise ValueError(
            f"{name!r} is no policy; did you mean {nearest(name, POLICIES)!r}? "
            f"Known: {', '.join(POLICIES)}."
        )
    await app.change_watch(name, setup.limits)
    app.notify(f"The policy is {name}.")


async def change_limit(app: "VeloxquantApp", argument: str) -> None:
    limits = app.live.setup.limits
    words = argument.split()
    field = "kv" if words[:1] == ["kv"] else "memory"
    words = words[1:] if field == "kv" else words
    if not words:
        memory, kv = figures.size(limits.memory), figures.size(limits.kv)
        app.notify(f"Limits: memory {memory}, kv {kv}. Change one: /limit 28G, /limit kv 200M.")
        return
    nbytes = None if words == ["off"] else sizes.parse_size("".join(words))
    changed: Limits = replace(limits, **{field: nbytes})
    await app.change_watch(app.live.setup.policy, changed)
    what = "The cache" if field == "kv" else "All that MLX holds"
    app.notify(
        f"{what} may take {figures.size(nbytes)}." if nbytes else f"{what} has no limit now."
    )


def forecast(app: "VeloxquantApp") -> str:
    """The projection in words."""
    sampled = app.live.sampled
    if sampled is None:
        return "Nothing is known yet: the engine has sent no sample."
    projection = sampled.projection
    rate = present_rate(app.live)
    ends = [
        (projection.tokens_to_warn, "memory pressure turns to warn"),
        (projection.tokens_to_limit, f"the nearest limit ({projection.limit or 'none'})"),
        (projection.tokens_at_floor, "the same with every layer at 2/2"),
        (projection.tokens_to_context, "the context's end"),
    ]
    lines = [f"A token costs {figures.size(projection.bytes_per_token)}. Left until"]
    for tokens, end in ends:
        time = (
            f", {figures.seconds(tokens / rate)} at {figures.rate(rate)} tok/s"
            if (tokens and rate)
            else ""
        )
        lines.append(f"  {end}: {figures.full(tokens)} tokens{time}")
    return "\n".join(lines)


def copy(app: "VeloxquantApp", which: str) -> None:
    blocks = app.chat.transcript.code_blocks()
    if which == "all":
        text = app.chat.transcript.last_answer()
    elif not which:
        text = blocks[-1] if blocks else app.chat.transcript.last_answer()
    elif which.isdecimal():
        if not 1 <= int(which) <= len(blocks):
            raise ValueError(f"There is no code block {which}: the chat has {len(blocks)}.")
        text = blocks[int(which) - 1]
    else:
        raise ValueError(f"/copy takes a block's number or all, not {which!r}.")
    if not text:
        raise ValueError("There is no answer to copy yet.")
    app.copy(text)


def save(app: "VeloxquantApp", name: str) -> None:
    if not name:
        raise ValueError("/save needs a file's name.")
    answer = app.chat.transcript.last_answer()
    if not answer:
        raise ValueError("There is no answer to save yet.")
    write(app, name, answer)


def export(app: "VeloxquantApp", argument: str) -> None:
    kind, _, name = argument.partition(" ")
    if kind not in ("json", "md"):
        raise ValueError("/export takes json or md, then a file's name.")
    turns = app.live.turns
    if not turns:
        raise ValueError("There is no chat to export yet.")
    text = markdown(turns) if kind == "md" else msgspec.json.encode(turns).decode() + "\n"
    write(app, name.strip() or f"chat.{kind}", text)


def markdown(turns: list[Turn]) -> str:
    """The chat as one Markdown document, a heading for each turn."""
    parts = []
    for turn in turns:
        cut = "" if turn.complete else " (cut off)"
        parts.append(f"## {turn.role}{cut}\n\n{turn.text.strip()}\n")
    return "\n".join(parts)


def write(app: "VeloxquantApp", name: str, text: str) -> None:
    """Never over a file that exists: what is there may be worth more."""
    path = Path(name).expanduser()
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ValueError(f"{path} exists already; choose another name.") from None
    except OSError as error:
        raise ValueError(f"Cannot write {path}: {error.strerror}.") from None
    app.notify(f"Written to {path.resolve()}.")


def change_theme(app: "VeloxquantApp", name: str) -> None:
    if not name:
        app.notify(f"The theme is {app.theme}. Known: {', '.join(theme_files())}.")
        return
    try:
        app.use_theme(name)
    except ThemeError as error:
        raise ValueError(str(error)) from None


def change_fps(app: "VeloxquantApp", argument: str) -> None:
    if not argument.isdecimal() or not 1 <= int(argument) <= 60:
        raise ValueError(f"/fps takes a number from 1 to 60, not {argument!r}.")
    app.chat.transcript.flushes_per_second = int(argument)
    app.notify(f"Answers are drawn {argument} times a second.")


def help_lines() -> list[tuple[str, str]]:
    return [(usage(command), command.help) for command in COMMANDS]
