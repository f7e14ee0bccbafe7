"""How many tokens are left until memory runs short, and how long they last at the present rate."""

from textual.content import Content

from tui import figures
from tui.live import Live
from tui.widgets.panel import MUTED, Panel, spread, text

LIMITS = {"GPU": "GPU limit", "system": "system limit", "limit": "a limit: none"}


def present_rate(live: Live) -> float | None:
    """Tokens a second now, or of the last answer."""
    return live.rate or (live.done.decode_rate if live.done else None)


def left(tokens: int | None, rate: float | None) -> str:
    return f"≈ {figures.seconds(tokens / rate)}" if tokens and rate else ""


class ProjectionPanel(Panel):
    TITLE = "tokens left"

    def rows(self, width: int, height: int, now: float) -> list[Content]:
        projection = self.live.sampled.projection if self.live.sampled else None
        rate = present_rate(self.live)
        limit = (projection and projection.limit) or "limit"
        limit = LIMITS.get(limit, limit)

        def row(tokens: int | None, what: str) -> Content:
            return spread(
                width,
                text(f"{figures.count(tokens):>6} ", (what, MUTED)),
                text(left(tokens, rate)),
            )

        return [
            row(projection and projection.tokens_to_warn, "to memory warn"),
            row(projection and projection.tokens_to_limit, f"to {limit}"),
            row(projection and projection.tokens_at_floor, "all layers at 2/2"),
            row(projection and projection.tokens_to_context, "to context end"),
        ]
