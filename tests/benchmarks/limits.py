"""Channels and limits beside messages without: `python -m tests.benchmarks.limits`. Compare only within one run.

One worker process, in this one, drains what was stored before, again and again in turns:

- messages without a channel;
- the same number in 1,000 channels with concurrency 2;
- the same beside 100,000 channels that rest;
- one channel with nearly all messages, and 100 with 10 each: at which share of the time the last of these ended.
"""

from __future__ import annotations

import argparse
import sys
from datetime import timedelta
from statistics import median

from tests.benchmarks.database import migrated

MESSAGES, ROUNDS, SMALL = 20_000, 3, 100

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
    given = arguments.parse_args()
    with migrated():
        from delayedq.worker.child import SWITCH_INTERVAL

        sys.setswitchinterval(SWITCH_INTERVAL)  # as worker processes do
        measure(given.messages, given.rounds)


def measure(messages: int, rounds: int) -> None:
    from delayedq.core.channels import group_id
    from tests.app import tasks

    group = group_id(tasks.call.queue_name, tasks.call.module_path)
    plain, limited, beside, share = [], [], [], []
    for _ in range(rounds):
        plain.append(drained(messages, lambda n: tasks.nothing.enqueue_bulk(((n,), {}) for n in range(n))))
        in_channels = lambda n: tasks.call.enqueue_bulk(((n % 1_000,), {}) for n in range(n))  # noqa: E731
        limited.append(drained(messages, in_channels))
        beside.append(drained(messages, in_channels, RESTING.format(group=group)))
        drained(messages, fill_unfairly)
        share.append(query(SHARE)[0][0])
    rate = median(plain)
    for what, rates in (
        ("without a channel", plain),
        ("1,000 channels, concurrency 2", limited),
        ("beside 100,000 resting ones", beside),
    ):
        sys.stdout.write(f"{what:<32}{median(rates):>10,.0f} messages/s, {median(rates) / rate:.2f}\n")
    sys.stdout.write(f"the last of 100 small channels ended after {median(share):.1%} of the time\n")


def fill_unfairly(messages: int) -> None:
    from tests.app import tasks

    tasks.forward.enqueue_bulk((("large",), {}) for _ in range(messages - 10 * SMALL))
    tasks.forward.enqueue_bulk(((f"small {n % SMALL}",), {}) for n in range(10 * SMALL))


def drained(messages: int, fill, given: str = "") -> float:
    """Messages per second, from the first start to the last end."""
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
    Loop(default_store(), options, "bench").run()
    ((seconds,),) = query(SPAN)
    ((ended,),) = query("SELECT count(*) FROM delayedq_finishedmessage")
    assert ended == messages, f"{ended} of {messages} ended"
    return messages / seconds


def query(statement: str) -> list[tuple]:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


if __name__ == "__main__":
    main()
