"""What is a command, what is a message, and what their arguments may be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.commands import ALIASES, COMMANDS, Call, Said, Unknown, bits, layer_numbers, parse


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("hello", Said("hello")),
        ("/set temp 0.6", Call("set", "temp 0.6")),
        ("/QUIT", Call("quit", "")),
        ("/exit", Call("quit", "")),
        (":q", Call("quit", "")),
        ("/hlep", Unknown("hlep", "help")),
        ("//help", Said("/help")),
        ("/help\nmore", Said("/help\nmore")),
        ("/etc/passwd is what?", Said("/etc/passwd is what?")),
        ("/notes.txt", Said("/notes.txt")),
        ("/", Said("/")),
    ],
)
def test_parse(text: str, meaning: Call | Said | Unknown) -> None:
    assert parse(text) == meaning


@given(st.text())
def test_what_is_not_a_command_reaches_the_model_whole(text: str) -> None:
    meaning = parse(text)
    if isinstance(meaning, Said):
        assert meaning.text in (text, text[1:])


def test_aliases_name_commands() -> None:
    assert set(ALIASES.values()) <= {command.name for command in COMMANDS}


@pytest.mark.parametrize(
    ("text", "layers"),
    [("", None), ("2-4,9", (2, 3, 4, 9)), ("layers L0-1", (0, 1)), ("7 3", (3, 7))],
)
def test_layers(text: str, layers: tuple[int, ...] | None) -> None:
    assert layer_numbers(text) == layers


@pytest.mark.parametrize("text", ["a", "2-", "-3", "1.5"])
def test_wrong_layers_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="layers are numbers"):
        layer_numbers(text)


def test_bits() -> None:
    assert bits("4/3") == (4, 3)
    assert bits("4") == (4, 4)
    for wrong in ("", "x", "4/", "9", "0/4"):
        with pytest.raises(ValueError, match="bits are"):
            bits(wrong)
