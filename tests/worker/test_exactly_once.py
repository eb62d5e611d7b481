"""Exactly-once tasks: what they wrote and the end of their message commit together, or not at all."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from itertools import count

import pytest
from django.contrib.auth.models import Permission
from django.db import IntegrityError, OperationalError, transaction
from django.tasks.exceptions import InvalidTask
from django.tasks.signals import task_finished
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from delayedq import Cancel, Retry, Snooze, current_message, task
from delayedq.core.lifecycle import AskedCancel, AskedRetry, AskedSnooze, Impossible, Raised, Returned
from delayedq.exceptions import InvalidKey, LeaseLost, NotStorable
from delayedq.models import FinishedMessage, Message
from delayedq.store.protocol import Lane, Settled
from delayedq.tasks import task_at
from delayedq.worker import joint
from delayedq.worker.attempt import Attempt
from delayedq.worker.deadlines import Deadlines
from delayedq.worker.ledger import Ledger
from tests.app import once, tasks
from tests.app.models import Mark
from tests.store.given import LEASE, NOW, at, together

LANE = Lane("default", 0)
MINUTE = timedelta(minutes=1)

#: SQLite locks the whole file: nobody else writes while such a task runs.
ROW_LOCKS = pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)

_names = (f"once {number}" for number in count(1))


@pytest.fixture
def claim(store):
    """The first free message, claimed in the past: its lease has expired by the clock of the database."""
    return lambda now=NOW: store.claim([LANE], 1, LEASE, "host:1", now)[0]


@pytest.fixture
def claimed(store, claim):
    """A claimed message, keyed "a", whose task does what a test wants."""

    def offer(body, now=NOW):
        name = next(_names)
        tasks.bodies[name] = body
        store.offer(once.play.offer((name,), {}, when=NOW, key="a"), now=NOW)
        return claim(now)

    return offer


def run(message, deadlines=None, **changes):
    ledger = Ledger(1)
    slot = ledger.hold(message.id, message.token)
    attempt = Attempt(message, replace(task_at(message.kind), **changes), "host:1", ledger, slot)
    with closing(Deadlines(lambda: None)) as own:
        return (deadlines or own).execute_jointly(attempt)


def write(name="written"):
    Mark.objects.create(name=name)


def write_and(then):
    """What a task does that writes, and then calls `then`."""
    return lambda: (write(), then())[1]


def marks():
    return sorted(Mark.objects.values_list("name", flat=True))


def is_untouched(message):
    """The message waits for its end, and nothing was written."""
    row = Message.objects.get()
    return (row.lease_token, row.generation, marks()) == (message.token, message.generation, []) and not (
        FinishedMessage.objects.exists()
    )


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
    store.offer(once.play.offer(("another",), {}, when=at(5), key="a"), now=at(5))
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
        monkeypatch.setattr(joint.time, "sleep", lambda _: next(holder, None))
        try:
            return function()
        finally:
            next(holder, None)

    return call


def store_holder(store):
    """A transaction on a second connection of this thread."""
    other = store.connection.copy()
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
    """Whoever has locked the message may be waiting for what the task has locked."""
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


def swallow_an_error():
    mark = Mark.objects.create(name="written")
    with pytest.raises(IntegrityError):
        Mark.objects.create(id=mark.id, name="again")


@pytest.mark.parametrize("harm", ["swallowed error", "set_rollback", "close"])
def test_a_transaction_that_can_not_commit_is_a_failure(claimed, connection, harm):
    spoil = {
        "swallowed error": swallow_an_error,
        "set_rollback": lambda: transaction.set_rollback(True, using=connection.alias),
        "close": connection.close,
    }[harm]
    message = claimed(write_and(spoil))
    ended = run(message)

    assert (ended.outcome, ended.settled) == (Raised(), None)
    assert is_untouched(message)


def test_a_constraint_that_fails_in_the_commit_is_a_failure(claimed):
    message = claimed(write_and(lambda: Permission.objects.create(content_type_id=-1, codename="none", name="none").pk))
    ended = run(message)

    assert (ended.outcome, ended.settled) == (Raised(), None)
    assert isinstance(ended.error, IntegrityError)
    assert is_untouched(message)


# After the commit


def test_callbacks_of_the_transaction_run_after_the_commit_and_only_then(claimed, connection):
    seen = []

    def callback():
        seen.append((connection.in_atomic_block, FinishedMessage.objects.count(), current_message().key))

    run(claimed(lambda: transaction.on_commit(callback, using=connection.alias)))
    assert seen == [(False, 1, "a")]

    message = claimed(lambda: (transaction.on_commit(callback, using=connection.alias), 1 / 0))
    assert run(message).outcome == Raised()
    assert len(seen) == 1


def test_a_callback_that_fails_does_not_undo_the_success(claimed, connection, caplog):
    message = claimed(write_and(lambda: transaction.on_commit(lambda: 1 / 0, using=connection.alias)))
    ended = run(message)

    assert (ended.outcome, ended.error, ended.settled) == (Returned(), None, Settled())
    assert (FinishedMessage.objects.get().outcome, marks()) == ("succeeded", ["written"])
    assert "what followed its commit failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_callback_that_fails_does_not_undo_a_replacement(claimed, connection, caplog):
    def body():
        once.play.schedule_at(at(5), "next", key="a")
        transaction.on_commit(lambda: 1 / 0, using=connection.alias)

    message = claimed(body)
    assert run(message).settled == Settled(superseded=frozenset({message.id}))


@pytest.fixture
def told(connection):
    """What the receivers of task_finished saw: in a transaction?, how many ended?, and the status."""
    seen = []

    def receive(task_result, **_):
        seen.append((connection.in_atomic_block, FinishedMessage.objects.count(), task_result.status))
        write("told")

    task_finished.connect(receive)
    yield seen
    task_finished.disconnect(receive)


def test_a_success_is_announced_after_the_commit(claimed, told):
    run(claimed(lambda: 7))
    assert told == [(False, 1, "SUCCESSFUL")]


def test_a_failure_is_announced_after_the_rollback(claimed, told):
    run(claimed(write_and(lambda: 1 / 0)))
    assert told == [(False, 0, "FAILED")]
    assert marks() == ["told"]


# A commit whose answer was lost


@pytest.fixture
def unplug(connection, monkeypatch):
    """What a task does to lose the connection in its commit, after or before that reached the database.

    `answered`: the commit itself is told to have succeeded, and what follows it fails.
    """

    def prepare(after, *, answered=False):
        commit = connection.commit

        def lose():
            monkeypatch.undo()
            if after:
                commit()
            cut(connection)
            if not answered:
                raise OperationalError("server closed the connection unexpectedly")

        monkeypatch.setattr(connection, "commit", lose)

    return prepare


def cut(connection):
    if connection.vendor == "mysql":  # its driver does not bear closing a connection twice
        with suppress(OperationalError), connection.cursor() as cursor:
            cursor.execute("KILL CONNECTION_ID()")
    else:
        connection.connection.close()


@pytest.mark.parametrize("answered", [False, True])
def test_a_commit_that_arrived_has_succeeded_though_the_connection_was_lost(claimed, unplug, caplog, answered):
    ended = run(claimed(write_and(lambda: unplug(after=True, answered=answered))))

    assert (ended.outcome, ended.error, ended.settled) == (Returned(), None, Settled())
    assert (FinishedMessage.objects.get().outcome, marks()) == ("succeeded", ["written"])
    assert "what followed its commit failed" in caplog.text


@pytest.mark.parametrize("after", [True, False])
def test_also_of_a_message_that_was_replaced_it_is_known_whether_the_commit_arrived(claimed, unplug, after):
    def body():
        write()
        once.play.schedule_at(at(5), "next", key="a")
        unplug(after=after)

    message = claimed(body)
    ended = run(message)

    if after:
        assert (ended.outcome, ended.settled) == (Returned(), Settled(superseded=frozenset({message.id})))
        assert marks() == ["written"]
    else:
        assert (ended.outcome, ended.settled) == (Raised(), None)
        assert is_untouched(message)


def test_a_commit_that_never_arrived_has_failed(claimed, unplug):
    message = claimed(write_and(lambda: unplug(after=False)))
    ended = run(message)

    assert (ended.outcome, ended.settled) == (Raised(), None)
    assert isinstance(ended.error, OperationalError)
    assert is_untouched(message)


@pytest.mark.parametrize("after", [True, False])
def test_while_the_database_is_away_it_asks_again(claimed, store, unplug, monkeypatch, after):
    def stay_away(ids):
        if len(pauses) < 3:
            raise OperationalError("could not connect")
        return finished(ids)

    pauses, finished = [], store.finished
    message = claimed(write_and(lambda: unplug(after)))
    with pytest.MonkeyPatch.context() as outage:  # `unplug` undoes its own changes alone
        outage.setattr(store, "finished", stay_away)
        outage.setattr(joint.time, "sleep", pauses.append)
        ended = run(message)

    assert (ended.settled is not None) is after
    assert len(pauses) == 3
    assert marks() == (["written"] if after else [])


# Timeouts


def test_its_timeout_never_interrupts_its_commit(claimed, connection, monkeypatch):
    message, commit = claimed(write), connection.commit
    with closing(Deadlines(lambda: None)) as deadlines:
        monkeypatch.setattr(connection, "commit", lambda: (deadlines.enforce(), commit()))
        ended = run(message, deadlines, timeout=timedelta(microseconds=1))

    assert (ended.outcome, ended.error, ended.settled) == (Returned(), None, Settled())


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
