import errno

import pytest

from tui import sessions
from tui.engine.journal import Journal
from tui.messages import Turn
from tui.sessions import SessionError

ONE, TWO, THREE = Turn("user", "a\nb"), Turn("assistant", "ü"), Turn("user", "c")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "chat.jsonl"


def test_turns_are_added_as_they_come(path):
    journal = Journal(str(path), ())
    for turns in ((ONE,), (ONE, TWO), (ONE, TWO), (ONE, TWO, THREE)):
        assert journal.save(turns) is None
        assert sessions.load(path).turns == turns
    assert len(path.read_bytes().splitlines()) == 3


def test_a_continued_chat_is_not_written_twice(path):
    sessions.append(path, [ONE, TWO])
    journal = Journal(str(path), (ONE, TWO))
    journal.save((ONE, TWO, THREE))
    assert sessions.load(path).turns == (ONE, TWO, THREE)


def test_a_turn_that_was_taken_back_is_taken_back_in_the_file(path):
    journal = Journal(str(path), ())
    journal.save((ONE, TWO))
    journal.save((ONE,))
    journal.save((ONE, THREE))
    assert sessions.load(path).turns == (ONE, THREE)


def test_a_full_disk_is_told_once_and_made_good_later(path, monkeypatch):
    journal = Journal(str(path), ())
    journal.save((ONE,))

    def full(path, turns):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sessions, "append", full)
    sentence = journal.save((ONE, TWO))
    assert sentence is not None and "No space left on device" in sentence and str(path) in sentence
    assert journal.save((ONE, TWO, THREE)) is None
    assert sessions.load(path).turns == (ONE,)
    monkeypatch.undo()
    assert journal.save((ONE, TWO, THREE, TWO)) is None
    assert sessions.load(path).turns == (ONE, TWO, THREE, TWO)


def test_no_path_keeps_nothing():
    assert Journal(None, ()).save((ONE,)) is None


def test_of_two_programs_the_second_is_told(path):
    first = Journal(str(path), ())
    with pytest.raises(SessionError, match="open in another program"):
        Journal(str(path), ())
    first.close()
    Journal(str(path), ()).close()
