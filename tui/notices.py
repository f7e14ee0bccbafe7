"""What the app says in a box, and what can be done then."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tui import exits
from tui.messages import Done, Error, Limits
from tui.widgets.notice import Choice, Said

if TYPE_CHECKING:
    from tui.app import VeloxquantApp


def memory_stop(app: "VeloxquantApp", done: Done) -> Said:
    """With the watchdog on, the cache is at its floor already where it refuses to go on."""
    setup = app.live.setup
    ways: list[tuple[str, Callable[[], object]]] = []
    if setup.policy == "off":
        ways.append(("turn the watchdog on and answer again", app.watch_and_retry))
    if setup.limits != Limits():
        ways.append(("lift the limits of your own and answer again", app.lift_and_retry))
    if not ways:
        ways.append(("answer again, once other programs have given memory back", app.again))
    ways.append(("start a new chat; this one is kept", app.new_chat))
    written = f" {done.tokens:,} tokens were written and are kept." if done.tokens else ""
    return Said(
        "stopped: memory",
        (done.sentence or "No memory is left for this answer.") + written,
        tuple(Choice(str(number), label, act) for number, (label, act) in enumerate(ways, 1)),
        error=True,
    )


def engine_ended(app: "VeloxquantApp", error: Error) -> Said:
    again = Choice("r", "start a new engine (^r from the prompt)", app.new_engine)
    if error.exit_code == exits.MODEL:
        return Said("no model", f"{error.sentence} Another one: /model NAME.", (again,), error=True)
    return Said("engine ended", error.sentence, (again,), error=True)
