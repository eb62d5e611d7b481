"""One queue and 1, 10 or 100 worker processes: `python -m tests.benchmarks.claimers [--claimers 1 10 100]`.

Each claimer is a process with a connection and watermarks of its own, which ends a batch and claims the next one as the
store thread of a worker does, and runs no task. Printed are messages per second, and the microseconds of processor time
that a message takes in the server and in its claimer; and how many ends found their row locked, as a claim of another
claimer looked at it, and were sent again. It fails unless each message has ended once.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import timedelta
from multiprocessing import get_context
from typing import TYPE_CHECKING, NamedTuple

from tests.benchmarks.database import migrated
from tests.benchmarks.flows import EMPTY, Used, processor
from tests.benchmarks.limits import query
from tests.benchmarks.limits_profile import finished

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

fork = get_context("fork")
LEASE = timedelta(minutes=10)
#: Seconds for which all wait for the last one.
PATIENCE = 300


class Round(NamedTuple):
    seconds: float
    used: Used
    busy: int


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--claimers", type=int, nargs="+", default=[1, 10, 100])
    arguments.add_argument("--messages", type=int, default=100_000)
    arguments.add_argument("--batch", type=int, default=100)
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    with migrated({"max_connections": str(max(given.claimers) + 20)}):
        for number in range(given.rounds):
            for claimers in given.claimers:
                seconds, used, busy = drained(claimers, given.messages, given.batch)
                there, here = used.server / given.messages * 1e6, used.client / given.messages * 1e6
                sys.stdout.write(
                    f"round {number + 1}, {claimers:4} claimers of {given.batch}: {given.messages / seconds:8,.0f}/s,"
                    f" {there:5.1f} us in the server, {here:5.1f} us in the claimers, {busy} busy\n"
                )
                sys.stdout.flush()


def drained(claimers: int, messages: int, batch: int) -> Round:
    from django.db import connection

    from tests.app import tasks

    query(EMPTY)
    tasks.nothing.enqueue_bulk(((n,), {}) for n in range(messages))
    query("VACUUM ANALYZE")
    query("CHECKPOINT")
    connection.close()
    barrier, tally = fork.Barrier(claimers + 1), fork.SimpleQueue()
    processes = [fork.Process(target=claim_all, args=(barrier, tally, batch)) for _ in range(claimers)]
    for process in processes:
        process.start()
    barrier.wait(PATIENCE)  # all have a connection and know the lanes
    before, began = processor(), time.monotonic()
    barrier.wait(PATIENCE)
    barrier.wait(PATIENCE)  # all are done, and still there
    seconds, server = time.monotonic() - began, processor().since(before).server
    barrier.wait(PATIENCE)
    client, busy = map(sum, zip(*(tally.get() for _ in processes), strict=True))
    for process in processes:
        process.join()
    ((ended, different),) = query("SELECT count(*), count(DISTINCT id) FROM delayedq_finishedmessage")
    assert (ended, different) == (messages, messages), f"{ended} ends of {different} messages"
    return Round(seconds, Used(client, server), busy)


def claim_all(barrier: Barrier, tally, batch: int) -> None:
    from delayedq.store import default_store
    from delayedq.store.protocol import ClaimRequest
    from delayedq.worker.lanes import Lanes

    store, lanes, ends, busy = default_store(), Lanes(), [], 0
    lanes.scanned(store.scan(), time.monotonic())
    barrier.wait(PATIENCE)
    barrier.wait(PATIENCE)
    began = time.process_time()
    while True:
        planned = lanes.plan()
        claimed, settled = store.settle_and_claim(ends, ClaimRequest(planned, batch, LEASE, "w"))
        lanes.advance(planned, claimed, batch)
        ends = [end for end in ends if end.claimed.id in settled.busy] + [finished(one) for one in claimed]
        busy += len(settled.busy)
        if not claimed and not ends:
            lanes.scanned(store.scan(), time.monotonic())
            if lanes.nothing_is_due():
                break
    used = time.process_time() - began
    barrier.wait(PATIENCE)
    barrier.wait(PATIENCE)
    tally.put((used, busy))


if __name__ == "__main__":
    main()
