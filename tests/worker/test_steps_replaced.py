"""Steps of keyed messages that are replaced, and of messages that are brought back: whose records are whose."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from delayedq import current_message
from delayedq.core.lifecycle import Returned
from delayedq.models import FinishedMessage, Message, RecordedStep
from delayedq.operations import edits
from delayedq.operations.browsing import Ticked
from delayedq.store import operator_store
from delayedq.store.operator import Revival
from delayedq.store.protocol import GiveBack
from delayedq.testing import clock, run_due
from tests.app import tasks
from tests.app.models import Mark
from tests.worker.attempts import WORKER
from tests.worker.stepping_attempts import attempt_at, claim_at, marks, play, run
from tests.worker.test_steps import three_steps, write

NOW = datetime(2026, 3, 8, 6, 55, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_a_replacement_begins_anew_and_the_attempt_that_runs_goes_on(store):
    def first():
        current_message().step("a", write, "a")
        store.at(NOW).offer(tasks.play.offer(("another",), {}, when=NOW, key="a"))
        current_message().step("b", write, "b")

    attempt = attempt_at(store, first)
    assert run(attempt).outcome == Returned()
    store.settle([GiveBack(attempt.claimed, charged=False, started=None, finished=0)], WORKER)
    second = attempt_at(store, three_steps, claim_at(store, NOW))
    assert second.claimed.generation == 1
    assert run(second).outcome == Returned('["A","B","C"]')
    assert marks() == ["a", "a", "b", "b", "c"]
    assert RecordedStep.objects.filter(generation=1).count() == RecordedStep.objects.count() == 3


@pytest.mark.parametrize("replaced", [False, True])
def test_a_redriven_message_goes_on_and_its_replacement_begins_anew(alias, store, replaced):
    def body():
        current_message().step("a", write, "a")
        raise ValueError

    name = play(body, key="a", max_attempts=1, enqueue=False)
    with clock(NOW):
        for number in range(1 + replaced):
            tasks.play.using(max_attempts=1).schedule_at(NOW - number * HOUR, name, key="a")
        run_due(raise_failures=False)
        Message.objects.update(generation=0)
        RecordedStep.objects.update(generation=int(replaced))
        operator_store(alias).revive([Revival(FinishedMessage.objects.get().id, NOW)], "failed")
        run_due(raise_failures=False)
        assert (marks(), RecordedStep.objects.get().generation) == (["a"], 0)
        operator_store(alias).revive([Revival(FinishedMessage.objects.get().id, NOW)], "failed")
        tasks.play.using(max_attempts=1).schedule_at(NOW - 5 * HOUR, name, key="a")
        run_due(raise_failures=False)
    assert marks() == ["a", "a"]


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_a_replacement_that_ended_before_its_first_step_and_is_brought_back_takes_over_nothing(alias, store, end):
    def first():
        current_message().step("a", write, "a")
        raise ValueError

    def second():
        if not Mark.objects.filter(name="mended").exists():
            raise ValueError
        return current_message().step("a", write, "a")

    with clock(NOW):
        tasks.play.schedule_at(NOW, play(first, enqueue=False), key="a")
        run_due(limit=1, follow=False, raise_failures=False)
        tasks.play.using(max_attempts=1).schedule_at(NOW, play(second, enqueue=False), key="a")
        if end == "failed":
            run_due(raise_failures=False)
        else:
            edit = edits.begin(store, edits.CANCEL, "")
            edits.cancel(store, edit, Ticked([Message.objects.get().pk]), NOW)
        assert FinishedMessage.objects.get().outcome == end
        Mark.objects.create(name="mended")
        operator_store(alias).revive([Revival(FinishedMessage.objects.get().id, NOW)], end)
        run_due()
    assert marks() == ["a", "a", "mended"]


def test_what_replaces_a_redriven_message_begins_anew(alias, store):
    """Its generation is counted anew, below that of the records."""

    def body():
        current_message().step("a", write, "a")
        raise ValueError

    name = play(body, enqueue=False)
    with clock(NOW):
        for number in range(3):
            tasks.play.using(max_attempts=1).schedule_at(NOW - number * HOUR, name, key="a")
        run_due(raise_failures=False)
        operator_store(alias).revive([Revival(FinishedMessage.objects.get().id, NOW)], "failed")
        tasks.play.using(max_attempts=1).schedule_at(NOW - 5 * HOUR, name, key="a")
        run_due(raise_failures=False)
    assert marks() == ["a", "a"]
