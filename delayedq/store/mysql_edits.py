"""An operator's edits on MariaDB and MySQL: what is to be changed is locked first, if nobody has locked it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.db import transaction

from delayedq.store import mysql_edits_sql as sql
from delayedq.store import mysql_sql, walks_sql
from delayedq.store.edits import Seen
from delayedq.store.mysql_again import again
from delayedq.store.mysql_rows import MySQLRows
from delayedq.store.mysql_values import instant, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from delayedq.store.edits import Move, Revival


class MySQLEdits(MySQLRows):
    _after: ClassVar[str] = walks_sql.BY_CHOICE

    def _stored(self, moment: datetime) -> str:
        return text(moment)

    def _instant(self, stored: datetime) -> datetime:
        return instant(stored)

    def keyed_kinds(self) -> list[str]:
        kinds: list[str] = []
        while rows := self._rows(sql.NEXT_KIND, {"kind": kinds[-1] if kinds else ""}):
            kinds.append(rows[0][0])
        return kinds

    @again
    def move(self, moves: Sequence[Move], now: datetime | None = None) -> set[int]:
        with transaction.atomic(using=self.alias):
            unchanged = self._unchanged([move.seen for move in moves], now)
            given = [_moved(move) for move in moves if move.seen.id in unchanged]
            self._write_given(sql.MOVE, given, now)
        return unchanged

    @again
    def cancel(self, seen: Sequence[Seen], now: datetime | None = None) -> set[int]:
        with transaction.atomic(using=self.alias):
            rows = self._rows_of(mysql_sql.KEYS, [one.id for one in seen])
            self._lock_to_delete([(row[0], row[1], row[2]) for row in rows])
            unchanged = self._unchanged(seen, now)
            self._cancel(unchanged, None, now)
        return unchanged

    def _unchanged(self, seen: Iterable[Seen], now: datetime | None) -> set[int]:
        """Lock those that are still as seen, and that nobody holds or has locked."""
        expected = {one.id: one for one in seen}
        rows = self._rows_of(sql.WAITING, expected, now=text(now))
        waiting = [Seen._make([*row[:3], instant(row[3]), *row[4:]]) for row in rows]
        return {one.id for one in waiting if one == expected[one.id]}

    @again
    def revive(self, revivals: Sequence[Revival], outcome: str, now: datetime | None = None) -> set[int]:
        times = {one.id: None if one.scheduled_at is None else text(one.scheduled_at) for one in revivals}
        with transaction.atomic(using=self.alias):
            ended = [row[0] for row in self._rows_of(sql.ENDED, times, outcome=outcome)]
            self._write_given(sql.REVIVE, [[id_, times[id_]] for id_ in ended], now)
            revived = {row[0] for row in self._rows_of(sql.LIVE, ended)}
            self._write_to(mysql_sql.PRUNE, revived)
        return revived


def _moved(move: Move) -> list[Any]:
    return [move.seen.id, text(move.scheduled_at), move.queue, move.priority]
