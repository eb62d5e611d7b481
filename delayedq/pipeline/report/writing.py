"""Write the report: a page for people, and every figure in it as Parquet and CSV for further questions."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import csv, parquet

from delayedq.pipeline.report.page import render

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from delayedq.pipeline.report.capacity import Plan
    from delayedq.pipeline.report.figures import Figures

PAGE = "report.html"
TABLES = "tables"


def write(figures: Figures, directory: Path, made_at: datetime) -> Path:
    """Write `report.html` and `tables/*.parquet, *.csv` into a directory of this machine; returns the page's path.

    What an earlier report left there under these names is replaced.
    """
    tables = directory / TABLES
    tables.mkdir(parents=True, exist_ok=True)
    for name, table in {**figures.tables, "capacity": capacity(figures.plans)}.items():
        parquet.write_table(table, tables / f"{name}.parquet", compression="zstd")
        csv.write_csv(table, tables / f"{name}.csv")
    page = directory / PAGE
    page.write_text(render(figures, made_at), encoding="utf-8")
    return page


def capacity(plans: list[Plan]) -> pa.Table:
    """queue, mean_load, peak_load (erlangs), peak_begins, threads, peak_threads, low, high."""
    return pa.Table.from_pylist([_row(plan) for plan in plans], _CAPACITY)


def _row(plan: Plan) -> dict[str, object]:
    row = asdict(plan)
    del row["peak"]
    return row | {"peak_load": plan.peak.traffic.load, "peak_begins": plan.peak.begins}


_CAPACITY = pa.schema(
    [
        ("queue", pa.string()),
        ("mean_load", pa.float64()),
        ("peak_load", pa.float64()),
        ("peak_begins", pa.float64()),
        ("threads", pa.int64()),
        ("peak_threads", pa.int64()),
        ("low", pa.int64()),
        ("high", pa.int64()),
    ]
)
