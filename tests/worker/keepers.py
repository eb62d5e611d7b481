"""A lease keeper in a thread of the test's process."""

from __future__ import annotations

import multiprocessing
import threading
from contextlib import contextmanager
from datetime import timedelta

from delayedq.store.protocol import Lane
from delayedq.worker.keeper import LeaseKeeper, WorkerExit
from delayedq.worker.options import Options
from tests.worker.attempts import PATIENCE

LONG = timedelta(hours=1)
LANE = [Lane("mail", 0)]


def options(lease):
    return Options(lease=lease, poll_interval=LONG, shutdown_timeout=LONG)


class Keeping:
    """A keeper in a thread of its own, and the supervisor's end of its pipe."""

    def __init__(self, store, *all_leases, lease=LONG):
        self.pipe, self.far_end = multiprocessing.Pipe()
        self.keeper = LeaseKeeper(store, all_leases, options(lease), self.far_end)
        self.thread = threading.Thread(target=self.keeper.run, name="keeper")

    def release_exited(self, leases, *, all_of_it=False):
        self.pipe.send(WorkerExit(leases, all_of_it))
        assert self.pipe.poll(PATIENCE), "It was not released."
        assert self.pipe.recv() == WorkerExit(leases, all_of_it)


@contextmanager
def keeping(*args, **options):
    kept = Keeping(*args, **options)
    kept.thread.start()
    try:
        yield kept
    finally:
        kept.pipe.close()
        kept.thread.join(PATIENCE)
        kept.far_end.close()
        assert not kept.thread.is_alive()
