import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui import sessions
from tui.messages import Turn
from tui.sessions import SessionError

TURNS = (Turn("user", "hello\nthere"), Turn("assistant", "hel", False), Turn("user", "äöü 🙂"))

turns = st.lists(
    st.builds(
        Turn,
        role=st.sampled_from(("system", "user", "assistant")),
        text=st.text(st.characters(exclude_categories=("Cs",))),
        complete=st.booleans(),
    ),
    max_size=5,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.jsonl"


def test_appended_turns_come_back(path: Path) -> None:
    sessions.append(path, TURNS[:1])
    sessions.append(path, TURNS[1:])
    assert sessions.load(path) == sessions.Session(path, TURNS)
    assert len(path.read_bytes().splitlines()) == 3
    assert path.stat().st_mode & 0o077 == 0


@given(before=turns, after=turns, data=st.data())
def test_a_torn_last_line_costs_no_other_turn(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[Turn],
    after: list[Turn],
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.mktemp("torn") / "chat.jsonl"
    sessions.append(path, before)
    line = msgspec.json.encode(TURNS[2])
    torn = line[: data.draw(st.integers(1, len(line) - 1))]
    with path.open("ab") as file:
        file.write(torn)
    session = sessions.load(path)
    assert session.turns == tuple(before)
    assert session.notice is not None and "cut off" in session.notice
    sessions.append(path, after)
    assert sessions.load(path) == sessions.Session(path, (*before, *after))


def test_a_missing_last_newline_loses_nothing(path: Path) -> None:
    path.write_bytes(msgspec.json.encode(TURNS[0]))
    assert sessions.load(path) == sessions.Session(path, TURNS[:1])
    sessions.append(path, TURNS[1:])
    assert sessions.load(path).turns == TURNS


@pytest.mark.parametrize("broken", [b"{}\n", b"\xff\xfe\n", b'{"role":"king","text":""}\n', b"\n"])
def test_a_broken_file_is_left_as_it_is(path: Path, broken: bytes) -> None:
    sessions.append(path, TURNS[:1])
    with path.open("ab") as file:
        file.write(broken)
    before = path.read_bytes()
    with pytest.raises(SessionError, match=r"chat\.jsonl is broken in line 2"):
        sessions.load(path)
    assert path.read_bytes() == before


def test_a_full_disk_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions.append(path, TURNS[:1])
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sessions.os, "fsync", full)
    for write in (sessions.append, sessions.replace):
        with pytest.raises(OSError, match="No space"):
            write(path, TURNS[1:])
        assert path.read_bytes() == before
    assert [entry for entry in path.parent.iterdir() if entry.is_file()] == [path]


def test_replace_writes_the_chat_anew(path: Path) -> None:
    sessions.append(path, TURNS)
    sessions.replace(path, TURNS[:1])
    assert sessions.load(path).turns == TURNS[:1]


def test_a_held_session_is_refused_to_others(path: Path) -> None:
    with sessions.hold(path), pytest.raises(SessionError, match="--attach"):
        sessions.hold(path)
    sessions.hold(path).close()


@pytest.mark.parametrize("name", ["", ".", "../up", "a/b", "a\nb", "-x", "x" * 101])
def test_a_name_that_is_no_file_name(name: str) -> None:
    with pytest.raises(SessionError, match="cannot be a session's name"):
        sessions.path_of(name)


def test_names_come_latest_first() -> None:
    assert sessions.names() == []
    for age, name in enumerate(("new", "older", "oldest")):
        sessions.append(sessions.path_of(name), TURNS)
        os.utime(sessions.path_of(name), (1000 - age, 1000 - age))
    assert sessions.names() == ["new", "older", "oldest"]


def test_new_paths_do_not_meet() -> None:
    first = sessions.new_path()
    sessions.append(first, TURNS)
    assert sessions.new_path() != first


def test_the_title_is_the_first_question(path: Path) -> None:
    assert sessions.Session(path, TURNS).title == "hello"
    assert sessions.Session(path).title == ""
