"""The dead letters by what they failed of: groups of those that share a fingerprint (`core.fingerprints`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from delayedq.store import error_groups_sql as sql

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from delayedq.store.database import Database
    from delayedq.store.figures import Grid


class Extent(NamedTuple):
    """A group, and when its first and its last dead letter ended."""

    fingerprint: int
    first_at: datetime
    last_at: datetime


class Newest(NamedTuple):
    """The dead letter of a group that ended last."""

    id: int
    error: str
    kind: str
    queue: str


class ErrorGroups:
    """Those of one database. `groups`: statement that finds them. Every verb may raise django.db.Error."""

    def __init__(self, database: Database, groups: str = sql.GROUPS) -> None:
        self._database = database
        self._groups = groups

    def extents(self, most: int) -> list[Extent]:
        """Up to `most` groups, in no order that says anything; one statement, which reads three rows of each."""
        instant = self._database.dialect.instant
        rows = self._database.counted(self._groups, {"most": most})
        return [Extent(fingerprint, instant(first), instant(last)) for fingerprint, first, last in rows]

    def newest(self, fingerprints: Sequence[int]) -> dict[int, Newest]:
        """The latest of each group that has one; one statement."""
        rows = self._rows(sql.newest(len(fingerprints)), fingerprints)
        return {fingerprints[n]: Newest(id_, error or "", kind, queue) for n, id_, error, kind, queue in rows}

    def sizes(self, fingerprints: Sequence[int], most: int) -> dict[int, int]:
        """How many dead letters each group has, counted up to `most`; one statement."""
        return {fingerprints[n]: size for n, size in self._rows(sql.sizes(len(fingerprints)), fingerprints, most=most)}

    def lately(self, fingerprints: Sequence[int], grid: Grid, most: int) -> dict[int, dict[int, int]]:
        """By group, how many of its latest `most` dead letters ended in each bucket of the grid; one statement."""
        dialect, found = self._database.dialect, {fingerprint: dict[int, int]() for fingerprint in fingerprints}
        times = {"start": dialect.stored(grid.start), "end": dialect.stored(grid.end), "width": grid.width}
        for n, bucket, size in self._rows(sql.lately(len(fingerprints), dialect), fingerprints, most=most, **times):
            found[fingerprints[n]][bucket] = size
        return found

    def _rows(self, statement: str, fingerprints: Sequence[int], **parameters: Any) -> list[tuple[Any, ...]]:
        if not fingerprints:
            return []
        asked = {f"group_{n}": fingerprint for n, fingerprint in enumerate(fingerprints)}
        return self._database.counted(statement, {**asked, **parameters})
