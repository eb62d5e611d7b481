"""Can the history table of every database hold the rows of a lake? Others may have written to it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from delayedq.core.bounds import EARLIEST, KEY_LENGTH, NAME_LENGTH
from delayedq.exceptions import LakeUnusable
from delayedq.sql.states import FINAL_STATES

if TYPE_CHECKING:
    from collections.abc import Iterator

_LATEST = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
#: Columns that may be NULL in the table.
_NULLABLE = {"key", "started_at", "worker", "metadata", "result", "errors"}
#: Those that the table lacks.
_OF_THE_LAKE = {"schema_version", "source", "batch", "day"}
#: In characters.
_LENGTHS = {"queue": NAME_LENGTH, "kind": NAME_LENGTH, "worker": NAME_LENGTH, "key": KEY_LENGTH}


def check(root: str, rows: pa.Table) -> None:
    """Raises LakeUnusable, naming a row of the lake at `root` that no history table can hold. rows: as in ARROW."""
    for name in rows.column_names:
        if name in _OF_THE_LAKE:
            continue
        for wrong, said in _wrong(name, rows.column(name)):
            if pc.any(wrong).as_py():
                id_ = rows.column("id").filter(wrong)[0]
                raise LakeUnusable(
                    f"Message {id_} of the lake at {root} was not written by delayedq, and can't be put back: its "
                    f"{name} {said}."
                )


def _wrong(name: str, column: pa.ChunkedArray) -> Iterator[tuple[pa.ChunkedArray, str]]:
    """What can be wrong with a column: where it is, and in words."""
    if name not in _NULLABLE:
        yield pc.is_null(column), "is NULL"
    if pa.types.is_string(column.type):
        yield pc.match_substring(column, "\0"), "has a NUL in it"
    if name in _LENGTHS:
        yield pc.greater(pc.utf8_length(column), _LENGTHS[name]), f"has more than {_LENGTHS[name]} characters"
    if name == "state":
        yield pc.invert(pc.is_in(column, pa.array(FINAL_STATES, column.type))), f"is none of {', '.join(FINAL_STATES)}"
    if pa.types.is_timestamp(column.type):
        least, most = (pa.scalar(moment, column.type) for moment in (EARLIEST, _LATEST))
        yield pc.or_(pc.less(column, least), pc.greater(column, most)), "is not a time of the years 1000 to 9999"
