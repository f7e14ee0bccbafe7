"""How fast the model reads and writes."""

from textual.content import Content

from tui import figures
from tui.glyphs import HEIGHTS
from tui.widgets.panel import MUTED, Panel, spread, text


class ThroughputPanel(Panel):
    TITLE = "speed"

    def rows(self, width: int, height: int, now: float) -> list[Content]:
        live = self.live
        done = None if live.busy else live.done
        decode = live.rate if live.busy or done is None else done.decode_rate
        prefill = live.prefill.rate if live.prefill else None
        if done:
            prefill = done.prefill_rate
        read = live.began.prompt_tokens - live.began.reused_tokens if live.began else None
        first = done.first_token if done else live.first_token
        written = done.tokens if done else live.tokens or None
        line = figures.spark(live.rate_history, width - 25, HEIGHTS, low=0.0)
        return [
            spread(
                width,
                text((f"{'decode':<11}", MUTED), f"{figures.rate(decode):>6}", (" tok/s", MUTED)),
                text((line, "$spark")),
            ),
            spread(
                width,
                text((f"{'prefill':<11}", MUTED), f"{figures.rate(prefill):>6}", (" tok/s", MUTED)),
                text(figures.full(read), (" tokens", MUTED)),
            ),
            spread(
                width,
                text((f"{'first token':<11}", MUTED), f"{figures.seconds(first):>8}"),
                text(figures.full(written), (" written", MUTED)),
            ),
        ]
