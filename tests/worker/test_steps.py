"""Steps: what is recorded is not done again, and each commits together with its record, or not at all."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from delayedq import current_message
from delayedq.compat import InvalidTask, default_task_backend
from delayedq.conf import get_settings
from delayedq.core.lifecycle import Returned
from delayedq.exceptions import LeaseLost, NotStorable, PayloadTooLarge
from delayedq.models import FinishedMessage, Message, RecordedStep
from delayedq.steps.rules import base_name
from delayedq.steps.store import forget_steps
from delayedq.tasks import task
from delayedq.testing import clock, run_due
from tests.app import stepping, tasks
from tests.app.models import Mark
from tests.worker.attempts import LEASE
from tests.worker.stepping_attempts import attempt_at, claim_at, marks, play, run

NOW = datetime(2026, 3, 8, 6, 55, tzinfo=UTC)
HOUR = timedelta(hours=1)


def write(name):
    Mark.objects.create(name=name)
    return name.upper()


def recorded():
    return list(RecordedStep.objects.order_by("id").values_list("name", "result"))


def three_steps(fail_before=None):
    """A task that writes a row in each of its steps; it fails before one of them, at its first attempt."""
    message, got = current_message(), []
    for name in ("a", "b", "c"):
        if name == fail_before and message.attempt == 1:
            raise ValueError(name)
        got.append(message.step(name, write, name))
    return got


def test_the_database_is_watched_while_it_is_asked_for_steps(store):
    asked = []

    class Asking(CaptureQueriesContext):
        def __exit__(self, *error):
            super().__exit__(*error)
            asked.extend(query["sql"] for query in self)

    attempt = attempt_at(store, three_steps)
    attempt.asking = Asking(store.database.connection)
    assert run(attempt).error is None
    assert len([sql for sql in asked if "recordedstep" in sql]) == 1
    assert not [sql for sql in asked if "INSERT" in sql]


@pytest.mark.parametrize("fail_before", ["a", "b", "c"])
def test_a_retry_skips_what_is_done_and_gets_its_result(alias, fail_before):
    with clock(NOW) as frozen:
        play(lambda: three_steps(fail_before))
        run_due(raise_failures=False)
        frozen.advance(HOUR)
        run_due()
    assert marks() == ["a", "b", "c"]
    assert FinishedMessage.objects.get().result == '["A","B","C"]'
    assert recorded() == [("a", '"A"'), ("b", '"B"'), ("c", '"C"')]


def test_what_a_step_wrote_and_enqueued_and_its_record_are_rolled_back_together(alias):
    def fails():
        write("gone")
        tasks.remind.enqueue(7)
        raise ValueError("no fuel")

    play(lambda: current_message().step("fails", fails))
    run_due(limit=1, raise_failures=False)
    assert (marks(), recorded(), Message.objects.filter(kind=tasks.remind.module_path).count()) == ([], [], 0)


def test_what_a_step_enqueues_commits_with_it_once(alias):
    def body():
        current_message().step("enqueue", lambda: tasks.nothing.enqueue(1).id)
        raise ValueError("afterwards")

    with clock(NOW) as frozen:
        play(body)
        for _ in range(3):
            run_due(limit=1, follow=False, raise_failures=False)
            frozen.advance(HOUR)
    assert Message.objects.filter(kind=tasks.nothing.module_path).count() + len(
        FinishedMessage.objects.filter(kind=tasks.nothing.module_path)
    ) == 1  # fmt: skip


def test_results_keep_their_types_and_are_the_same_in_each_attempt(alias):
    seen, value = [], {"on": date(2026, 3, 8), "pair": (1, None), "span": HOUR}

    def body():
        seen.append(current_message().step("value", lambda: value))
        if current_message().attempt == 1:
            raise ValueError

    with clock(NOW) as frozen:
        play(body)
        run_due(raise_failures=False)
        frozen.advance(HOUR)
        run_due()
    assert seen == [value, value]


def test_a_function_gives_its_name_and_a_name_that_is_used_again_is_numbered(alias):
    def body():
        for row in range(3):
            current_message().step(write, f"row {row}")

        @current_message().step
        def last():
            return 7

        return last

    play(body)
    run_due()
    assert recorded() == [("write", '"ROW 0"'), ("write#2", '"ROW 1"'), ("write#3", '"ROW 2"'), ("last", "7")]
    assert {base_name(name) for name, _ in recorded()} == {"write", "last"}
    assert FinishedMessage.objects.get().result == "7"


def test_names_that_differ_a_little_are_different(alias):
    names = ["a", "A", "a ", "\u00e4", "\U0001f6eb"]
    play(lambda: [current_message().step(name, str, name) for name in names])
    run_due()
    assert [name for name, _ in recorded()] == names


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        (lambda m: m.step("charge"), TypeError, "needs the function to call"),
        (lambda m: m.step("charge", 7), TypeError, "step('charge') needs the function"),
        (lambda m: m.step("", write, "a"), ValueError, "1 to 190 characters"),
        (lambda m: m.step("a#2", write, "a"), ValueError, "'#'"),
        (lambda m: m.step("a\0", write, "a"), ValueError, "NUL"),
        (lambda m: m.step(7, write), TypeError, "is a str, not 7"),
        (lambda m: m.step("a", asyncio.sleep, 0), TypeError, "astep"),
        (lambda m: m.step("a", lambda: m.step("b", write, "b")), RuntimeError, "'b' can't be within step 'a'"),
        (lambda m: m.step("a", lambda: m.sleep(HOUR)), RuntimeError, "'sleep' can't be within step 'a'"),
        (lambda m: m.step("a", object), NotStorable, "the result of step 'a'"),
        (lambda m: m.sleep(7), TypeError, "timedelta"),
        (lambda m: m.sleep_until(datetime(2026, 1, 1)), ValueError, ""),  # noqa: DTZ001
    ],
)  # fmt: skip
def test_what_is_no_step_is_refused_and_nothing_is_recorded(alias, body, error, text):
    play(lambda: body(current_message()))
    with pytest.raises(error) as raised:
        run_due(limit=1)
    assert text in str(raised.value)
    assert (recorded(), marks()) == ([], [])


def test_a_result_that_is_too_large_is_refused_and_what_the_step_wrote_rolled_back(alias):
    def large():
        write("gone")
        return "x" * get_settings().MAX_PAYLOAD_BYTES

    play(lambda: current_message().step(large))
    with pytest.raises(PayloadTooLarge, match="The result of step 'large' takes"):
        run_due(limit=1)
    assert (recorded(), marks()) == ([], [])


def test_within_a_transaction_a_step_could_not_commit(store):
    def body():
        with transaction.atomic(using=store.alias):
            current_message().step("a", write, "a")

    ended = run(attempt_at(store, body))
    assert "commits its own transaction" in str(ended.error)
    assert recorded() == []


def test_an_exactly_once_task_has_none(alias):
    tasks.bodies["once"] = lambda: current_message().step("a", write, "a")
    tasks.play_once.enqueue("once")
    with pytest.raises(RuntimeError, match="is exactly_once"):
        run_due(limit=1)


# Declared


def test_a_task_that_declares_its_steps_has_no_other(alias):
    stepping.declared.enqueue(["charge", "charge", "ship"])
    run_due()
    assert [name for name, _ in recorded()] == ["charge", "charge#2", "ship"]
    stepping.declared.enqueue(["refund"])
    with pytest.raises(ValueError, match="has no step 'refund': its steps are charge, ship"):
        run_due(limit=1)


@pytest.mark.parametrize(("names", "problem"), [("charge", "must be names"), ([7], "is a str"), (["a#2"], "'#'")])
def test_what_are_no_names_is_refused_where_the_task_is_defined(names, problem):
    with pytest.raises(InvalidTask, match=problem):
        task(steps=names)(tasks.nothing.func)


# The lease


def test_a_worker_that_lost_its_lease_records_nothing_and_what_its_step_wrote_is_gone(store):
    def body():
        claim_at(store, NOW + 2 * LEASE)
        current_message().step("a", write, "a")

    ended = run(attempt_at(store, body))
    assert isinstance(ended.error, LeaseLost)
    assert (recorded(), marks()) == ([], [])


def test_a_step_of_a_cancelled_message_is_rolled_back(store):
    def body():
        message = current_message()
        message.step("a", write, "a")
        default_task_backend.get_result(str(message.id)).cancel()
        message.step("b", write, "b")

    ended = run(attempt_at(store, body))
    assert isinstance(ended.error, LeaseLost)
    assert ([name for name, _ in recorded()], marks()) == (["a"], ["a"])


def test_another_worker_goes_on_where_the_first_one_vanished(store):
    run(attempt_at(store, lambda: current_message().step("a", write, "a")))  # and nothing settles it
    second = attempt_at(store, three_steps, claim_at(store, NOW + 2 * LEASE))
    assert run(second).outcome == Returned('["A","B","C"]')
    assert marks() == ["a", "b", "c"]


# Kept and forgotten


def test_records_are_kept_with_the_history_and_go_with_it(store):
    play(three_steps)
    run_due()
    RecordedStep.objects.create(message_id=10**12, generation=0, name="new", result="1", recorded_at=timezone.now())
    RecordedStep.objects.filter(name__in="abc").update(recorded_at=NOW)
    assert forget_steps(store) == (0, None)
    FinishedMessage.objects.all().delete()
    assert forget_steps(store) == (3, None)
    assert [name for name, _ in recorded()] == ["new"]


# Costs


def test_a_task_without_steps_has_no_statement_for_them(alias, connection):
    tasks.remind.enqueue(7)
    with CaptureQueriesContext(connection) as captured:
        run_due()
    assert [query["sql"] for query in captured if "recordedstep" in query["sql"]] == []


def test_steps_read_once_and_each_takes_one_transaction(store, connection):
    attempt = attempt_at(store, three_steps)
    with CaptureQueriesContext(connection) as captured:
        run(attempt)
    queries = [query["sql"] for query in captured]
    reads = [sql for sql in queries if "recordedstep" in sql and sql.startswith("SELECT")]
    writes = [sql for sql in queries if "recordedstep" in sql and sql.startswith("INSERT")]
    fences = [sql for sql in queries if sql.startswith("SELECT id FROM delayedq_message")]
    assert (len(reads), len(writes), len(fences)) == (1, 3, 3)
    assert not any("SAVEPOINT" in sql for sql in queries)
