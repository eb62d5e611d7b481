"""The analytics of a simulated history reproduce what queueing theory says, within 5%, and its plain sums exactly."""

from __future__ import annotations

from datetime import timedelta
from math import ceil
from statistics import fmean

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from delayedq.core.scaling import Traffic
from delayedq.pipeline.report.facts import ERROR
from delayedq.pipeline.report.tables import Target, measure, span
from delayedq.pipeline.spark.schema import LAKE
from tests.pipeline.report.simulator import EPOCH, Queue, at, history

#: By the name of the queue and of its one task.
QUEUES = {
    "steady": Queue(rate=6, run_seconds=0.5, threads=5),
    "flaky": Queue(rate=4.5, run_seconds=0.4, threads=4, failing=0.25, seed=8),
}
MESSAGES = 100_000
WITHIN = 0.05


@pytest.fixture(scope="module")
def lives():
    return {name: queue.lives(MESSAGES) for name, queue in QUEUES.items()}


@pytest.fixture(scope="module")
def messages(spark, lives):
    rows = [row for name in lives for row in history(lives[name], queue=name, kind=name)]
    days = [
        {**row, "id": number, "schema_version": 1, "day": row["finished_at"].date()} for number, row in enumerate(rows)
    ]
    schema = to_arrow_schema(LAKE, timezone="UTC")
    return spark.createDataFrame(pa.Table.from_pylist(days, schema), LAKE)


@pytest.fixture(scope="module")
def figures(messages, lives):
    until = max(life.ended[-1] for queue in lives.values() for life in queue)
    return measure(messages, EPOCH, at(until + 1), target=Target(seconds=0.5))


@pytest.fixture(params=QUEUES)
def name(request):
    return request.param


def theory(name):
    return Traffic(QUEUES[name].attempt_rate, QUEUES[name].run_seconds)


def waits(lives):
    return [life.started[0] - life.arrival for life in lives]


def runs(lives):
    return [end - start for life in lives for start, end in zip(life.started, life.ended, strict=True)]


def one(figures, table, **where):
    [row] = figures.rows(table, **where)
    return row


def test_waits_are_those_of_the_history_and_of_erlang(figures, lives, name):
    row = one(figures, "by_kind", kind=name, measure="wait")
    expected = theory(name)

    assert row["n"] == MESSAGES
    assert row["mean"] == pytest.approx(fmean(waits(lives[name])), abs=1e-5)
    assert row["mean"] == pytest.approx(expected.mean_wait(QUEUES[name].threads), rel=WITHIN)
    assert row["p95"] == pytest.approx(sorted(waits(lives[name]))[ceil(0.95 * MESSAGES) - 1], rel=ERROR, abs=1e-4)
    assert row["p95"] == pytest.approx(expected.wait(0.95, QUEUES[name].threads), rel=WITHIN)


def test_run_times_count_every_attempt(figures, lives, name):
    row = one(figures, "by_kind", kind=name, measure="run")

    assert row["n"] == len(runs(lives[name]))
    assert row["mean"] == pytest.approx(fmean(runs(lives[name])), abs=1e-5)
    assert row["mean"] == pytest.approx(QUEUES[name].run_seconds, rel=WITHIN)


def test_turnaround_lasts_from_arrival_to_the_last_end(figures, lives, name):
    row = one(figures, "by_kind", kind=name, measure="turnaround")

    assert row["mean"] == pytest.approx(fmean(life.ended[-1] - life.arrival for life in lives[name]), abs=1e-5)


def test_littles_law_holds_of_the_reconstructed_backlog(figures, name):
    rows = figures.rows("backlog", queue=name)
    waiting = sum(row["waiting_mean"] * row["seconds"] for row in rows) / figures.window.seconds
    rate = MESSAGES / figures.window.seconds

    assert waiting == pytest.approx(rate * one(figures, "by_kind", kind=name, measure="wait")["mean"], rel=1e-4)
    assert waiting == pytest.approx(rate * theory(name).mean_wait(QUEUES[name].threads), rel=WITHIN)


def test_as_many_run_on_average_as_there_is_load(figures, lives, name):
    rows = figures.rows("backlog", queue=name)
    area = sum(row["running_mean"] * row["seconds"] for row in rows)

    assert area == pytest.approx(sum(runs(lives[name])), rel=1e-6)
    assert rows[-1]["running"] == rows[-1]["waiting"] == 0


def test_the_backlog_is_that_of_the_history(figures, lives, name):
    row = figures.rows("backlog", queue=name)[10]
    end = row["bucket"] + figures.window.width - EPOCH.timestamp()

    assert row["waiting"] == sum(life.arrival < end <= life.started[0] for life in lives[name])


def test_attempts_are_geometric(figures, name):
    failing = QUEUES[name].failing
    counts = {row["attempts"]: row["n"] for row in figures.rows("retries", kind=name)}

    assert sum(counts.values()) == MESSAGES
    assert counts[1] / MESSAGES == pytest.approx(1 - failing, rel=0.01)
    assert counts.get(2, 0) / MESSAGES == pytest.approx(failing * (1 - failing), rel=0.02)


def test_failures_and_the_time_they_wasted_are_all_counted(figures, lives):
    failed = [end - start for life in lives["flaky"] for start, end in zip(life.started[:-1], life.ended, strict=False)]
    row = one(figures, "failures")

    assert (row["kind"], row["exception"], row["attempts"], row["dead"]) == ("flaky", "app.Flaky", len(failed), 0)
    assert row["messages"] == sum(len(life.started) > 1 for life in lives["flaky"])
    assert row["wasted"] == pytest.approx(sum(failed), rel=1e-5)
    assert row["wasted"] / sum(runs(lives["flaky"])) == pytest.approx(QUEUES["flaky"].failing, rel=WITHIN)


def test_no_attempt_went_missing(figures):
    assert [row["silent"] for row in figures.rows("leases")] == [0, 0]


def test_arrivals_are_as_irregular_as_chance(figures, name):
    rows = [row for row in figures.rows("offered", queue=name) if row["messages"] > 0.9 * 3_600 * QUEUES[name].rate]

    assert fmean(row["dispersion"] for row in rows) == pytest.approx(1, abs=0.15)


def test_the_plan_asks_for_as_many_threads_as_theory(figures, name):
    [plan] = [plan for plan in figures.plans if plan.queue == name]

    assert abs(plan.threads - theory(name).threads_for(0.5, 0.95)) <= 1


def test_the_span_is_from_the_first_arrival_to_the_last_end(messages, lives):
    since, until = span(messages)
    first = min(life.arrival for queue in lives.values() for life in queue)
    last = max(life.ended[-1] for queue in lives.values() for life in queue)

    assert timedelta(0) <= at(first) - since < timedelta(seconds=1)
    assert timedelta(0) < until - at(last) <= timedelta(seconds=1)
