"""How much a worker claims ahead."""

from __future__ import annotations

import pytest

from delayedq.core.lifecycle import NotStarted, Returned
from delayedq.worker.loop import BATCH, BATCH_BYTES, Prefetch
from delayedq.worker.transitions import AttemptResult
from tests.app import tasks
from tests.worker.attempts import attempt_of, claimed


def ended(seconds, count=100, task=tasks.nothing):
    attempt = attempt_of(task)
    return [AttemptResult(attempt, Returned(), 10.0, 10.0 + seconds) for _ in range(count)]


def prefetching(*batches, threads=4):
    prefetch = Prefetch(threads)
    for batch in batches:
        prefetch.ran(batch)
    return prefetch


def test_a_new_worker_claims_a_little_ahead():
    assert prefetching().ahead() == 4


@pytest.mark.parametrize("seconds", [0.5, 5.0, 500.0])
def test_beside_slow_tasks_nothing_is_claimed_ahead(seconds):
    assert prefetching(ended(seconds)).ahead() == 0


@pytest.mark.parametrize("seconds", [0.0, 0.00001, 0.0001])
def test_beside_fast_tasks_as_much_is_claimed_ahead_as_may_be(seconds):
    assert prefetching(ended(seconds, 500)).ahead() == 2 * BATCH


def test_more_threads_claim_more_ahead():
    few, many = (prefetching(ended(0.02, 500), threads=threads).ahead() for threads in (2, 8))
    assert few == pytest.approx(many / 4, abs=1)
    assert few > 0


def test_a_change_of_prefetch_is_noticed_within_a_batch():
    assert prefetching(ended(0.0001, 500), ended(5.0, 20)).ahead() == 0
    assert prefetching(ended(5.0, 500), ended(0.0001, 500)).ahead() == 2 * BATCH


def test_one_slow_task_among_fast_ones_does_not_stop_claims_ahead():
    assert prefetching(ended(0.0001, 500), ended(1.0, 1)).ahead() > 0


def test_what_never_ran_says_nothing_about_the_prefetch():
    unstarted = [AttemptResult(attempt_of(tasks.nothing), NotStarted(), None, 10.0)] * 100
    assert prefetching(ended(5.0), unstarted).ahead() == 0
    assert prefetching([]).ahead() == prefetching().ahead()


def test_async_tasks_occupy_no_thread_however_long_they_take():
    prefetch = prefetching(ended(60.0, task=tasks.aecho))
    prefetch.came([claimed(tasks.aecho)] * 500, 500)
    assert prefetch.ahead() == 2 * BATCH


@pytest.mark.parametrize("size", [100_000, 1_000_000])
def test_large_payloads_are_bounded_together(size):
    prefetch = prefetching(ended(0.0, 500))
    prefetch.came([claimed(tasks.nothing, payload="x" * size)] * 200, 0)
    assert 0 < prefetch.ahead() * size <= BATCH_BYTES * 1.01


def test_payloads_that_become_small_again_are_claimed_in_numbers():
    prefetch = prefetching(ended(0.0, 500))
    prefetch.came([claimed(tasks.nothing, payload="x" * 1_000_000)] * 200, 0)
    prefetch.came([claimed(tasks.nothing)] * 500, 0)
    assert prefetch.ahead() == 2 * BATCH


def test_after_a_stall_nothing_is_claimed_ahead_until_tasks_prove_to_be_short():
    prefetch = prefetching(ended(0.0, 500))
    prefetch.stalled()
    assert prefetch.ahead() == 0
    prefetch.ran(ended(0.0, 500))
    assert prefetch.ahead() == 2 * BATCH


def test_no_claim_at_all_changes_nothing():
    prefetch = prefetching()
    prefetch.came([], 0)
    assert prefetch.ahead() == 4
