"""What worker processes count for metrics: nothing if nobody reads it; what ended processes have counted stays."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from delayedq import Cancel, Retry
from delayedq.core.bounds import OTHERS
from delayedq.worker.loop import Loop
from delayedq.worker.tally import BOUNDS, NAMES, Counts, Tallies, Tally
from tests.app import tasks
from tests.worker.attempts import playing, run

ECHO = tasks.echo.module_path


@pytest.fixture
def tallied(store, options, tmp_path):
    """Run what is due, and add up what was counted."""

    def drain():
        Loop(store, replace(options, tallies=tmp_path), "test").run()
        return Tallies(tmp_path).total()

    return drain


def test_ends_starts_and_durations_are_counted_by_queue_and_task(store, tallied):
    tasks.echo.enqueue_many([((number,), {}) for number in range(3)])
    counts = tallied()
    names = (store.alias, "default", ECHO)

    assert counts.counters["ended", *names, "succeeded"] == counts.counters["started", *names] == 3
    assert counts.counters["claimed_messages", store.alias] == 3
    assert sum(counts.histograms["run_seconds", *names][:-1]) == 3
    assert sum(counts.histograms["latency_seconds", store.alias, "default"][:-1]) == 3
    assert sum(counts.histograms["round_trip_seconds", store.alias][:-1]) >= counts.counters["claims", store.alias] > 0
    assert counts.gauges["threads", store.alias] == 2


@pytest.mark.parametrize(
    ("body", "name", "labels"),
    [
        (Retry("again"), "retries", ()),
        (Cancel("no"), "ended", ("cancelled",)),
        (ValueError("no fuel"), "ended", ("failed",)),
    ],
)
def test_retries_and_other_ends(tmp_path, body, name, labels):
    def raise_it():
        raise body

    tally = Tally(tmp_path, "default")
    result = run(playing(raise_it, max_attempts=1 if isinstance(body, ValueError) else 8))
    tally.ended(result, labels[0] if labels else None)
    tally.write()
    attempt = result.attempt
    counted = Tallies(tmp_path).total().counters

    assert counted[name, "default", attempt.queue, attempt.kind, *labels] == 1


def test_a_lost_lease_is_no_end(tmp_path):
    tally = Tally(tmp_path, "default")
    tally.ended(run(playing(lambda: None)), "succeeded", lost=True)
    tally.write()

    assert {key[0] for key in Tallies(tmp_path).total().counters} == {"lease_losses", "started"}


def test_without_a_reader_nothing_is_counted_nor_written(tmp_path):
    tally = Tally(None, "default")
    tally.ended(run(playing(lambda: None)), "succeeded")
    tally.write()

    assert not tally._counts.counters
    assert not tally._counts.histograms


def test_many_tasks_share_a_name(tmp_path):
    tally = Tally(tmp_path, "default")
    for number in range(NAMES + 10):
        tally.ended(run(playing(lambda: None, queue=f"q{number}")), "succeeded")
    tally.write()
    counters = Tallies(tmp_path).total().counters

    assert len({key for key in counters if key[0] == "ended"}) == NAMES + 1
    assert counters["ended", "default", OTHERS, OTHERS, "succeeded"] == 10


def test_what_a_process_counted_that_has_ended_is_counted_once_and_its_state_not(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    counts = Counts()
    counts.counters["claims", "default"] = 7
    counts.gauges["threads", "default"] = 4
    (tmp_path / str(ended.pid)).write_text(counts.dumps())
    (tmp_path / str(os.getpid())).write_text(counts.dumps())
    tallies = Tallies(tmp_path)
    totals = [tallies.total() for _ in range(2)]

    assert [total.counters["claims", "default"] for total in totals] == [14, 14]
    assert [total.gauges["threads", "default"] for total in totals] == [4, 4]


#: Higher than the id of any process.
NOBODY = 10_000_000


def ended(directory, *keys):
    """Files of processes that have ended, each of which has counted one key once."""
    for number, key in enumerate(keys):
        counts = Counts()
        counts.counters[key] = 1
        counts.observe(("run_seconds", *key[1:]), 1.0)
        (directory / f"{NOBODY + number}").write_text(counts.dumps())


def test_scrapes_at_the_same_time_count_what_has_ended_once(tmp_path):
    ended(tmp_path, *[("claims", "default")] * 300)
    tallies, begin = Tallies(tmp_path), Barrier(4)

    def scrape(_):
        begin.wait()
        return tallies.total().counters["claims", "default"]

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(scrape, range(4))] == [300] * 4
    assert tallies.total().counters["claims", "default"] == 300


def test_what_has_ended_stays_when_the_process_that_answers_is_replaced(tmp_path):
    ended(tmp_path, ("claims", "default"))
    totals = [Tallies(tmp_path).total() for _ in range(2)]

    assert [total.counters["claims", "default"] for total in totals] == [1, 1]
    assert [sum(total.histograms["run_seconds", "default"][:-1]) for total in totals] == [1, 1]


def die(*_, **__):
    raise KeyboardInterrupt


def test_a_reader_that_dies_before_it_removes_what_it_added_counts_nothing_twice(tmp_path, monkeypatch):
    ended(tmp_path, ("claims", "default"), ("claims", "default"))
    monkeypatch.setattr(Path, "unlink", die)
    with pytest.raises(KeyboardInterrupt):
        Tallies(tmp_path).total()
    monkeypatch.undo()
    assert len([*tmp_path.glob("[0-9]*")]) == 2
    (tmp_path / f"{NOBODY}").replace(tmp_path / "kept")
    ended(tmp_path, ("claims", "default"))  # of another process with the same id

    assert [Tallies(tmp_path).total().counters["claims", "default"] for _ in range(2)] == [3, 3]
    assert not [*tmp_path.glob("[0-9]*")]


def test_processes_that_each_see_other_tasks_share_the_names(tmp_path):
    """As those that are replaced after --max-tasks; what had a name keeps it, so that no counter goes back."""
    tallies, seen = Tallies(tmp_path), Counter()
    for generation in range(2):
        ended(tmp_path, *(("started", "default", f"q{generation}", f"t{number}") for number in range(NAMES)))
        counters = tallies.total().counters
        assert not {key for key, number in seen.items() if counters[key] < number}
        seen = counters

    assert (len(seen), seen.total()) == (NAMES + 1, 2 * NAMES)
    assert seen["started", "default", OTHERS, OTHERS] == NAMES


def test_a_file_that_is_half_written_is_left_out(tmp_path):
    (tmp_path / str(os.getpid())).write_text("[[")

    assert not Tallies(tmp_path).total().counters


def test_a_histogram_has_a_bucket_beyond_its_last_bound():
    counts = Counts()
    counts.observe(("run_seconds",), BOUNDS[0])
    counts.observe(("run_seconds",), 2 * BOUNDS[-1])
    buckets = counts.histograms["run_seconds",]

    assert (buckets[0], buckets[-2], buckets[-1]) == (1, 1, BOUNDS[0] + 2 * BOUNDS[-1])
