"""What the core asks of the archive: messages by id or key, found by `delayedq.history.find`, and its open batch."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import router

from delayedq.conf import get_settings
from delayedq.core.fingerprints import last_error
from delayedq.core.lifecycle import FinalOutcome
from delayedq.exceptions import LakeUnusable
from delayedq.models import FinishedMessage
from delayedq.operations.archived import Found
from delayedq.store import default_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

#: What the lake knows of a row, and the history table does not.
_OF_THE_LAKE = {"state", "schema_version", "source", "batch", "day"}


def find_in_lake(alias: str, id_: int | None, key: str | None) -> Found:
    """Messages of the lake, if there is one, and it is of this database. Raises LakeUnusable."""
    if not _has_lake(alias):
        return Found([])
    with _libraries():
        from delayedq.pipeline.history import find  # what it needs is an extra
    found = find(id=id_, key=key)
    return Found([as_ended(row) for row in found.rows], found.complete)


def look(alias: str) -> None:
    """Open the table of the lake, if there should be one. Raises LakeUnusable."""
    if not _has_lake(alias):
        return
    with _libraries():
        from delayedq.pipeline import books  # what it needs is an extra
        from delayedq.pipeline.lake.table import LakeTable
    table = LakeTable(str(get_settings().LAKE))
    if books.is_there(table):
        table.snapshot()


def _has_lake(alias: str) -> bool:
    return get_settings().LAKE is not None and alias == default_store().alias


@contextmanager
def _libraries() -> Iterator[None]:
    """Raises LakeUnusable if what the block imports is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        raise LakeUnusable(f"{missing} is missing here: pip install 'delayedq[lake]'.") from None


def open_since(alias: str) -> datetime | None:
    """Since when a batch of this database has been open; None if none is. Raises django.db.Error."""
    from delayedq.pipeline.models import ArchiveBatch  # apps are loaded by now

    if router.db_for_read(ArchiveBatch) != alias:
        return None
    return ArchiveBatch.objects.filter(is_open__in=[True]).values_list("planned_at", flat=True).first()


def as_ended(row: dict[str, Any]) -> FinishedMessage:
    """A row of the lake as a row of the history table, which it is not.

    The line and the fingerprint of the last error are not in the lake: they follow from `errors`.
    """
    columns = {name: value for name, value in row.items() if name not in _OF_THE_LAKE}
    derived = last_error(row["errors"])._asdict() if row["state"] == FinalOutcome.FAILED else {}
    return FinishedMessage(**columns, **derived, outcome=row["state"])
