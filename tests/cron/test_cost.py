"""Placing ticks reads those of their own schedule, however many messages the queue holds (D15)."""

from __future__ import annotations

import re
from datetime import timedelta

from delayedq import BatchedMessage, DelayedQueue
from delayedq.core.ticks import config_hash
from delayedq.cron.service import CronMessage
from tests.store.given import NOW

#: How the plan of each database says that all messages are read.
EXPLAIN = {"postgresql": "EXPLAIN", "sqlite": "EXPLAIN QUERY PLAN", "mysql": "EXPLAIN"}
READS_ALL = {
    "postgresql": "Seq Scan on delayedq_message",
    "sqlite": "SCAN delayedq_message",
    "mysql": r"'(delayedq_)?message', '(ALL|index)'",
}
COMMANDS = ("SELECT", "UPDATE", "DELETE", "WITH")


class Sent(dict):
    """The statements about messages that are sent, each with the parameters that it had last."""

    def __call__(self, execute, sql, parameters, many, context):
        if "delayedq_message" in sql and sql.strip().startswith(COMMANDS) and not many:
            self[sql.strip()] = parameters
        return execute(sql, parameters, many, context)


def plans(connection, statements):
    with connection.cursor() as cursor:
        for sql, parameters in statements.items():
            cursor.execute(f"{EXPLAIN[connection.vendor]} {sql}", parameters)
            yield sql, "\n".join(str(row) for row in cursor.fetchall())


def test_d15_ticks_are_placed_and_taken_back_without_reading_the_queue(alias, connection):
    queue = DelayedQueue("contacts", clock=lambda: NOW)
    queue.offer_batch(BatchedMessage(None, f"p/{number}", number, NOW) for number in range(5_000))
    ticks = [CronMessage(number, NOW + timedelta(minutes=number)) for number in range(1, 9)]
    sent = Sent()
    with connection.execute_wrapper(sent):
        for definition in ("one", "one", "two"):
            queue.cron.install_tick(config_hash(definition), "p", ticks, can_update=True)
        queue.cron.uninstall_tick(config_hash("two"), "p")

    assert len(sent) >= 3
    for sql, plan in plans(connection, sent):
        assert not re.search(READS_ALL[connection.vendor], plan), sql
    assert queue.count() == 5_000
