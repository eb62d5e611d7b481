"""Return values that go before the history of their messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.test.utils import CaptureQueriesContext

from delayedq import Flow
from delayedq.compat import InvalidTask, default_task_backend
from delayedq.models import ExpiringResult, FinishedMessage, Message
from delayedq.results.expiring import expire_results
from delayedq.store import retention
from delayedq.tasks import registered, task
from delayedq.testing import clock, run_due, run_until
from tests.app import lifecycle, tasks
from tests.flows.given import does
from tests.results.test_waiting import LONG, worker_of
from tests.test_checks import found
from tests.test_lifecycle import plain

NOW = datetime(2026, 3, 8, 6, 55, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


@pytest.fixture
def kept_briefly():
    """Tasks whose return values are kept for an hour."""
    tasks.bodies["seven"] = lambda: 7
    return [lifecycle.kept_briefly, lifecycle.kept_briefly_once]


def results():
    return dict(FinishedMessage.objects.values_list("kind", "result"))


def test_return_values_go_after_their_time_and_the_history_stays(store, kept_briefly):
    with clock(NOW) as frozen:
        for one in [*kept_briefly, tasks.play]:
            one.enqueue("seven")
        run_due()
        frozen.advance(HOUR - MINUTE)
        assert expire_results(store.at(frozen())) == (0, None)
        assert set(results().values()) == {"7"}
        frozen.advance(MINUTE)
        assert expire_results(store.at(frozen())) == (2, None)
    assert [results()[one.module_path] for one in [*kept_briefly, tasks.play]] == [None, None, "7"]
    assert not ExpiringResult.objects.exists()
    gone = FinishedMessage.objects.filter(kind=kept_briefly[0].module_path).get()
    assert default_task_backend.get_result(str(gone.id)).return_value is None
    assert gone.outcome == "succeeded"


def test_a_worker_notes_them_where_it_ends_the_message(store, kept_briefly):
    with worker_of(store):
        for one in [*kept_briefly, tasks.play]:
            one.enqueue("seven").wait(LONG)
    ended = FinishedMessage.objects.exclude(kind=tasks.play.module_path)
    kept = dict(ExpiringResult.objects.values_list("message_id", "expires_at"))
    assert set(kept) == {one.id for one in ended}
    assert all(abs(kept[one.id] - one.finished_at - HOUR) < MINUTE for one in ended)


def test_what_returns_nothing_and_what_fails_has_no_row_and_no_statement(alias, connection, kept_briefly):
    def fail():
        raise ValueError

    for name, body in (("nothing", lambda: None), ("fail", fail)):
        lifecycle.kept_briefly.enqueue(does(name, body))
    tasks.remind.enqueue(7)
    with CaptureQueriesContext(connection) as captured:
        run_due(raise_failures=False)
    assert [query["sql"] for query in captured if "expiringresult" in query["sql"]] == []


def test_pages_are_bounded_and_go_on_beyond_what_the_archive_still_needs(store, kept_briefly, monkeypatch):
    monkeypatch.setattr(retention, "_NEEDED", [])
    retention.keep_history(lambda: Message.objects.filter(key="batch").values_list("scheduled_at", flat=True))
    with clock(NOW) as frozen:
        for _ in range(4):
            lifecycle.kept_briefly.enqueue("seven")
            run_due()
            frozen.advance(MINUTE)
        tasks.remind.schedule_at(NOW + 90 * timedelta(seconds=1), 1, key="batch")  # two ended before that
        frozen.advance(HOUR)
        bound = store.at(frozen())
        after, removed = None, []
        while not removed or after is not None:
            page = expire_results(bound, after, limit=1)
            removed.append(page.removed)
            after = page.reached
        assert removed == [0, 0, 1, 1, 0]
        assert ExpiringResult.objects.count() == 2
        tasks.remind.unschedule(key="batch")
        assert expire_results(bound).removed == 2
    assert not ExpiringResult.objects.exists()


def test_a_flow_that_may_be_retried_keeps_its_results(store, kept_briefly):
    faults = [ValueError("at first")]

    def once(*args):
        if faults:
            raise faults.pop()
        return [*args]

    graph = Flow()
    first = graph.add("first", lifecycle.kept_briefly.s("seven"))
    graph.add("second", tasks.play.using(max_attempts=1).s(does("second", once), first.result))
    with clock(NOW) as frozen:
        flow = graph.enqueue()
        run_due(raise_failures=False)
        frozen.advance(2 * HOUR)
        assert (flow.state, expire_results(store.at(frozen())).removed) == ("failed", 0)
        flow.retry()
        run_due()
        assert flow.result() == [7]
        assert expire_results(store.at(frozen())).removed == 1


def test_history_that_was_pruned_leaves_nothing_behind(store, kept_briefly):
    with clock(NOW) as frozen:
        lifecycle.kept_briefly.enqueue("seven")
        run_due()
        FinishedMessage.objects.all().delete()
        frozen.advance(HOUR)
        assert expire_results(store.at(frozen())) == (0, None)
    assert not ExpiringResult.objects.exists()


def test_run_until_removes_them_as_time_goes_on(alias, kept_briefly):
    with clock(NOW):
        lifecycle.kept_briefly.enqueue("seven")
        run_until(NOW + 2 * HOUR)
    assert FinishedMessage.objects.get().result is None


def test_defaults_are_those_of_the_queue_then_of_the_backend(settings):
    options = {"RESULT_RETENTION": HOUR, "QUEUE_DEFAULTS": {"mail": {"RESULT_RETENTION": MINUTE}}}
    settings.TASKS = {"default": {"BACKEND": "delayedq.backend.DelayedQBackend", "QUEUES": [], "OPTIONS": options}}
    try:
        made = [task(plain), task(queue_name="mail")(plain), task(result_retention=2 * HOUR)(plain)]
    finally:
        registered.pop(plain.__module__ + ".plain", None)
    assert [one.result_retention for one in made] == [HOUR, MINUTE, 2 * HOUR]


def test_wrong_ones_are_refused_and_those_beyond_retention_are_w012(settings, kept_briefly, monkeypatch):
    monkeypatch.setattr("delayedq.checks.registered", {one.module_path: one for one in kept_briefly})
    with pytest.raises(InvalidTask, match="result_retention must be a timedelta over zero, not 60"):
        task(result_retention=60)(plain)
    settings.DELAYEDQ = {"RETENTION": HOUR}
    assert found() == []
    settings.DELAYEDQ = {"RETENTION": MINUTE}
    assert found() == ["delayedq.W012"]
    settings.DELAYEDQ = {"RETENTION": None}
    assert found() == []
