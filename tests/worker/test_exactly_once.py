"""Exactly-once tasks: what they wrote and the end of their message commit together, or not at all."""

from __future__ import annotations

import time
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import Permission
from django.db import IntegrityError, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from delayedq import Cancel, Retry, Snooze, current_message, task
from delayedq.compat import InvalidTask
from delayedq.core.lifecycle import AskedCancel, AskedRetry, AskedSnooze, Impossible, Raised, Returned
from delayedq.exceptions import InvalidKey, LeaseLost, NotStorable
from delayedq.models import FinishedMessage, Message
from delayedq.store.protocol import Settled
from tests.app import once
from tests.app.models import Mark
from tests.store.given import NOW, at, together
from tests.worker.exactly_once_tasks import ROW_LOCKS, SPOILING, claim_first, is_untouched, marks, run, write, write_and

MINUTE = timedelta(minutes=1)


@pytest.fixture
def claim(store):
    """The first free message, claimed in the past: its lease has expired by the clock of the database."""
    return partial(claim_first, store)


# Together


def test_what_it_wrote_and_its_end_commit_together(claimed, connection):
    seen = []

    def body():
        write()
        seen.append((connection.in_atomic_block, Message.objects.filter(lease_token__isnull=False).count()))
        return 7

    ended = run(claimed(body))

    assert seen == [(True, 1)]
    assert (ended.outcome, ended.error, ended.settled) == (Returned("7"), None, Settled())
    row = FinishedMessage.objects.get()
    assert (row.outcome, row.result, row.attempts, row.worker, marks()) == ("succeeded", "7", 1, "host:1", ["written"])
    assert row.started_at <= row.finished_at
    assert not Message.objects.exists()
    assert not connection.in_atomic_block


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError("no fuel"), Raised()),
        (SystemExit(3), Raised()),
        (InvalidKey("of something else"), Raised()),
        (Retry("busy", delay=MINUTE), AskedRetry(MINUTE)),
        (Snooze(MINUTE), AskedSnooze(MINUTE)),
        (Cancel("the flight left"), AskedCancel()),
    ],
    ids=repr,
)
def test_what_it_wrote_is_gone_when_it_raises(claimed, error, outcome):
    def fail():
        raise error

    message = claimed(write_and(fail))
    ended = run(message)

    assert (ended.outcome, ended.error, ended.settled) == (outcome, error, None)
    assert is_untouched(message)


def test_what_it_wrote_is_gone_when_its_result_can_not_be_stored(claimed):
    message = claimed(write_and(object))
    ended = run(message)

    assert (ended.outcome, ended.settled) == (Impossible(), None)
    assert isinstance(ended.error, NotStorable)
    assert is_untouched(message)


def test_arguments_that_do_not_fit_are_impossible(claimed):
    message = claimed(write)
    assert run(message._replace(payload='{"args":[]}')).outcome == Impossible()
    assert is_untouched(message)


def test_an_end_that_can_not_be_stored_takes_along_what_it_wrote(claimed):
    message = claimed(write)
    FinishedMessage.objects.create(
        id=message.id, finished_at=NOW, scheduled_at=NOW, scheduled_at_initially=NOW, created_at=NOW, priority=0,
        attempts=1, max_attempts=1, outcome="failed", queue="default", kind="another", payload="{}",
    )  # fmt: skip
    ended = run(message)

    assert (ended.outcome, ended.settled, marks()) == (Raised(), None, [])
    assert isinstance(ended.error, IntegrityError)


def test_it_costs_no_savepoint(claimed, connection):
    """Nor if its end is prepared, as on PostgreSQL that of the second is: Django logs its text all the same."""
    for _ in range(2):
        message = claimed(write)
        with CaptureQueriesContext(connection) as captured:
            run(message)
        assert [query["sql"] for query in captured if "SAVEPOINT" in query["sql"]] == []


# The lease


def test_without_its_lease_what_it_wrote_is_gone_and_what_the_new_holder_wrote_stays(claimed, claim):
    frozen = claimed(lambda: write(f"attempt {current_message().attempt}"))
    second = claim(at(61))
    ended = run(frozen)

    assert (ended.outcome, ended.settled) == (Raised(), None)
    assert isinstance(ended.error, LeaseLost)
    assert run(second).settled == Settled()
    assert marks() == ["attempt 2"]


@ROW_LOCKS
def test_a_lease_that_is_lost_while_it_runs_takes_along_what_it_wrote(claimed, claim):
    def sleep_too_long():
        write(f"attempt {current_message().attempt}")
        if current_message().attempt == 1:
            together(lambda: run(claim(at(61))))

    assert isinstance(run(claimed(sleep_too_long)).error, LeaseLost)
    assert marks() == ["attempt 2"]
    assert FinishedMessage.objects.get().attempts == 2


def test_a_message_that_was_cancelled_takes_along_what_its_attempt_wrote(claimed):
    message = claimed(write)
    assert once.play.unschedule(key="a")

    assert isinstance(run(message).error, LeaseLost)
    assert (FinishedMessage.objects.get().outcome, marks()) == ("cancelled", [])


def test_an_expired_lease_that_nobody_took_still_commits(claimed):
    assert run(claimed(write, NOW)).settled == Settled()
    assert marks() == ["written"]


# Replaced


def test_a_message_that_was_replaced_runs_once_more_and_what_its_attempt_wrote_stays(claimed, claim, store):
    message = claimed(write)
    store.at(at(5)).offer(once.play.offer(("another",), {}, when=at(5), key="a"))
    ended = run(message)

    assert (ended.outcome, ended.settled) == (Returned(), Settled(superseded=frozenset({message.id})))
    assert (FinishedMessage.objects.get().outcome, marks()) == ("superseded", ["written"])
    again = claim(at(6))
    assert (again.id, again.attempt, again.payload) == (message.id, 1, '{"args":["another"]}')


def test_it_may_schedule_itself_by_its_own_key(claimed, claim):
    message = claimed(lambda: (write(), once.count_down.func(0), once.play.schedule_at(at(5), "next", key="a"))[0])
    ended = run(message)

    assert ended.settled == Settled(superseded=frozenset({message.id}))
    again = claim(at(5))
    assert (again.id, again.attempt, again.payload) == (message.id, 1, '{"args":["next"]}')
    assert marks() == ["0", "written"]


def test_what_it_scheduled_is_gone_when_it_raises(claimed):
    def body():
        write()
        once.play.schedule_at(at(5), "next", key="a")
        once.play.schedule_at(at(5), "next", key="b")
        raise ValueError

    message = claimed(body)
    assert run(message).outcome == Raised()
    assert is_untouched(message)


# Locked by somebody else


@pytest.fixture
def locked(store, monkeypatch):
    """Calls with the message "a" locked by an open transaction, which ends at the first pause."""

    def call(function):
        holder = store_holder(store)
        next(holder)
        clock = SimpleNamespace(sleep=lambda _: next(holder, None), monotonic=time.monotonic)
        monkeypatch.setattr("delayedq.store.base.time", clock)
        try:
            return function()
        finally:
            next(holder, None)

    return call


def store_holder(store):
    """A transaction on a second connection of this thread."""
    other = store.database.connection.copy()
    other.set_autocommit(False)
    with other.cursor() as cursor:
        cursor.execute("SELECT id FROM delayedq_message FOR UPDATE")
    yield
    other.rollback()
    other.close()


@ROW_LOCKS
def test_it_waits_for_a_transaction_that_has_locked_its_message(claimed, locked):
    message = claimed(write, timezone.now())
    ended = locked(lambda: run(message))

    assert ended.settled == Settled()
    assert marks() == ["written"]


@ROW_LOCKS
def test_it_does_not_wait_longer_than_its_lease(claimed, locked):
    """The transaction that has locked the message may be waiting for what the task has locked."""
    message = claimed(write)
    ended = locked(lambda: run(message))

    assert isinstance(ended.error, LeaseLost)
    assert is_untouched(message)


# Transactions of its own


def test_an_error_that_it_catches_around_a_block_of_its_own_does_no_harm(claimed):
    def body():
        mark = Mark.objects.create(name="written")
        with pytest.raises(IntegrityError), transaction.atomic(using=mark._state.db):
            Mark.objects.create(id=mark.id, name="again")

    assert run(claimed(body)).settled == Settled()
    assert marks() == ["written"]


@pytest.mark.parametrize("spoil", SPOILING.values(), ids=SPOILING)
def test_a_transaction_that_can_not_commit_is_a_failure(claimed, alias, spoil):
    message = claimed(write_and(partial(spoil, alias)))
    ended = run(message)

    assert (ended.outcome, ended.settled) == (Raised(), None)
    assert is_untouched(message)


def test_a_constraint_that_fails_in_the_commit_is_a_failure(claimed):
    message = claimed(write_and(lambda: Permission.objects.create(content_type_id=-1, codename="none", name="none").pk))
    ended = run(message)

    assert (ended.outcome, ended.settled) == (Raised(), None)
    assert isinstance(ended.error, IntegrityError)
    assert is_untouched(message)


# The option


async def sleep():
    """An async function has no transactions."""


def test_async_functions_are_refused():
    with pytest.raises(InvalidTask, match="sleep: exactly_once needs a sync function"):
        task(exactly_once=True)(sleep)


def test_it_is_an_option_of_the_task_and_not_of_one_call():
    assert once.play.using(priority=5).exactly_once
    with pytest.raises(TypeError, match="exactly_once"):
        once.play.using(exactly_once=False)
