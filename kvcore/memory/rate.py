"""A rate from a counter that only grows."""

from dataclasses import dataclass, field


@dataclass
class Rate:
    """Keeps the last reading. Asked again within `span` seconds it repeats its answer, so that
    two readers close together do not turn a single page into a storm."""

    span: float = 0.9
    _last: tuple[float, int, int | None] | None = field(default=None, init=False)
    """Time, counter and rate together: one assignment, whatever thread reads them."""

    def at(self, now: float, counter: int | None) -> int | None:
        """The counter's growth a second since the last reading; None at the first, and where
        the counter is unknown or has started again."""
        last = self._last
        if counter is None:
            self._last = None
            return None
        if last is None or now < last[0] or counter < last[1]:
            self._last = (now, counter, None)
            return None
        if now - last[0] < self.span:
            return last[2]
        rate = round((counter - last[1]) / (now - last[0]))
        self._last = (now, counter, rate)
        return rate
