"""Rolling deploys: old and new workers side by side, each with messages that only the other one can run."""

from __future__ import annotations

import logging
import signal
from datetime import timedelta

import pytest
from django.utils import timezone

from delayedq.core.lifecycle import Impossible, NotStarted
from delayedq.exceptions import ArgumentsMismatch, ReferenceGone, UnknownTask
from delayedq.models import FinishedMessage, Message
from delayedq.store.protocol import LaneHead, Offer
from delayedq.worker import lanes, loop
from delayedq.worker.lanes import Lanes
from delayedq.worker.loop import DeployGrace
from delayedq.worker.transitions import AttemptResult
from tests.app import chores, tasks
from tests.worker.attempts import attempt_of
from tests.worker.conftest import eventually

GRACE = timedelta(minutes=10)


class Clock:
    """Stands for the clocks that DeployGrace reads."""

    def __init__(self, monkeypatch):
        self.moment = 1_000.0
        monkeypatch.setattr(loop.time, "monotonic", lambda: self.moment)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def refused(error=None, due_for=0.0):
    attempt = attempt_of(tasks.remind, 7, scheduled_at_initially=timezone.now() - timedelta(seconds=due_for))
    return AttemptResult(attempt, Impossible(), 1.0, 2.0, error or UnknownTask("No such task."))


@pytest.mark.parametrize("error", [UnknownTask("?"), ArgumentsMismatch("?")])
def test_it_is_given_back_uncharged_with_one_warning_for_its_task(caplog, error):
    grace = DeployGrace(GRACE, Lanes())
    with caplog.at_level(logging.WARNING):
        judged = [grace.judge(refused(error)) for _ in range(100)]
    assert {one.outcome for one in judged} == {NotStarted(timedelta(seconds=loop.SHORTEST_REFUSAL))}
    assert {one.started for one in judged} == {None}
    assert caplog.text.count("can't run tests.app.tasks.remind") == 1


def test_pauses_grow_with_the_age_of_the_message(clock):
    grace = DeployGrace(GRACE, Lanes())
    grace.judge(refused())
    clock.moment += 300
    pauses = [grace.judge(refused(due_for=age)).outcome.delay.total_seconds() for age in (0, 4, 20, 400)]
    assert pauses == pytest.approx([1, 4, 20, 60], abs=0.5)


def test_it_is_set_aside_when_message_and_refusals_are_older_than_the_grace_period(clock):
    grace = DeployGrace(GRACE, Lanes())
    old = refused(due_for=3_600)
    assert grace.judge(old) is not old, "this worker may be the first of its version"
    for _ in range(10):
        clock.moment += 60.5
        grace.judge(refused())
    assert grace.judge(old) is old
    assert grace.judge(young := refused(due_for=10)) is not young


def test_refusals_long_ago_do_not_count(clock):
    grace = DeployGrace(GRACE, Lanes())
    grace.judge(refused())
    clock.moment += 100_000
    old = refused(due_for=3_600)
    assert grace.judge(old) is not old


def test_what_no_version_can_run_is_set_aside_at_once():
    gone = refused(ReferenceGone("?"))
    assert DeployGrace(GRACE, Lanes()).judge(gone) is gone
    unknown = refused()
    assert DeployGrace(timedelta(0), Lanes()).judge(unknown) is unknown


class Planned:
    """Which queues are claimed from as time goes on; something is always due in both."""

    def __init__(self, monkeypatch):
        self.moment = 50.0
        monkeypatch.setattr(lanes.time, "monotonic", lambda: self.moment)
        self.known = Lanes()
        self.scan()

    def scan(self):
        self.known.scanned([LaneHead(queue, 0, timezone.now(), 0.0) for queue in ("default", "other")], self.moment)

    def at(self, moment):
        self.moment = moment
        return {lane.queue for lane in self.known.plan()}


def test_a_worker_that_gave_back_goes_last_when_that_message_is_due_again_and_at_no_other_time(monkeypatch):
    planned, both = Planned(monkeypatch), {"default", "other"}
    planned.known.yield_to_others("default", 0, 10)
    assert planned.at(50.0) == planned.at(59.999) == both
    assert planned.at(60.0) == planned.at(60.0 + lanes.HANDICAP - 0.001) == {"other"}
    planned.known.hint()
    assert planned.at(60.1) == {"other"}
    planned.scan()
    assert planned.at(60.2) == {"other"}
    assert planned.at(60.0 + lanes.HANDICAP) == both


def test_it_sleeps_until_others_had_their_time(monkeypatch):
    planned = Planned(monkeypatch)
    planned.known.scanned([LaneHead("default", 0, timezone.now(), 10.0)], planned.moment)
    planned.known.yield_to_others("default", 0, 10)
    assert planned.known.due_in() == pytest.approx(10 + lanes.HANDICAP)


def test_each_message_that_it_gave_back_has_its_own_time(monkeypatch):
    planned = Planned(monkeypatch)
    for seconds in (30, 10, 10.2, 10.2 + lanes.GRAIN / 2):
        planned.known.yield_to_others("default", 0, seconds)
    handicapped = [tenth for tenth in range(900) if planned.at(50 + tenth / 10) == {"other"}]
    assert handicapped == [100, 101, 102, 103, 104, 300, 301, 302]
    planned.known.yield_to_others("default", 0, 1)
    (known,) = [known for (queue, _), known in planned.known._lanes.items() if queue == "default"]
    assert len(known.yields_at) == 1, "what is over is forgotten"


@pytest.mark.slow
@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_of_messages_that_only_the_new_version_knows_none_fails(workers, store):
    """One of two workers does not know the task."""
    kind = "tests.app.later.arrive"
    store.offer_many([Offer("default", kind, f'{{"args": [{number}]}}', max_attempts=1) for number in range(100)])
    old = workers("--threads", "2")
    eventually(lambda: Message.objects.filter(scheduled_at__gt=timezone.now()).exists())
    new = workers("--threads", "2", NEW_VERSION="yes")
    eventually(lambda: FinishedMessage.objects.succeeded().count() == 100)
    assert FinishedMessage.objects.count() == 100
    assert set(FinishedMessage.objects.values_list("attempts", flat=True)) == {1}
    old.send(signal.SIGTERM)
    new.send(signal.SIGTERM)
    _, output = old.finish()
    assert output.count(f"can't run {kind}") == 1
    assert "Traceback" not in output


@pytest.mark.slow
@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_after_the_grace_period_it_is_a_dead_letter(workers, store):
    store.offer(Offer("default", "tests.app.later.gone", "{}", key="unknown"))
    store.offer(Offer("default", chores.note.module_path, '{"kwargs": {"nobody": 1}}', key="unfitting"))
    one = workers(DEPLOY_GRACE="1")
    eventually(lambda: FinishedMessage.objects.count() == 2)
    assert set(FinishedMessage.objects.values_list("key", "outcome")) == {
        ("unknown", "failed"),
        ("unfitting", "failed"),
    }
    one.send(signal.SIGTERM)
    assert one.finish()[0] == 0
