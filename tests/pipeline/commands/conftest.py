"""An archive of the test's database and a lake. What needs PySpark is imported in the fixtures: it may be missing."""

from __future__ import annotations

import pytest


@pytest.fixture
def lake(spark, tmp_path):
    from delayedq.pipeline.spark.lake import Lake

    return Lake(spark, str(tmp_path / "lake"))


@pytest.fixture
def archiving(spark, store, address, lake):
    """Makes an `Archiving` of this database and lake. here=None: Spark's workers read and delete, not this process."""
    from delayedq.pipeline.commands.archive import Archiving

    return lambda **changes: Archiving(spark, store, address, lake.path, **{"here": address} | changes)
