"""An operator's edits on PostgreSQL: each is one statement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from delayedq.store import postgresql_edits_sql as sql
from delayedq.store.walks import WalksAtOnce

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from delayedq.store.edits import Move, Revival, Seen


class PostgreSQLEdits(WalksAtOnce):
    def _stored(self, moment: datetime) -> datetime:
        return moment

    def _instant(self, stored: datetime) -> datetime:
        return stored

    def keyed_kinds(self) -> list[str]:
        return [row[0] for row in self._rows(sql.KEYED_KINDS, {})]

    def move(self, moves: Sequence[Move], now: datetime | None = None) -> set[int]:
        parameters = {
            **_seen([move.seen for move in moves]),
            "new_times": [move.scheduled_at for move in moves],
            "new_queues": [move.queue for move in moves],
            "new_priorities": [move.priority for move in moves],
            "now": now,
        }
        moved = {row[0] for row in self._rows(sql.MOVE, parameters)}
        self._announce_times([move.scheduled_at for move in moves])
        return moved

    def cancel(self, seen: Sequence[Seen], now: datetime | None = None) -> set[int]:
        return {row[0] for row in self._rows(sql.CANCEL, {**_seen(seen), "now": now})}

    def revive(self, revivals: Sequence[Revival], outcome: str, now: datetime | None = None) -> set[int]:  # noqa: ARG002
        times = [revival.scheduled_at for revival in revivals]
        ids = [revival.id for revival in revivals]
        revived = {row[0] for row in self._rows(sql.REVIVE, {"ids": ids, "times": times, "outcome": outcome})}
        self._announce_times(times)
        return revived


def _seen(seen: Sequence[Seen]) -> dict[str, Any]:
    return {
        "ids": [one.id for one in seen],
        "generations": [one.generation for one in seen],
        "attempts": [one.attempt for one in seen],
        "times": [one.scheduled_at for one in seen],
        "queues": [one.queue for one in seen],
        "priorities": [one.priority for one in seen],
    }
