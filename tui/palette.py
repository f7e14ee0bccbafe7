"""The slash commands in the command palette."""

from functools import partial

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from tui.commands import COMMANDS, Call, Command, usage


class SlashCommands(Provider):
    """A command that needs an argument is put into the prompt; the others run at once."""

    def pick(self, command: Command) -> None:
        app = self.app
        needs_more = bool(command.arguments) and not command.arguments.startswith("[")
        if needs_more:
            app.chat.prompt.text = f"/{command.name} "  # type: ignore[attr-defined]
            app.chat.focus_prompt()  # type: ignore[attr-defined]
        else:
            app.run_worker(app.run_command(Call(command.name, "")))  # type: ignore[attr-defined]

    async def discover(self) -> Hits:
        for command in COMMANDS:
            # As content, not as text: brackets in it are no markup.
            yield DiscoveryHit(
                Content(usage(command)),
                partial(self.pick, command),
                text=usage(command),
                help=command.help,
            )

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command in COMMANDS:
            line = f"{usage(command)}  {command.help}"
            if score := matcher.match(line):
                yield Hit(
                    score,
                    matcher.highlight(usage(command)),
                    partial(self.pick, command),
                    help=command.help,
                )
