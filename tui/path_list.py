"""`veloxquant-tui paths`."""

from collections.abc import Sequence

from tui import paths
from tui.arguments import Parser
from tui.exits import DONE
from tui.themes import shipped_folder


def main(argv: Sequence[str]) -> int:
    Parser("paths", "Where files are kept.").read(argv)
    for name, path in (
        ("settings", paths.settings()),
        ("themes", paths.themes()),
        ("shipped themes", shipped_folder()),
        ("models", paths.models()),
        ("sessions", paths.sessions()),
        ("log", paths.log()),
        ("sockets", paths.runtime()),
    ):
        print(f"{name:<16}{path}")
    return DONE
