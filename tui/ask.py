"""`veloxquant-tui ask`: one question, one answer on stdout, figures on stderr."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tui import figures
from tui.arguments import (
    Parser,
    UsageError,
    add_log,
    add_session,
    add_settings,
    read_log,
    read_session,
    read_settings,
)
from tui.exits import DONE, FAILED, MEMORY
from tui.messages import LINE_LIMIT, Acted, AnyEvent, Ask, Done, Error, Setup, Token, encode
from tui.progress_line import ProgressLine
from tui.sentences import ENDS, act

LINGER = 5.0
"""Seconds that the engine outlives this process, should it be killed."""


def main(argv: Sequence[str]) -> int:
    parser = Parser("ask", "One answer on stdout, figures on stderr. Stdin is added to the prompt.")
    parser.add_argument("prompt", metavar="PROMPT", nargs="*")
    parser.add_argument("--json", action="store_true", help="print every event, one JSON a line")
    add_session(parser)
    add_settings(parser)
    add_log(parser)
    # argparse cannot tell flags among words from words after "--".
    flags, words = list(argv), []
    if "--" in flags:
        end = flags.index("--")
        flags, words = flags[:end], flags[end + 1 :]
    args = parser.read(flags)
    return answer(args, " ".join([*args.prompt, *words]), args.json)


def answer(args: argparse.Namespace, words: str, as_json: bool = False) -> int:
    """Answers `words` and what stands on stdin; an exit code.

    `args` holds what add_session, add_settings and add_log ask for.
    """
    log = read_log(args)
    settings = read_settings(args)
    session = read_session(args)
    prompt = join_prompt(words, read_stdin(needed=not words))
    if sys.stdout is None:
        raise UsageError("Stdout is closed: there is nowhere to put the answer.")
    setup = settings.setup(session.path, session.turns) if session else settings.setup()
    setup = msgspec.structs.replace(setup, linger=LINGER)
    printer = Printer(as_json)
    try:
        return asyncio.run(_converse(setup, prompt, log, printer))
    except KeyboardInterrupt:
        printer.end_line()
        raise


async def _converse(setup: Setup, prompt: str, log: Path, printer: "Printer") -> int:
    from tui.engine.client import EngineClient

    client = await EngineClient.start(setup, log=log)
    try:
        await client.send(Ask(prompt))
        async for event in client.events():
            code = printer.show(event)
            if code is not None:
                return code
    finally:
        await client.close(shutdown=True)
    raise RuntimeError("the engine left without a word")


class Printer:
    """Prints events as text, or as JSON; sentences go to stderr in both."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._progress = ProgressLine(sys.stderr)
        self._line_open = False

    def show(self, event: AnyEvent) -> int | None:
        """The exit code once the event is the last one."""
        self._progress.show(event)
        if self._as_json:
            sys.stdout.write(encode(event).decode())
            sys.stdout.flush()
        match event:
            case Token(text=text) if text and not self._as_json:
                sys.stdout.write(text)
                sys.stdout.flush()
                self._line_open = not text.endswith("\n")
            case Acted(act="stop"):
                pass  # Done, which follows, has the same sentence
            case Acted():
                self._say(f"{act(event)}: {event.reason}")
            case Error(sentence=sentence, exit_code=code, fatal=fatal):
                self._say(sentence)
                # The engine still has an answer to give, unless it says otherwise.
                return code if fatal or code != FAILED else None
            case Done(reason=reason, tokens=tokens, sentence=sentence):
                if sentence is not None:
                    self._say(sentence)
                self._say(_figures(event))
                if reason == "memory":
                    return MEMORY
                return FAILED if reason == "error" or (reason == "context" and not tokens) else DONE
        return None

    def end_line(self) -> None:
        self._progress.clear()
        if self._line_open:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._line_open = False

    def _say(self, sentence: str) -> None:
        self.end_line()
        if sys.stderr is not None:
            print(sentence, file=sys.stderr)


def read_stdin(needed: bool) -> str:
    """All of stdin; from a terminal only where it is `needed`.

    Raises UsageError for what is no text.
    """
    if sys.stdin is None:
        return ""
    if sys.stdin.isatty():
        if not needed:
            return ""
        print("Write the prompt, then ^d on a line of its own:", file=sys.stderr)
    data = sys.stdin.buffer.read(LINE_LIMIT)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"Stdin is no UTF-8 text (byte {error.start + 1}): give text, or convert it first."
        ) from None
    if "\0" in text:
        raise UsageError("Stdin is binary, not text: it holds a zero byte.")
    return text


def join_prompt(words: str, text: str) -> str:
    """Raises UsageError for an empty prompt, or one that no engine takes."""
    prompt = "\n\n".join(part for part in (words, text) if part.strip())
    if not prompt:
        raise UsageError('The prompt is empty: write one, as `veloxquant-tui ask "Why?"`.')
    try:
        size = len(encode(Ask(prompt)))
    except UnicodeEncodeError:
        raise UsageError("The prompt is no UTF-8 text: write it in UTF-8.") from None
    if size > LINE_LIMIT:
        limit = figures.size(LINE_LIMIT)
        raise UsageError(f"The prompt is longer than {limit}: give a part of it.")
    return prompt


def _figures(done: Done) -> str:
    parts = [
        f"{done.prompt_tokens:,} prompt tokens at {figures.rate(done.prefill_rate)} tok/s",
        f"{done.tokens:,} tokens at {figures.rate(done.decode_rate)} tok/s",
        f"first token after {figures.seconds(done.first_token)}",
        f"cache {figures.size(done.cache)}",
    ]
    return f"{ENDS[done.reason]}: {', '.join(parts)}"
