"""The oracle itself: the simulated queue behaves as theory says, before any analytics look at it."""

from __future__ import annotations

from collections import Counter
from statistics import fmean, quantiles

import pytest

from delayedq.core.scaling import Traffic, chance_to_wait
from tests.pipeline.report.simulator import Queue

#: 60% busy: the nearer a queue is to its limit, the longer its averages take to settle.
QUEUES = [
    Queue(rate=0.6, run_seconds=1, threads=1),
    Queue(rate=6, run_seconds=0.5, threads=5),
    Queue(rate=4.5, run_seconds=0.4, threads=4, failing=0.25),
]


@pytest.fixture(scope="module", params=QUEUES, ids=lambda queue: f"{queue.threads} threads, failing {queue.failing}")
def simulated(request):
    return request.param, request.param.lives(150_000)


def test_first_waits_are_those_of_erlang(simulated):
    queue, lives = simulated
    waits = [life.started[0] - life.arrival for life in lives]
    theory = Traffic(queue.attempt_rate, queue.run_seconds)

    assert fmean(waits) == pytest.approx(theory.mean_wait(queue.threads), rel=0.05)
    assert fmean(wait > 1e-9 for wait in waits) == pytest.approx(chance_to_wait(queue.threads, theory.load), rel=0.03)
    assert quantiles(waits, n=20)[-1] == pytest.approx(theory.wait(0.95, queue.threads), rel=0.05)


def test_attempts_are_geometric(simulated):
    queue, lives = simulated
    tries = Counter(len(life.started) for life in lives)

    for attempts in (1, 2, 3):
        expected = queue.failing ** (attempts - 1) * (1 - queue.failing)
        assert tries[attempts] / len(lives) == pytest.approx(expected, abs=0.01)


def test_run_times_have_the_mean_that_was_asked_for(simulated):
    queue, lives = simulated
    runs = [end - start for life in lives for start, end in zip(life.started, life.ended, strict=True)]

    assert fmean(runs) == pytest.approx(queue.run_seconds, rel=0.01)


def test_no_more_run_at_once_than_there_are_threads(simulated):
    queue, lives = simulated
    changes = sorted((t, d) for life in lives for times, d in ((life.ended, -1), (life.started, 1)) for t in times)
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)

    assert most == queue.threads
