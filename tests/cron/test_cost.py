"""Placing ticks reads those of their own schedule, however many messages the queue holds (D15)."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from delayedq import BatchedMessage, DelayedQueue
from delayedq.cron.beat import CHUNK, Beats
from delayedq.cron.definitions import read
from delayedq.cron.service import CronMessage
from delayedq.cron.ticks import config_hash
from delayedq.models import Message
from tests.cron.given import DAILY, HOURLY, at, placed
from tests.cron.given import NOW as BEFORE
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


def plans(store, connection, statements):
    """Asked as they are sent: a batch has its parameters by name, and on PostgreSQL a cursor of its own."""
    for sql, parameters in statements.items():
        own = connection.vendor == "postgresql" and isinstance(parameters, dict)
        with store.database._batch_cursor() if own else connection.cursor() as cursor:
            cursor.execute(f"{EXPLAIN[connection.vendor]} {sql}", parameters)
            yield sql, "\n".join(map(str, cursor.fetchall()))


def test_d15_ticks_are_placed_and_taken_back_without_reading_the_queue(store, connection):
    queue = DelayedQueue("contacts", clock=lambda: NOW)
    queue.offer_batch(BatchedMessage(None, f"p/{number}", number, NOW) for number in range(5_000))
    ticks = [CronMessage(number, NOW + timedelta(minutes=number)) for number in range(1, 9)]
    sent = Sent()
    with connection.execute_wrapper(sent):
        for definition in ("one", "one", "two"):
            queue.cron.install_tick(config_hash(definition), "p", ticks, can_update=True)
        queue.cron.uninstall_tick(config_hash("two"), "p")

    assert len(sent) >= 3
    for sql, plan in plans(store, connection, sent):
        assert not re.search(READS_ALL[connection.vendor], plan), sql
    assert queue.count() == 5_000


class Counting:
    """Counts the statements that one connection sends; SQLite's offers, one by one, are none of cron's."""

    def __init__(self, connection):
        self.count = 0
        self._connection = connection

    def __call__(self, execute, sql, *arguments):
        self.count += not (self._connection.vendor == "sqlite" and "INSERT INTO delayedq_message" in sql)
        return execute(sql, *arguments)

    def during(self, work):
        self.count = 0
        with self._connection.execute_wrapper(self):
            work()
        return self.count


@pytest.mark.parametrize("number", [10, 1_000])
def test_a_beat_costs_what_is_due_and_not_what_exists(store, connection, number):
    definitions = {f"daily {n}": read(f"daily {n}", DAILY) for n in range(number)}
    definitions["hourly"] = read("hourly", HOURLY)
    beats, counting = Beats(store, definitions), Counting(connection)
    first = counting.during(lambda: beats.beat(BEFORE))
    beats.beat(BEFORE)  # the settings are compared once more

    assert first <= 40 + 30 * (number // CHUNK)
    assert counting.during(lambda: beats.beat(BEFORE)) == 3
    assert counting.during(lambda: beats.beat(at())) <= 20, "one is due"
    assert len(placed("hourly")) == 2
    assert Message.objects.count() == number + 2


def test_a_new_worker_beside_others_asks_little(store, connection):
    definitions = {f"daily {n}": read(f"daily {n}", DAILY) for n in range(1_000)}
    Beats(store, definitions).beat(BEFORE)

    assert Counting(connection).during(lambda: Beats(store, definitions).beat(BEFORE)) <= 10


def test_schedules_that_are_due_together_are_visited_together(store, connection):
    definitions = {f"hourly {n}": read(f"hourly {n}", HOURLY) for n in range(1_000)}
    beats = Beats(store, definitions)
    beats.beat(BEFORE)
    beats.beat(BEFORE)

    assert Counting(connection).during(lambda: beats.beat(at())) <= 3 + 25 * (1_000 // CHUNK)
    assert len(placed()) == 2_000
