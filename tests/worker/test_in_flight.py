"""The messages that a worker process holds, and which of them may run."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager

import pytest

from delayedq.core.lifecycle import AskedSnooze, Impossible, NotStarted, Returned
from delayedq.exceptions import UnknownTask, WorkerVanished
from delayedq.worker import in_flight
from delayedq.worker.in_flight import QUARANTINE_AFTER, InFlight
from delayedq.worker.pool import Pool
from delayedq.worker.shared_leases import ClaimTimes, SharedLeases, lease_clock
from tests.app import tasks
from tests.worker.attempts import PATIENCE, WORKER, claimed

RECORD = {"attempt": 1, "worker": WORKER, "exception": "builtins.ValueError", "traceback": "Traceback"}


class Holding:
    """In-flight messages with its pool and shared leases."""

    def __init__(self):
        self.woken = threading.Event()
        self.pool = Pool(1, self.woken.set)
        self.leases = SharedLeases(64)
        self.in_flight = InFlight(self.pool, self.leases, WORKER)

    def ended(self, count=1):
        taken = self.pool.take_ended()
        while len(taken) < count:
            assert self.woken.wait(PATIENCE), "Nothing ended."
            self.woken.clear()
            taken += self.pool.take_ended()
        for one in taken:
            self.in_flight.drop(one.attempt)
        return taken

    @contextmanager
    def busy(self):
        """The only thread is held until the end of the block."""
        started, release = threading.Event(), threading.Event()
        tasks.bodies["busy"] = lambda: started.set() or release.wait(PATIENCE)
        assert self.in_flight.take(claimed(tasks.play, "busy")) is None
        assert started.wait(PATIENCE)
        try:
            yield
        finally:
            release.set()
            self.ended(self.pool.in_threads)


@pytest.fixture
def holding():
    held = Holding()
    yield held
    held.pool.stop()


def quarantined(**fields):
    """A message whose worker vanished often enough for the quarantine."""
    return claimed(tasks.remind, 7, attempt=QUARANTINE_AFTER + 1, **fields)


def test_a_message_is_held_from_its_claim_to_its_settled_end(holding):
    message = claimed(tasks.remind, 7)
    with holding.busy():
        assert holding.in_flight.take(message) is None
        assert holding.in_flight.held == 2
        assert (message.id, message.token, False) in {entry[1:] for entry in holding.leases.entries()}
    assert holding.in_flight.held == 0
    assert holding.leases.entries() == []


@pytest.mark.parametrize("kind", ["tests.app.tasks.gone", "os.system", "", "tests.app.models.Mark"])
def test_a_message_of_an_unknown_task_is_refused_and_nothing_is_called(holding, kind):
    message = claimed(tasks.remind, 7, kind=kind)
    refused = holding.in_flight.take(message)
    assert (refused.outcome, refused.started) == (Impossible(), None)
    assert isinstance(refused.error, UnknownTask)
    assert refused.attempt.claimed is message
    assert holding.in_flight.held == 1
    holding.in_flight.drop(refused.attempt)
    assert holding.in_flight.held == 0
    assert holding.pool.idle()


def test_a_message_whose_every_attempt_vanished_is_refused(holding):
    refused = holding.in_flight.take(claimed(tasks.remind, 7, attempt=3, max_attempts=2))
    assert refused.outcome == Impossible()
    assert isinstance(refused.error, WorkerVanished)
    assert str(refused.error) == "Its worker vanished in 2 of its attempts."


def test_a_message_that_failed_with_a_word_runs_though_its_attempts_were_lowered(holding):
    message = claimed(tasks.remind, 7, attempt=3, max_attempts=2, errors=json.dumps([RECORD, {**RECORD, "attempt": 2}]))
    assert holding.in_flight.take(message) is None
    assert holding.ended()[0].outcome == Returned('"7 at None"')


def test_a_message_that_vanished_once_runs_beside_others(holding):
    with holding.busy():
        holding.in_flight.take(claimed(tasks.remind, 7, attempt=QUARANTINE_AFTER))
        assert not holding.in_flight.quarantined
        assert holding.pool.in_threads == 2


def test_a_quarantined_message_runs_alone(holding):
    with holding.busy():
        holding.in_flight.take(quarantined())
        assert len(holding.in_flight.quarantined) == 1
        assert not holding.in_flight.can_admit()
        holding.in_flight.admit_quarantined()
        assert holding.pool.in_threads == 1

    assert holding.in_flight.can_admit()
    holding.in_flight.admit_quarantined()
    assert not holding.in_flight.can_admit()
    assert holding.ended()[0].outcome == Returned('"7 at None"')


def test_quarantined_messages_run_one_after_the_other(holding):
    for key in "ab":
        holding.in_flight.take(quarantined(key=key))
    ran = []
    while holding.in_flight.quarantined:
        holding.in_flight.admit_quarantined()
        assert holding.pool.in_threads == 1
        ran += [one.attempt.key for one in holding.ended()]
    assert ran == ["a", "b"]


def test_what_has_not_started_can_be_taken_back_quarantined_messages_too(holding):
    with holding.busy():
        holding.in_flight.take(claimed(tasks.remind, 7, key="waiting"))
        holding.in_flight.take(quarantined(key="quarantined message"))
        back = holding.in_flight.take_back()
        assert [(one.attempt.key, one.outcome, one.started) for one in back] == [
            ("waiting", NotStarted(), None),
            ("quarantined message", NotStarted(), None),
        ]
        assert holding.in_flight.take_back() == []
        for one in back:
            holding.in_flight.drop(one.attempt)
        assert holding.in_flight.held == 1


def test_nothing_is_held_twice_and_slots_are_used_again(holding):
    for _ in range(5):
        for _ in range(60):
            holding.in_flight.take(claimed(tasks.nothing))
        holding.ended(60)
    assert holding.leases.entries() == []


def test_a_quarantined_message_that_does_not_get_its_turn_comes_back_later_and_uncharged(holding, monkeypatch):
    monkeypatch.setattr(in_flight, "QUARANTINE_WAIT", 0.0)
    with holding.busy():
        holding.in_flight.take(claimed(tasks.remind, 7, attempt=QUARANTINE_AFTER + 1))
        (later,) = holding.in_flight.put_off_quarantined()
        assert later.outcome == AskedSnooze(in_flight.QUARANTINE_SNOOZE)
        assert later.started is None
        assert not holding.in_flight.quarantined
        holding.in_flight.drop(later.attempt)


def test_a_renewal_that_began_before_all_of_a_claim_was_entered_is_none_of_it(holding):
    """The fleet was frozen between the answer to the claim and the entry, and its keeper woke up first."""
    tasks.bodies["late"] = lambda: pytest.fail("It has started.")
    moment = lease_clock()
    claim = ClaimTimes(sent_at=moment - 7200, lease=3600)
    holding.leases.renewed(moment)
    assert holding.in_flight.take(claimed(tasks.play, "late"), claim) is None
    assert [one.outcome for one in holding.ended()] == [NotStarted()]
