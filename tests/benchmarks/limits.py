"""Channels and limits beside messages without: `python -m tests.benchmarks.limits`. Compare only within one run.

Beside the rate it says what a message costs in processor time: of the worker, and of the sessions of the server. That
hardly depends on what else the machine does.

One worker process, in this one, drains what was stored before, again and again in turns:

- messages without a channel;
- the same number in 1,000 channels with concurrency 2;
- the same beside 100,000 channels that rest;
- one channel with nearly all messages, and 100 with 10 each: at which share of the time the last of these ended.

With `--serial`, it drains few channels, in which hardly anything may run at once: what matters there is how soon a
message follows the end of another. Beside the rate it says how many transactions a message takes.

With `--channels 1000000 --each 1`, it drains so many channels once instead, and says what its first and its last claims
took: that of which nothing grows with the number of channels.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import NamedTuple
from unittest.mock import patch

from tests.benchmarks.database import migrated

MESSAGES, ROUNDS, SMALL = 20_000, 3, 100
#: So many claims at the beginning, and at the end.
FEW = 50

SPAN = "SELECT extract(epoch FROM max(finished_at) - min(started_at))::float8 FROM delayedq_finishedmessage"
SHARE = """
SELECT extract(epoch FROM max(finished_at) FILTER (WHERE metadata LIKE '%small%') - min(started_at))::float8
    / extract(epoch FROM max(finished_at) - min(started_at))::float8
FROM delayedq_finishedmessage
"""
EMPTY = """
TRUNCATE delayedq_message, delayedq_finishedmessage, delayedq_channel, delayedq_channelmessage, delayedq_channelgroup,
    delayedq_channelnotice, delayedq_limitstate
"""
RESTING = """
INSERT INTO delayedq_channel (id, group_id, name, is_ready, ready_at, turn, seconds)
SELECT n, {group}, 'resting ' || n, false, now() + interval '1 hour', -1, 0 FROM generate_series(1, 100000) AS n
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--messages", type=int, default=MESSAGES)
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    arguments.add_argument("--serial", action="store_true")
    arguments.add_argument("--channels", type=int)
    arguments.add_argument("--each", type=int, default=1)
    given = arguments.parse_args()
    with migrated():
        from delayedq.worker.child import SWITCH_INTERVAL

        sys.setswitchinterval(SWITCH_INTERVAL)  # as worker processes do
        if given.serial:
            drain_serially(given.rounds)
        elif given.channels:
            drain_channels(given.channels, given.each)
        else:
            measure(given.messages, given.rounds)


def drain_channels(channels: int, each: int) -> None:
    """What the first and the last claims took that were full or nearly so."""
    from delayedq.limits.channels import Channels
    from delayedq.store import default_store
    from tests.app import tasks

    claims: list[tuple[float, int]] = []
    kind = type(Channels.of(default_store()))
    settle_and_claim = kind.settle_and_claim

    def timed(*arguments):
        began = time.perf_counter()
        answer = settle_and_claim(*arguments)
        claims.append((time.perf_counter() - began, len(answer[1].claimed)))
        return answer

    with patch.object(kind, "settle_and_claim", timed):
        fill = lambda n: tasks.call.enqueue_bulk(((n // each,), {}) for n in range(n))  # noqa: E731
        drain = drained(channels * each, fill)
    sys.stdout.write(f"{channels:,} channels of {each:,}: {drain.rate:,.0f} messages/s\n")
    full = [one for one in claims if one[1] >= 100]
    for what, some in (("first", full[:FEW]), ("last", full[-FEW:])):
        took = median(seconds for seconds, _ in some)
        number = median(number for _, number in some)
        sys.stdout.write(f"the {what} {FEW} claims: {took * 1e3:.1f} ms for {number:.0f} messages\n")


def drain_serially(rounds: int) -> None:
    from tests.app import tasks

    cases = {
        "one channel, concurrency 1": (tasks.ring, 1, 2_000),
        "ten channels, concurrency 1": (tasks.ring, 10, 10_000),
        "one channel, concurrency 2, 2 ms": (tasks.print_label, 1, 2_000),
    }
    drains: dict[str, list[tuple[float, float]]] = {what: [] for what in cases}
    for _ in range(rounds):
        for what, (task, channels, number) in cases.items():
            commits = transactions()
            fill = lambda n, task=task, channels=channels: task.enqueue_bulk(((i % channels,), {}) for i in range(n))  # noqa: E731
            drain = drained(number, fill)
            drains[what].append((drain.rate, (transactions() - commits) / number))
    for what, its in drains.items():
        rate, commits = map(median, zip(*its, strict=True))
        sys.stdout.write(f"{what:<36}{rate:>8,.0f} messages/s, {commits:.2f} transactions each\n")


def transactions() -> int:
    """Committed in this database so far."""
    query("SELECT pg_stat_force_next_flush()")
    ((number,),) = query("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
    return number


def measure(messages: int, rounds: int) -> None:
    from delayedq.limits.rules import group_id
    from tests.app import tasks

    group = group_id(tasks.call.queue_name, tasks.call.module_path)
    plain: list[Drain] = []
    limited: list[Drain] = []
    beside: list[Drain] = []
    share: list[float] = []
    for _ in range(rounds):
        plain.append(drained(messages, lambda n: tasks.nothing.enqueue_bulk(((n,), {}) for n in range(n))))
        in_channels = lambda n: tasks.call.enqueue_bulk(((n % 1_000,), {}) for n in range(n))  # noqa: E731
        limited.append(drained(messages, in_channels))
        beside.append(drained(messages, in_channels, RESTING.format(group=group)))
        drained(messages, fill_unfairly)
        share.append(query(SHARE)[0][0])
    rate = median(one.rate for one in plain)
    for what, drains in (
        ("without a channel", plain),
        ("1,000 channels, concurrency 2", limited),
        ("beside 100,000 resting ones", beside),
    ):
        its = Drain(*map(median, zip(*drains, strict=True)))
        sys.stdout.write(
            f"{what:<32}{its.rate:>10,.0f} messages/s, {its.rate / rate:.2f}; "
            f"worker {its.worker * 1e6:.0f} us, server {its.server * 1e6:.0f} us per message\n"
        )
    sys.stdout.write(f"the last of 100 small channels ended after {median(share):.1%} of the time\n")


def fill_unfairly(messages: int) -> None:
    from tests.app import tasks

    tasks.forward.enqueue_bulk((("large",), {}) for _ in range(messages - 10 * SMALL))
    tasks.forward.enqueue_bulk(((f"small {n % SMALL}",), {}) for n in range(10 * SMALL))


class Drain(NamedTuple):
    """rate: messages per second, from the first start to the last end. worker, server: processor seconds for each."""

    rate: float
    worker: float
    server: float


def drained(messages: int, fill, given: str = "") -> Drain:
    from delayedq.store import default_store
    from delayedq.worker.loop import Loop
    from delayedq.worker.options import Options

    query(EMPTY)
    fill(messages)
    if given:
        query(given)
    query("VACUUM ANALYZE")
    query("CHECKPOINT")
    options = Options(
        lease=timedelta(seconds=60),
        poll_interval=timedelta(seconds=1),
        shutdown_timeout=timedelta(seconds=5),
        threads=4,
        drain=True,
    )
    worker, server = time.process_time(), seconds_of_ended_sessions()
    Loop(default_store(), options, "bench").run()
    worker, server = time.process_time() - worker, seconds_of_ended_sessions() - server
    ((seconds,),) = query(SPAN)
    ((ended,),) = query("SELECT count(*) FROM delayedq_finishedmessage")
    assert ended == messages, f"{ended} of {messages} ended"
    return Drain(messages / seconds, worker / messages, server / messages)


def seconds_of_ended_sessions() -> float:
    """Processor seconds of all sessions of the server that have ended; this thread's ends first."""
    from django.db import connection

    ((directory,),) = query("SELECT current_setting('data_directory')")
    connection.close()
    time.sleep(0.3)
    postmaster = Path(directory, "postmaster.pid").read_text().split()[0]
    fields = Path("/proc", postmaster, "stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def query(statement: str) -> list[tuple]:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


if __name__ == "__main__":
    main()
