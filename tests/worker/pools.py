"""A pool for tests, and a task that holds one of its threads."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

from delayedq.worker.loop import Waiter
from delayedq.worker.pool import Pool
from tests.worker.attempts import PATIENCE, playing


class Worker:
    """A pool and the part of the loop that takes what ended."""

    def __init__(self, threads, **options):
        self.woken = Waiter()  # a timeout may strike in `wake`, and would leave an Event locked
        self.pool = Pool(threads, self.woken.wake, **options)

    def ended(self, count):
        """The results, as soon as there are `count`; timeouts are enforced meanwhile."""
        give_up = time.monotonic() + PATIENCE
        taken = self.pool.take_ended()
        while len(taken) < count:
            assert time.monotonic() < give_up, "Nothing ended."
            self.pool.enforce_timeouts()
            self.woken.wait(0.01)
            taken += self.pool.take_ended()
        return taken

    def run(self, *attempts):
        """Submit them, and wait for their ends, in the order of the attempts."""
        for attempt in attempts:
            self.pool.submit(attempt)
        ended = {one.attempt.id: one for one in self.ended(len(attempts))}
        return [ended[attempt.id] for attempt in attempts]


@contextmanager
def working(threads=2, **options):
    worker = Worker(threads, **options)
    try:
        yield worker
    finally:
        worker.pool.stop()


def values(ended):
    return [one.outcome.result for one in ended]


@contextmanager
def busy(worker):
    """One thread is held by a task until the end of the block."""
    started, release = threading.Event(), threading.Event()
    worker.pool.submit(playing(lambda: started.set() or release.wait(PATIENCE)))
    assert started.wait(PATIENCE)
    try:
        yield
    finally:
        release.set()
