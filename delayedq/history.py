"""Read what has ended from database and lake together, without Spark: `read` gives a table, `find` messages.

    from delayedq import history

    table = history.read(since=datetime(2026, 3, 1, tzinfo=UTC), queue="mail")  # pyarrow.Table
    frame = table.to_pandas()                                                   # or polars.from_arrow(table)

The lake needs `pip install "delayedq[lake]"` and "delayedq.pipeline" in INSTALLED_APPS.
"""

from __future__ import annotations

from delayedq.pipeline.history import Archived, find, read

__all__ = ["Archived", "find", "read"]
