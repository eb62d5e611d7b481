"""What a step costs Spark."""

from __future__ import annotations


def jobs(spark):
    """How many Spark has run so far."""
    return spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs()
