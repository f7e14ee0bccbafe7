"""The chat screen's keys. While a person types, only those with `priority` reach it."""

from textual.binding import Binding

CHAT = [
    Binding("escape", "stop", "stop, or leave the prompt", id="stop"),
    Binding("ctrl+o", "panels", "panels: beside, full, folded", id="panels", priority=True),
    Binding("ctrl+l", "layers", "the cache layer by layer", id="layers", priority=True),
    Binding(
        "ctrl+g",
        "grab",
        "copy the last code block; again: the answer",
        id="grab",
        priority=True,
    ),
    Binding("ctrl+r", "again", "write the last answer again", id="regenerate", priority=True),
    Binding("ctrl+f", "find", "find in the chat", id="find", priority=True),
    Binding("ctrl+n", "new", "new chat", id="new", priority=True),
    Binding("ctrl+s", "sessions", "earlier chats", id="sessions", priority=True),
    Binding("pageup", "scroll('page_up')", "scroll the chat", id="page_up", priority=True),
    Binding("pagedown", "scroll('page_down')", id="page_down", priority=True),
    Binding("ctrl+home", "scroll('home')", "to the chat's start", id="home", priority=True),
    Binding("ctrl+end", "scroll('end')", "to its end, and follow", id="end", priority=True),
    # The letters reach these only while the prompt does not have the keys.
    Binding("question_mark", "help", "help", id="help"),
    Binding("y,Y", "copy_answer", "copy the answer", id="yank"),
    Binding("e,E", "edit", "edit the last message", id="edit"),
    Binding("r,R", "again", "write the last answer again", id="again"),
    Binding("slash", "find", "find", id="search"),
    Binding("n", "find_next(1)", "next match", id="next"),
    Binding("N", "find_next(-1)", "match before", id="previous"),
    Binding("j,down", "scroll('down')", "scroll", id="down"),
    Binding("k,up", "scroll('up')", "scroll", id="up"),
    Binding("g", "scroll('home')", "to the start", id="top"),
    Binding("G", "scroll('end')", "to the end", id="bottom"),
    Binding("q,Q,i,I", "focus_prompt", "back to the prompt", id="back"),
]
