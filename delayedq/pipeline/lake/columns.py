"""The columns of the lake. They are only ever added, before `day`, and then VERSION is raised.

A reader finds NULL in the columns that an older writer did not know.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltalake import Schema

#: Of the columns. Each row says under which one it was written, and the table which one it has.
VERSION = 2

#: By the name of a column: its type, as Delta Lake calls it. All may be NULL for a reader.
COLUMNS = {
    "id": "long",
    "state": "string",
    "queue": "string",
    "kind": "string",
    "key": "string",
    "priority": "short",
    "attempts": "short",
    "max_attempts": "short",
    "created_at": "timestamp",
    "scheduled_at_initially": "timestamp",
    "scheduled_at": "timestamp",
    "started_at": "timestamp",
    "finished_at": "timestamp",
    "worker": "string",
    "payload": "string",
    "metadata": "string",
    "result": "string",
    "errors": "string",
    "schema_version": "integer",
    #: Whose row it is: the name of the database, and the number of its batch.
    "source": "string",
    "batch": "long",
    #: That of `finished_at` (UTC). It is the name of a directory, and in no file.
    "day": "date",
}
PARTITIONED_BY = "day"
#: The columns whose least and greatest value is known of each file.
MEASURED = ("id", "queue", "kind", "key", "finished_at", "source", "batch")

_ARROW = {
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
}


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """These columns, as pyarrow has them."""
    return pa.schema([(name, _ARROW[type_]) for name, type_ in columns.items()])


#: As pyarrow has them.
ARROW = arrow_schema(COLUMNS)


def delta_schema(columns: Mapping[str, str] = COLUMNS) -> Schema:
    """As the table has them."""
    from deltalake import Schema  # executors know the columns, and need no table

    fields = [{"name": name, "type": type_, "nullable": True, "metadata": {}} for name, type_ in columns.items()]
    return Schema.from_json(json.dumps({"type": "struct", "fields": fields}))
