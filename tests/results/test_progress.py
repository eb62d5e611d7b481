"""Progress: reported as often as a task likes, written once a second, and read by results, the admin and a view."""

from __future__ import annotations

import json
import threading
import time
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import NoneType

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError
from django.http import Http404
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from delayedq import current_message, track, views
from delayedq.compat import default_task_backend
from delayedq.conf import get_settings
from delayedq.core.progress import Progress, checked
from delayedq.exceptions import LeaseLost
from delayedq.models import FinishedMessage, Message, MessageProgress
from delayedq.store.progress import forget_progress
from delayedq.store.protocol import ClaimRequest, Lane
from delayedq.testing import run_due
from delayedq.worker import reporting
from delayedq.worker.attempt import Attempt
from delayedq.worker.executor import execute_exactly_once
from delayedq.worker.shared_leases import SharedLeases
from tests.app import tasks
from tests.worker.attempts import PATIENCE, WORKER, attempt_of

from .test_cancelling import eventually
from .test_waiting import LONG, play, worker_of

NOW = datetime(2026, 3, 8, 6, 55, tzinfo=UTC)
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


def parts(result):
    progress = result.progress
    return None if progress is None else (progress.done, progress.total, progress.note)


@pytest.mark.parametrize("run", ["worker", "run_due"])
def test_the_last_report_of_a_task_is_that_of_its_result(store, run):
    def body():
        for number in range(1000):
            current_message().progress(number + 1, 1000, "importing")

    result = play("reports", body)
    assert result.progress is None
    if run == "worker":
        with worker_of(store):
            result.wait(LONG)
    else:
        run_due()
    assert parts(result) == (1000, 1000, "importing")


@pytest.mark.parametrize("kind", ["sync", "async", "failing"])
def test_the_last_report_stands_where_the_message_has_ended(store, monkeypatch, kind):
    """Also if the thread that writes them once a second has not come to it."""
    monkeypatch.setattr(reporting, "EVERY", 3600.0)

    def body():
        current_message().progress(1, 1000, "importing")
        eventually(MessageProgress.objects.exists)
        current_message().progress(1000, 1000, "importing")
        if kind == "failing":
            raise ValueError("the rest is wrong")

    async def abody():
        current_message().progress(1, 1000, "importing")
        await sync_to_async(eventually)(MessageProgress.objects.exists)
        current_message().progress(1000, 1000, "importing")

    tasks.bodies["reports"] = abody if kind == "async" else body
    task = tasks.aplay if kind == "async" else tasks.play.using(max_attempts=1)
    with worker_of(store):
        result = task.enqueue("reports").wait(LONG)
        assert parts(result) == (1000, 1000, "importing")


@pytest.mark.parametrize("commits", [True, False])
def test_the_last_report_of_an_exactly_once_task_commits_with_it(store, commits):
    tasks.play_once.enqueue("reports once")
    (claimed,) = store.claim(ClaimRequest([Lane("default", 0)], 1, LONG, WORKER))
    attempt = Attempt(claimed, tasks.play_once, WORKER, leases := SharedLeases(1), leases.hold(1, 1))
    attempt.reporter = lambda attempt: None  # it writes nothing itself

    def body():
        current_message().progress(3, 3)
        if not commits:
            Message.objects.all().delete()  # as whoever takes its lease away

    tasks.bodies["reports once"] = body
    ended = execute_exactly_once(attempt, nullcontext())
    assert isinstance(ended.error, NoneType if commits else LeaseLost)
    assert MessageProgress.objects.count() == commits
    reporting.write_last([attempt])
    assert MessageProgress.objects.get().done == 3


def test_what_ends_without_new_reports_takes_no_statement(store, connection):
    silent, reported = attempt_of(tasks.remind, 7, id=4711), attempt_of(tasks.remind, 7, id=4712)
    reported.reported = checked(50, 100, "")
    reporting.write_last([reported])
    with CaptureQueriesContext(connection) as captured:
        reporting.write_last([silent, reported])
    assert not captured.captured_queries
    assert MessageProgress.objects.get().message_id == 4712


def test_an_end_is_not_held_up_by_progress_that_cannot_be_written(store, monkeypatch, caplog):
    def fail(*_):
        raise OperationalError("it is away")

    monkeypatch.setattr(reporting, "write_progress", fail)
    result = play("reports", lambda: current_message().progress(1))
    with worker_of(store):
        assert result.wait(LONG).outcome == "succeeded"
    assert "The last progress of 1 messages was not written." in caplog.text


def test_the_only_report_of_a_second_attempt_is_written_too(monkeypatch):
    """It comes before what the first one has reported is forgotten."""
    writer, written = reporting.ProgressWriter(), []
    monkeypatch.setattr(writer, "_thread", threading.Thread())  # the test writes
    monkeypatch.setattr(reporting, "served_store", lambda: None)
    monkeypatch.setattr(reporting, "write_progress", lambda _, reported: written.append(reported[4711].done))
    for done in (50, 100):
        attempt = attempt_of(tasks.remind, 7, id=4711)
        attempt.reported = checked(done, 100, "")
        writer.report(attempt)
        writer.report(attempt)
        assert writer._write()
    assert not writer._write()
    assert written == [50, 100]


def test_a_report_that_could_not_be_written_is_written_later(store, monkeypatch, caplog):
    writer, written, away = reporting.ProgressWriter(), [], [True, True]
    monkeypatch.setattr(writer, "_thread", threading.Thread())  # the test writes

    def write(_, reported):
        if away:
            away.pop()
            raise OperationalError("it is away")
        written.append(reported[4711].done)

    monkeypatch.setattr(reporting, "write_progress", write)
    attempt = attempt_of(tasks.remind, 7, id=4711)
    attempt.reported = checked(50, 100, "")
    writer.report(attempt)
    assert [writer._write() for _ in range(4)] == [True, True, True, False]
    assert written == [50]
    assert caplog.text.count("was not written") == 1


def test_an_async_task_reports_too(store):
    async def body():
        current_message().progress(3)

    tasks.bodies["reports"] = body
    first, second = tasks.aplay.enqueue("reports"), tasks.aplay.enqueue("reports")
    run_due(limit=1)
    assert parts(first) == (3, None, "")
    with worker_of(store):
        second.wait(LONG)
    assert parts(second) == (3, None, "")


def test_what_runs_is_seen_while_it_runs_and_written_at_most_once_a_second(store, monkeypatch):
    writes, gate = [], threading.Event()
    write = reporting.write_progress
    monkeypatch.setattr(reporting, "write_progress", lambda *given: writes.append(time.monotonic()) or write(*given))

    def body():
        give_up_at = time.monotonic() + PATIENCE
        done = 0
        while not gate.is_set() and time.monotonic() < give_up_at:
            done += 1
            current_message().progress(done, None, "working")

    with worker_of(store):
        result = play("runs", body)
        eventually(lambda: len(writes) >= 3)
        seen = result.progress
        gate.set()
        result.wait(LONG)
    assert seen is not None
    assert result.progress.done >= seen.done > 0
    assert min(later - before for before, later in pairwise(writes[:-1])) >= 0.9  # the last is that of the end


def test_track_reports_each_row_that_is_done(alias):
    seen = []

    def body():
        seen.extend((row, current_message().reported) for row in track([1, 2, 3], "importing"))
        assert list(track(iter("ab"), "more", total=2)) == ["a", "b"]

    result = play("tracks", body)
    run_due()
    assert [(row, report.done, report.total) for row, report in seen] == [(1, 0, 3), (2, 1, 3), (3, 2, 3)]
    assert parts(result) == (2, 2, "more")
    assert list(track("ab", "outside of a task")) == ["a", "b"]


def test_who_submits_the_same_key_sees_the_same_progress(store):
    began, gate = threading.Event(), threading.Event()

    def body():
        current_message().progress(1, 2)
        began.set()
        gate.wait(PATIENCE)
        return "done"

    tasks.bodies["shared"] = body
    first = tasks.play.schedule_at(NOW, "shared", key="a")
    second = tasks.play.schedule_at(NOW, "shared", key="a")
    with worker_of(store):
        assert began.wait(PATIENCE)
        third = tasks.play.schedule_at(NOW, "shared", key="a")  # while it runs
        results = [default_task_backend.get_result(one.id) for one in (first, second, third)]
        eventually(lambda: results[2].progress is not None)
        assert {parts(one) for one in results} == {(1, 2, "")}
        gate.set()
        assert {one.wait(LONG).return_value for one in results} == {"done"}
    assert FinishedMessage.objects.count() == 1


def test_a_message_that_reports_nothing_has_no_row(store):
    tasks.remind.enqueue(7)
    with worker_of(store):
        eventually(FinishedMessage.objects.exists)
    assert not MessageProgress.objects.exists()


def test_progress_goes_with_its_message(store):
    live, ended = tasks.remind.schedule_in(HOUR, 1), tasks.remind.enqueue(2)
    run_due()
    times = {"began_at": NOW, "written_at": NOW, "done": 1}
    for id_ in (live.id, ended.id, 10**12):
        MessageProgress.objects.create(message_id=int(id_), **times)
    MessageProgress.objects.create(message_id=10**12 + 1, **times | {"written_at": timezone.now()})
    assert forget_progress(store) == (1, None)
    assert MessageProgress.objects.count() == 3


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ((-1, None, ""), "done is a number of at least 0, not -1"),
        ((1, float("nan"), ""), "total is a number of at least 0, not nan"),
        ((True, None, ""), "done is a number"),
        ((10**400, None, ""), "done is a number of at least 0"),
        (("1", None, ""), "done is a number of at least 0, not '1'"),
        ((1, None, "x" * 201), "note is a text of at most 200 characters"),
        ((1, None, None), "note is a text of at most 200 characters, not 'None'"),
    ],
)
def test_what_is_no_progress_is_refused_at_the_call(given, problem):
    with pytest.raises(ValueError, match=problem):
        checked(*given)


def test_the_rest_is_estimated_from_what_is_done():
    assert Progress(250, 1000, "", NOW, NOW + 10 * SECOND).left == 30 * SECOND
    assert Progress(2, 1, "", NOW, NOW + SECOND).share == 1.0
    assert Progress(2, None, "", NOW, NOW + SECOND).left is None
    assert Progress(0, 10, "", NOW, NOW + SECOND).left is None
    assert Progress(1, 1e300, "", NOW, NOW + SECOND).left is None


# The view, and the admin


def asked(token):
    return json.loads(views.status(RequestFactory().get("/"), token).content)


def test_the_view_tells_the_state_and_the_progress(alias):
    play("reports", lambda: current_message().progress(1, 4, "importing"))
    result = default_task_backend.get_result(str(Message.objects.get().id))
    waiting = asked(result.signed_id)
    assert waiting == {"id": result.id, "state": "ready", "is_finished": False, "progress": None}
    run_due()
    told = asked(result.signed_id)
    assert (told["state"], told["is_finished"]) == ("succeeded", True)
    assert (told["progress"]["done"], told["progress"]["share"]) == (1, 0.25)


def test_the_view_knows_only_what_was_signed_and_is_there(alias):
    token = tasks.remind.enqueue(7).signed_id
    for wrong in ("1", token + "x", ""):
        with pytest.raises(Http404):
            asked(wrong)
    Message.objects.all().delete()
    with pytest.raises(Http404):
        asked(token)


def test_the_token_of_a_backend_that_was_removed_is_that_of_no_message(alias, settings):
    token = tasks.remind.enqueue(7).signed_id
    before = settings.TASKS["default"]
    settings.TASKS = {"other": before}
    with pytest.raises(Http404):
        asked(token)
    settings.TASKS = {"default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}}
    with pytest.raises(Http404):
        asked(token)


def nobody(request, result):
    return False


def test_a_permission_may_refuse_a_reader(alias, settings):
    token = tasks.remind.enqueue(7).signed_id
    settings.DELAYEDQ = {"STATUS_PERMISSION": f"{__name__}.nobody"}
    with pytest.raises(Http404):
        asked(token)
    settings.DELAYEDQ = {"STATUS_PERMISSION": lambda request, result: result.task.name == "remind"}
    assert asked(token)["state"] == "ready"
    settings.DELAYEDQ = {"STATUS_PERMISSION": 5}
    with pytest.raises(ImproperlyConfigured, match="STATUS_PERMISSION"):
        get_settings()


def test_the_admin_shows_it_with_the_time_that_is_left(alias, client):
    client.force_login(User.objects.create_superuser("boss"))
    id_ = int(tasks.remind.schedule_in(HOUR, 7).id)
    MessageProgress.objects.create(
        message_id=id_, done=250, total=1000, note="<b>", began_at=NOW, written_at=NOW + 10 * SECOND
    )
    page = client.get(f"/admin/delayedq/message/{id_}/change/").content.decode()
    assert "250 of 1,000 done, about 30 s left: &lt;b&gt;" in page
