"""What may be typed after a slash: the table, and how a line is told from a message."""

from dataclasses import dataclass

from tui.settings import nearest


@dataclass(frozen=True)
class Command:
    name: str
    arguments: str
    help: str


COMMANDS = (
    Command("model", "[NAME]", "change the model; the chat stays"),
    Command("system", "[TEXT|off]", "the system prompt: show, set or drop it"),
    Command("set", "NAME VALUE", "temperature, top_p, max_tokens or seed"),
    Command("bits", "KEYS[/VALUES] [LAYERS]", "lower the cache now, as /bits 4/3 2-7"),
    Command("policy", "off|careful|balanced|hard", "how soon the watchdog lowers the cache"),
    Command("limit", "[kv] SIZE|off", "a budget for all of MLX's memory, or the cache's alone"),
    Command("forecast", "", "how long the memory lasts"),
    Command("stop", "", "stop the answer, keep its text"),
    Command("retry", "", "write the last answer again"),
    Command("edit", "", "take the last message back into the prompt"),
    Command("new", "", "start an empty chat"),
    Command("sessions", "", "go on with an earlier chat"),
    Command("copy", "[N|all]", "copy the last code block, block N, or the whole answer"),
    Command("save", "FILE", "write the last answer to a file"),
    Command("export", "json|md [FILE]", "write the whole chat to a file"),
    Command("theme", "[NAME]", "change the colours"),
    Command("panels", "", "fold, unfold or fill the screen with the panels"),
    Command("layers", "", "the cache layer by layer, to be lowered by hand"),
    Command("fps", "N", "how often the answer is drawn, a second"),
    Command("plain", "", "show answers as they were written, or as Markdown again"),
    Command("log", "", "all that happened so far"),
    Command("help", "", "keys and commands"),
    Command("quit", "", "leave"),
)
ALIASES = {"exit": "quit", "q": "quit", "regenerate": "retry", "resume": "sessions"}


@dataclass(frozen=True)
class Call:
    """A command of the table with what follows it."""

    name: str
    argument: str


@dataclass(frozen=True)
class Said:
    """A message for the model."""

    text: str


@dataclass(frozen=True)
class Unknown:
    """Looks like a command and is none; not sent to the model."""

    name: str
    nearest: str


def parse(text: str) -> Call | Said | Unknown:
    """A text that begins with "/" and holds a newline or a path is a message; "//" escapes."""
    if text.strip() == ":q":
        return Call("quit", "")
    if not text.startswith("/"):
        return Said(text)
    if text.startswith("//"):
        return Said(text[1:])
    word, _, argument = text[1:].partition(" ")
    if "\n" in text or "/" in word or "." in word or not word:
        return Said(text)
    name = ALIASES.get(word.lower(), word.lower())
    known = [command.name for command in COMMANDS]
    if name in known:
        return Call(name, argument.strip())
    return Unknown(word, nearest(name, known))


def usage(command: Command) -> str:
    return f"/{command.name} {command.arguments}".strip()


def layer_numbers(text: str) -> tuple[int, ...] | None:
    """ "2-7,9" or "layers 2-7" as numbers; None for nothing, which means all.

    Raises ValueError for anything else.
    """
    words = text.removeprefix("layers").replace(",", " ").split()
    numbers: set[int] = set()
    for word in words:
        first, dash, last = word.upper().removeprefix("L").partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"layers are numbers and ranges, as 2-7,9; not {word!r}")
        numbers.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(numbers)) or None


def bits(text: str) -> tuple[int, int]:
    """ "4/3" or "4" as bits of keys and values. Raises ValueError."""
    keys, slash, values = text.partition("/")
    if not keys.isdecimal() or (slash and not values.isdecimal()):
        raise ValueError(f"bits are one number or two, as 4 or 4/3; not {text!r}")
    pair = int(keys), int(values or keys)
    if not all(1 <= number <= 8 for number in pair):
        raise ValueError(f"bits are from 1 to 8; not {text!r}")
    return pair
