"""How much a worker claims ahead."""

from __future__ import annotations

import pytest

from delayedq.core.lifecycle import NotStarted, Returned
from delayedq.worker.executor import Ended
from delayedq.worker.pace import AHEAD, BATCH_BYTES, Pace
from tests.app import tasks
from tests.worker.attempts import attempt_of, claimed


def ended(seconds, count=100, task=tasks.nothing):
    attempt = attempt_of(task)
    return [Ended(attempt, Returned(), 10.0, 10.0 + seconds) for _ in range(count)]


def paced(*batches, threads=4):
    pace = Pace(threads)
    for batch in batches:
        pace.ran(batch)
    return pace


def test_a_new_worker_claims_a_little_ahead():
    assert paced().ahead() == 4


@pytest.mark.parametrize("seconds", [0.5, 5.0, 500.0])
def test_beside_slow_tasks_nothing_is_claimed_ahead(seconds):
    assert paced(ended(seconds)).ahead() == 0


@pytest.mark.parametrize("seconds", [0.0, 0.00001, 0.0001])
def test_beside_fast_tasks_as_much_is_claimed_ahead_as_may_be(seconds):
    assert paced(ended(seconds, 500)).ahead() == AHEAD


def test_more_threads_claim_more_ahead():
    few, many = (paced(ended(0.02, 500), threads=threads).ahead() for threads in (2, 8))
    assert few == pytest.approx(many / 4, abs=1)
    assert few > 0


def test_a_change_of_pace_is_noticed_within_a_batch():
    assert paced(ended(0.0001, 500), ended(5.0, 20)).ahead() == 0
    assert paced(ended(5.0, 500), ended(0.0001, 500)).ahead() == AHEAD


def test_one_slow_task_among_fast_ones_does_not_stop_claims_ahead():
    assert paced(ended(0.0001, 500), ended(1.0, 1)).ahead() > 0


def test_what_never_ran_says_nothing_about_the_pace():
    unstarted = [Ended(attempt_of(tasks.nothing), NotStarted(), None, 10.0)] * 100
    assert paced(ended(5.0), unstarted).ahead() == 0
    assert paced([]).ahead() == paced().ahead()


def test_async_tasks_occupy_no_thread_however_long_they_take():
    pace = paced(ended(60.0, task=tasks.aecho))
    pace.came([claimed(tasks.aecho)] * 500, 500)
    assert pace.ahead() == AHEAD


@pytest.mark.parametrize("size", [100_000, 1_000_000])
def test_large_payloads_are_bounded_together(size):
    pace = paced(ended(0.0, 500))
    pace.came([claimed(tasks.nothing, payload="x" * size)] * 200, 0)
    assert 0 < pace.ahead() * size <= BATCH_BYTES * 1.01


def test_payloads_that_become_small_again_are_claimed_in_numbers():
    pace = paced(ended(0.0, 500))
    pace.came([claimed(tasks.nothing, payload="x" * 1_000_000)] * 200, 0)
    pace.came([claimed(tasks.nothing)] * 500, 0)
    assert pace.ahead() == AHEAD


def test_after_a_stall_nothing_is_claimed_ahead_until_tasks_prove_to_be_short():
    pace = paced(ended(0.0, 500))
    pace.stalled()
    assert pace.ahead() == 0
    pace.ran(ended(0.0, 500))
    assert pace.ahead() == AHEAD


def test_no_claim_at_all_changes_nothing():
    pace = paced()
    pace.came([], 0)
    assert pace.ahead() == 4
