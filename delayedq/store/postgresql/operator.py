"""An operator's edits on PostgreSQL: each is one statement."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from delayedq.store import keyset_scans_sql
from delayedq.store.operator import OperatorStore, wanted_of
from delayedq.store.postgresql import operator_sql as sql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from delayedq.store.operator import KeysetPage, Move, Revival, Rewrite, Seen, State
    from delayedq.store.protocol import Lane


class PostgreSQLOperatorStore(OperatorStore):
    def keyed_kinds(self) -> list[str]:
        return [row[0] for row in self.database.rows(sql.KEYED_KINDS)]

    def _move(self, moves: Sequence[Move]) -> set[int]:
        parameters = {
            **_seen([move.seen for move in moves]),
            "new_times": [move.scheduled_at for move in moves],
            "new_queues": [move.queue for move in moves],
            "new_priorities": [move.priority for move in moves],
        }
        moved = self.database.ids(sql.MOVE, parameters)
        self._store.notify_after_commit([move.scheduled_at for move in moves])
        return moved

    def cancel(self, seen: Sequence[Seen]) -> set[int]:
        return self.database.ids(sql.CANCEL, _seen(seen))

    def rewrite(self, rewrites: Sequence[Rewrite]) -> set[int]:
        parameters = {
            **_seen([rewrite.seen for rewrite in rewrites]),
            "payloads_before": [rewrite.before for rewrite in rewrites],
            "payloads": [rewrite.after for rewrite in rewrites],
        }
        return self.database.ids(sql.REWRITE, parameters)

    def stop(self, seen: Sequence[Seen]) -> set[int]:
        return self.database.ids(sql.STOP, _seen(seen))

    def _revive(self, revivals: Sequence[Revival], outcome: str) -> set[int]:
        times = [revival.scheduled_at for revival in revivals]
        ids = [revival.id for revival in revivals]
        revived = self.database.ids(sql.REVIVE, {"ids": ids, "times": times, "outcome": outcome})
        self._store.notify_after_commit(times)
        return revived

    def _scan_lanes(self, lanes: Sequence[Lane], state: State | None, parameters: dict[str, Any]) -> list[KeysetPage]:
        """All lanes in one statement."""
        words = {"queue": "lane.queue", "priority": "lane.priority"}
        along = keyset_scans_sql.lane(self.database.dialect, state, wanted_of(parameters), **words)
        places = {"queues": [lane.queue for lane in lanes], "priorities": [lane.priority for lane in lanes]}
        rows = self.database.rows(sql.LANES.format(lane=along), {**parameters, **places})
        rows.sort(key=itemgetter(4, 3))
        return [self._page([*scanned], parameters) for _, scanned in groupby(rows, itemgetter(4))]


def _seen(seen: Sequence[Seen]) -> dict[str, Any]:
    return {
        "ids": [one.id for one in seen],
        "generations": [one.generation for one in seen],
        "attempts": [one.attempt for one in seen],
        "times": [one.scheduled_at for one in seen],
        "queues": [one.queue for one in seen],
        "priorities": [one.priority for one in seen],
    }
