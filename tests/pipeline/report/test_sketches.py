"""Percentiles from sketches are near the true ones, and merging sketches is as good as having seen it all."""

from __future__ import annotations

import random
from math import ceil

import pytest
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from delayedq.pipeline.report.sketches import ERROR, merge, percentiles, sketch


@pytest.fixture(scope="module")
def durations():
    """Heavy-tailed, over three days of very different lengths."""
    rng = random.Random(7)
    return [(day, rng.lognormvariate(-3 + day, 2)) for day, n in ((0, 20_000), (1, 2_000), (2, 20)) for _ in range(n)]


@pytest.fixture(scope="module")
def sketches(spark, durations):
    return sketch(spark.createDataFrame(durations, "day int, seconds double"), ["day"])


def true_percentile(values, percent):
    return sorted(values)[ceil(len(values) * percent / 100) - 1]


@pytest.mark.parametrize("name", ["p50", "p95", "p99"])
def test_percentiles_over_all_days_are_within_the_stated_error(sketches, durations, name):
    row = percentiles(sketches, []).first()
    truth = true_percentile([seconds for _, seconds in durations], int(name[1:]))

    assert row[name] == pytest.approx(truth, rel=ERROR)
    assert row["n"] == len(durations)
    assert row["longest"] == max(seconds for _, seconds in durations)
    assert row["mean"] == pytest.approx(sum(seconds for _, seconds in durations) / len(durations))


def test_each_day_has_its_own(sketches, durations):
    for row in percentiles(sketches, ["day"]).collect():
        values = [seconds for day, seconds in durations if day == row["day"]]
        assert row["p95"] == pytest.approx(true_percentile(values, 95), rel=ERROR)
        assert row["n"] == len(values)


def test_the_percentile_of_all_is_not_the_mean_of_percentiles(sketches):
    daily = [row["p50"] for row in percentiles(sketches, ["day"]).collect()]

    assert percentiles(sketches, []).first()["p50"] < sum(daily) / len(daily) / 2


def test_merged_sketches_equal_the_sketch_of_all(spark, sketches, durations):
    whole = sketch(spark.createDataFrame(durations, "day int, seconds double"), [])

    assertDataFrameEqual(merge(sketches, []), whole, rtol=1e-9)


def test_no_time_at_all_is_a_duration_too(spark):
    zeros = spark.range(3).select(F.lit(0.0).alias("seconds"))

    row = percentiles(sketch(zeros, []), []).first()
    assert (row["n"], row["p99"], row["longest"]) == (3, 0.0, 0.0)


def test_nothing_has_no_percentiles(sketches):
    assert percentiles(sketches.where("day = 9"), ["day"]).collect() == []
