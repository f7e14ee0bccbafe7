"""What the app says in a box, and what can be done then."""

from typing import TYPE_CHECKING

from tui import exits
from tui.messages import Done, Error
from tui.widgets.notice import Choice, Said

if TYPE_CHECKING:
    from tui.app import VeloxquantApp


def memory_stop(app: "VeloxquantApp", done: Done) -> Said:
    if app.live.setup.policy == "off":
        again = Choice("1", "turn the watchdog on and answer again", app.watch_and_retry)
    else:
        again = Choice("1", "lower every layer to 2/2 and answer again", app.lower_and_retry)
    return Said(
        "stopped: memory",
        f"{done.sentence or 'No memory is left for this answer.'} "
        f"{done.tokens:,} tokens were written and are kept.",
        (again, Choice("2", "start a new chat; this one is kept", app.new_chat)),
        error=True,
    )


def engine_ended(app: "VeloxquantApp", error: Error) -> Said:
    again = Choice("r", "start a new engine (^r from the prompt)", app.new_engine)
    if error.exit_code == exits.MODEL:
        return Said("no model", f"{error.sentence} Another one: /model NAME.", (again,), error=True)
    return Said("engine ended", error.sentence, (again,), error=True)
