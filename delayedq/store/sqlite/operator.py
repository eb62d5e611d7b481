"""An operator's edits on SQLite: a statement for each message, in one short transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from delayedq.core.channels import channel_of
from delayedq.store.channels.places_held import hold, hold_waiting
from delayedq.store.operator import OperatorStore
from delayedq.store.sqlite import operator_sql as sql
from delayedq.store.sqlite.values import text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from delayedq.store.operator import Move, Revival, Rewrite, Seen


class SQLiteOperatorStore(OperatorStore):
    def keyed_kinds(self) -> list[str]:
        return [row[0] for row in self.database.rows(sql.KEYED_KINDS)]

    def _move(self, moves: Sequence[Move]) -> set[int]:
        moment = self.database.now()
        with self.database.atomic():
            return self._changed(sql.MOVE, [_moved(move, moment) for move in moves])

    def cancel(self, seen: Sequence[Seen]) -> set[int]:
        moment = self.database.now()
        with self.database.atomic():
            return self._ended(sql.RECORD_CANCELLED, [_seen(one, moment) for one in seen])

    def rewrite(self, rewrites: Sequence[Rewrite]) -> set[int]:
        moment = self.database.now()
        with self.database.atomic():
            return self._changed(sql.REWRITE, [_rewritten(rewrite, moment) for rewrite in rewrites])

    def stop(self, seen: Sequence[Seen]) -> set[int]:
        moment = self.database.now()
        with self.database.atomic():
            return self._ended(sql.RECORD_STOPPED, [_seen(one, moment) for one in seen])

    def _revive(self, revivals: Sequence[Revival], outcome: str) -> set[int]:
        with self.database.atomic():
            revived = self._each(sql.REVIVE, [{**_revival(one), "outcome": outcome} for one in revivals])
            return self._each(sql.DELETE_ENDED, [{"id": id_} for id_ in revived])

    def _changed(self, statement: str, given: Iterable[dict[str, Any]]) -> set[int]:
        """Those that the statement has changed, which wait again."""
        rows = self._rows(statement, given)
        leased = [id_ for id_, token in rows if token is not None]
        hold_waiting(self._store, leased)
        self._each(sql.TAKE_LEASE, [{"id": id_} for id_ in leased])
        return {id_ for id_, _ in rows}

    def _ended(self, statement: str, given: Iterable[dict[str, Any]]) -> set[int]:
        """Those that the statement has recorded, which it deletes."""
        recorded = self._rows(statement, given)
        hold(self._store, [id_ for id_, metadata in recorded if channel_of(metadata) is not None])
        return self._each(sql.DELETE, [{"id": id_} for id_, _ in recorded])

    def _each(self, statement: str, given: Iterable[dict[str, Any]]) -> set[int]:
        """The ids that a statement answers with, for one set of parameters after the other."""
        return {row[0] for row in self._rows(statement, given)}

    def _rows(self, statement: str, given: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
        return [row for parameters in given for row in self.database.rows(statement, parameters)]


def _seen(seen: Seen, now: datetime) -> dict[str, Any]:
    return {**seen._asdict(), "scheduled_at": text(seen.scheduled_at), "now": text(now)}


def _moved(move: Move, now: datetime) -> dict[str, Any]:
    new = {"new_time": text(move.scheduled_at), "new_queue": move.queue, "new_priority": move.priority}
    return {**_seen(move.seen, now), **new}


def _rewritten(rewrite: Rewrite, now: datetime) -> dict[str, Any]:
    return {**_seen(rewrite.seen, now), "payload_before": rewrite.before, "payload": rewrite.after}


def _revival(revival: Revival) -> dict[str, Any]:
    return {"id": revival.id, "due": None if revival.scheduled_at is None else text(revival.scheduled_at)}
