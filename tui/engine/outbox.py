"""What one client has still to be sent: one that stalls costs some memory, and nobody time."""

import asyncio

from tui.messages import Event, Layers, Loading, Prefill, Sampled, Token, Welcome

LIMIT = 4 * 1024 * 1024
"""Characters of text, and events, that may wait for one client."""

_STATES = (Welcome, Loading, Prefill, Layers, Sampled)
"""Not happenings but states: only the newest of a kind is worth sending."""


class Outbox:
    """Filled by `put`, emptied by `take`, on one event loop."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._wake = asyncio.Event()
        self._text = 0
        self._closed = False

    def put(self, event: Event) -> bool:
        """A newer state takes the older one's place, tokens grow together.

        False where too much waits already: drop the client, it may attach again.
        """
        if isinstance(event, _STATES):
            self._events = [old for old in self._events if type(old) is not type(event)]
        if isinstance(event, Token):
            self._text += len(event.text)
            event = self._joined(event)
        self._events.append(event)
        self._wake.set()
        return self._text + len(self._events) <= LIMIT

    def close(self) -> None:
        """What waits is still taken; nothing comes after it."""
        self._closed = True
        self._wake.set()

    @property
    def waiting(self) -> int:
        """Events that wait to be taken."""
        return len(self._events)

    async def take(self) -> list[Event]:
        """All that waits, as soon as something does; nothing once closed."""
        if not self._events and not self._closed:
            self._wake.clear()
            await self._wake.wait()
        events, self._events, self._text = self._events, [], 0
        return events

    def _joined(self, token: Token) -> Token:
        """The token, with the text of one that waits and that only states came after."""
        for index in range(len(self._events) - 1, -1, -1):
            match self._events[index]:
                case Token(text=text):
                    del self._events[index]
                    return Token(text=text + token.text, count=token.count, rate=token.rate)
                case Loading() | Prefill() | Layers() | Sampled():
                    continue
                case _:
                    break
        return token
