"""An operator's edits on MariaDB and MySQL: what is to be changed is locked first, if it is not locked already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from delayedq.store.channels.places_held import hold, hold_waiting
from delayedq.store.database import retry_on_deadlock
from delayedq.store.mysql import operator_sql as sql
from delayedq.store.mysql import sql as mysql_sql
from delayedq.store.mysql.values import instant, text
from delayedq.store.operator import OperatorStore, Seen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from delayedq.store.mysql.database import MySQLDatabase
    from delayedq.store.operator import Move, Revival, Rewrite


class MySQLOperatorStore(OperatorStore):
    database: MySQLDatabase
    groups: ClassVar[str] = sql.GROUPS

    def keyed_kinds(self) -> list[str]:
        kinds: list[str] = []
        while rows := self.database.rows(sql.NEXT_KIND, {"kind": kinds[-1] if kinds else ""}):
            kinds.append(rows[0][0])
        return kinds

    def _move(self, moves: Sequence[Move]) -> set[int]:
        with self.database.atomic():
            unchanged = self._unchanged([move.seen for move in moves])
            hold_waiting(self._store, _in_channels(unchanged))
            given = [_moved(move) for move in moves if move.seen.id in unchanged]
            self.database.write_given(sql.MOVE, given)
        return set(unchanged)

    @retry_on_deadlock
    def cancel(self, seen: Sequence[Seen]) -> set[int]:
        with self.database.atomic():
            rows = self.database.rows_of(mysql_sql.KEYS, [one.id for one in seen])
            self.database.lock_to_delete([(row[0], row[1], row[2]) for row in rows])
            unchanged = self._unchanged(seen)
            hold(self._store, _in_channels(unchanged))
            self.database.cancel(unchanged)
        return set(unchanged)

    @retry_on_deadlock
    def rewrite(self, rewrites: Sequence[Rewrite]) -> set[int]:
        with self.database.atomic():
            unchanged = self._unchanged([rewrite.seen for rewrite in rewrites])
            payloads = dict(self.database.rows_of(sql.PAYLOADS, unchanged))
            given = [one for one in rewrites if payloads.get(one.seen.id) == one.before]
            changed = {one.seen.id: unchanged[one.seen.id] for one in given}
            hold_waiting(self._store, _in_channels(changed))
            self.database.write_given(sql.REWRITE, [[one.seen.id, one.after] for one in given])
        return set(changed)

    @retry_on_deadlock
    def stop(self, seen: Sequence[Seen]) -> set[int]:
        with self.database.atomic():
            rows = self.database.rows_of(mysql_sql.KEYS, [one.id for one in seen])
            self.database.lock_to_delete([(row[0], row[1], row[2]) for row in rows])
            held = self._unchanged(seen, sql.HELD)
            hold(self._store, _in_channels(held))
            self.database.write_to(sql.RECORD_STOPPED, held)
            self.database.write_to(mysql_sql.DELETE, held)
        return set(held)

    def _unchanged(self, seen: Iterable[Seen], which: str = sql.WAITING) -> dict[int, bool]:
        """Lock those that are still as seen, that no claim holds (or one does) and no other transaction has locked.

        Tells by their ids whether they have a lease in a channel.
        """
        expected = {one.id: one for one in seen}
        rows = self.database.rows_of(which, expected)
        waiting = [(Seen._make([*row[:3], instant(row[3]), *row[4:6]]), bool(row[6])) for row in rows]
        return {one.id: is_leased for one, is_leased in waiting if one == expected[one.id]}

    def _revive(self, revivals: Sequence[Revival], outcome: str) -> set[int]:
        times = {one.id: None if one.scheduled_at is None else text(one.scheduled_at) for one in revivals}
        with self.database.atomic():
            ended = [row[0] for row in self.database.rows_of(sql.ENDED, times, outcome=outcome)]
            self.database.write_given(sql.REVIVE, [[id_, times[id_]] for id_ in ended])
            revived = {row[0] for row in self.database.rows_of(sql.LIVE, ended)}
            self.database.write_to(mysql_sql.PRUNE, revived)
        return revived


def _in_channels(locked: Mapping[int, bool]) -> list[int]:
    return [id_ for id_, is_leased in locked.items() if is_leased]


def _moved(move: Move) -> list[Any]:
    return [move.seen.id, text(move.scheduled_at), move.queue, move.priority]
