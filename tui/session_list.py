"""`veloxquant-tui sessions`."""

from collections.abc import Sequence

from tui import sessions
from tui.arguments import Parser
from tui.exits import DONE
from tui.sessions import SessionError

TITLE = 60


def main(argv: Sequence[str]) -> int:
    Parser("sessions", "The chats on disk, the latest first.").read(argv)
    names = sessions.names()
    width = max(map(len, names), default=0)
    for name in names:
        try:
            session = sessions.load(sessions.path_of(name))
        except SessionError as error:
            print(f"{name:<{width}}  {error}")
            continue
        turns = f"{len(session.turns)} turns"
        print(f"{name:<{width}}  {turns:>10}  {session.title[:TITLE]}".rstrip())
    if not names:
        print("There are no chats yet.")
    return DONE
