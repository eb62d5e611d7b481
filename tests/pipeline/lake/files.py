"""Files of a lake as Spark writes them, written by pyarrow: small, and without Java."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyarrow import parquet

from delayedq.pipeline.lake.columns import ARROW, MEASURED, VERSION
from delayedq.pipeline.lake.table import DataFile

NOON = datetime(2026, 2, 28, 12, tzinfo=UTC)


def row(id_, **columns):
    """A message that ended `id_` seconds after NOON; `columns` are others."""
    end = columns.pop("finished_at", NOON + timedelta(seconds=id_))
    given = {
        "id": id_,
        "state": "succeeded",
        "queue": "default",
        "kind": "app.tasks.send",
        "priority": 0,
        "attempts": 1,
        "max_attempts": 3,
        "created_at": end - timedelta(seconds=3),
        "scheduled_at_initially": end - timedelta(seconds=2),
        "scheduled_at": end - timedelta(seconds=2),
        "started_at": end - timedelta(seconds=1),
        "finished_at": end,
        "worker": "w",
        "payload": f"[{id_}]",
        "schema_version": VERSION,
        "source": "app",
        "batch": 1,
        "day": end.date(),
    }
    return dict.fromkeys(ARROW.names) | given | columns


def write(table, directory, rows, without=()):
    """One file for each day, and what the table has to know of it. without: columns that its writer did not know."""
    store = table.files()
    written = []
    for day in sorted({one["day"] for one in rows}):
        arrow = pa.Table.from_pylist([one for one in rows if one["day"] == day], ARROW).drop_columns(["day", *without])
        path = f"messages/{directory}/day={day}/part-0.parquet"
        with store.open_output_stream(path) as file:
            parquet.write_table(arrow, file)
        [info] = store.get_file_info([path])
        written.append(measured(path, info.size, day, arrow))
    return written


def measured(path, size, day, rows):
    columns = {name: [value for value in rows.column(name).to_pylist() if value is not None] for name in MEASURED}
    least = {name: min(values) for name, values in columns.items() if values}
    most = {name: max(values) for name, values in columns.items() if values}
    nulls = {name: rows.num_rows - len(values) for name, values in columns.items()}
    return DataFile(path, size, rows.num_rows, day, least, most, nulls)


def publish(table, number, rows, source="app", directory=None):
    """A batch of these rows, as an archive publishes it."""
    rows = [one | {"batch": number, "source": source} for one in rows]
    files = write(table, directory or f"{source}-{number}", rows)
    return table.publish(table.snapshot(), source, number, files)


def ids(table, **values):
    """Those of the rows that the newest version has, each as often as it is there."""
    from delayedq.pipeline.lake.rows import WantedRows, read

    wanted = WantedRows(values=values)
    tables = read(table, wanted.files(table.snapshot()), wanted)
    return sorted(id_ for rows in tables for id_ in rows.column("id").to_pylist())
