"""The one thread that computes, and the jobs that wait for it."""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tui.messages import Error, Event

log = logging.getLogger(__name__)

Cancelled = Callable[[], bool]


@dataclass(eq=False)
class Job:
    """`run` is asked to look at its argument often; what it returns is said at its end."""

    run: Callable[[Cancelled], Event | None]
    answers: bool = False
    cancelled: threading.Event = field(default_factory=threading.Event)


class ModelThread(threading.Thread):
    """MLX binds what is not computed yet to the thread that asked for it: one thread loads the
    model and does all of its work, one job after the other. Everything else only submits."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        super().__init__(name="model")
        self._emit = emit
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._unfinished: deque[Job] = deque()

    def submit(self, run: Callable[[Cancelled], Event | None], answers: bool = False) -> None:
        job = Job(run, answers)
        self._unfinished.append(job)
        self._jobs.put(job)

    @property
    def answering(self) -> bool:
        """An answer is being written, or waits to be."""
        return any(job.answers for job in self._unfinished.copy())

    def interrupt(self) -> None:
        """Cancel what runs and what waits; each such job still ends in its own way."""
        for job in self._unfinished.copy():
            job.cancelled.set()

    def finish(self) -> None:
        """Interrupt, then wait for the thread's end: one that computes while the interpreter
        exits aborts the process."""
        self.interrupt()
        self._jobs.put(None)
        self.join()

    def run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                last = job.run(job.cancelled.is_set)
            except Exception as error:
                log.exception("a job failed")
                last = Error(sentence=f"The engine failed: {error}. Its log says where.")
            # Who hears the last event may ask at once: the job is over before it is said.
            self._unfinished.remove(job)
            if last is not None:
                self._emit(last)
