"""Percentiles from sketches are near the true ones, and merging sketches is as good as having seen it all."""

from __future__ import annotations

import random
from math import ceil

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from delayedq.pipeline.report.facts import ERROR, bin_of
from delayedq.pipeline.report.tables import merge, percentiles


@pytest.fixture(scope="module")
def durations():
    """Heavy-tailed, over three days of very different lengths; on each, some took no time at all."""
    rng = random.Random(7)
    days = ((0, 20_000), (1, 2_000), (2, 20))
    drawn = [(day, rng.lognormvariate(-3 + day, 2)) for day, n in days for _ in range(n)]
    return [*drawn, (0, 0.0), (3, 0.0), (3, 0.0), (4, None)]


@pytest.fixture(scope="module")
def sketches(spark, durations):
    rows = spark.createDataFrame(pa.table({"day": [d for d, _ in durations], "seconds": [s for _, s in durations]}))
    binned = rows.groupBy("day", bin_of(F.col("seconds")).alias("bin"))
    sums = {"n": F.count("seconds"), "seconds": F.sum("seconds"), "longest": F.max("seconds")}
    return binned.agg(*(total.alias(name) for name, total in sums.items())).where("bin IS NOT NULL").toArrow()


def true_percentile(values, percent):
    return sorted(values)[ceil(len(values) * percent / 100) - 1]


@pytest.mark.parametrize("name", ["p50", "p95", "p99"])
def test_percentiles_over_all_days_are_within_the_stated_error(sketches, durations, name):
    known = [seconds for _, seconds in durations if seconds is not None]
    [row] = percentiles(sketches, []).to_pylist()

    assert row[name] == pytest.approx(true_percentile(known, int(name[1:])), rel=ERROR)
    assert row["n"] == len(known)
    assert row["longest"] == max(known)
    assert row["mean"] == pytest.approx(sum(known) / len(known))


def test_each_day_has_its_own(sketches, durations):
    rows = percentiles(sketches, ["day"]).to_pylist()

    assert [row["day"] for row in rows] == [0, 1, 2, 3]
    for row in rows:
        values = [seconds for day, seconds in durations if day == row["day"]]
        for name in ("p50", "p95", "p99"):
            assert row[name] == pytest.approx(true_percentile(values, int(name[1:])), rel=ERROR)
        assert row["n"] == len(values)


def test_the_percentile_of_all_is_not_the_mean_of_percentiles(sketches):
    daily = [row["p50"] for row in percentiles(sketches, ["day"]).to_pylist()]

    assert percentiles(sketches, []).to_pylist()[0]["p50"] < sum(daily) / len(daily) / 2


def test_merged_sketches_hold_all(sketches, durations):
    merged = merge(sketches, [])

    assert sum(merged["n"].to_pylist()) == len(durations) - 1
    assert merged["bin"].to_pylist() == sorted(set(sketches["bin"].to_pylist()))


def test_nothing_has_no_percentiles(sketches):
    assert percentiles(sketches.slice(0, 0), ["day"]).num_rows == 0
    assert percentiles(sketches.slice(0, 0), []).num_rows == 0
