"""The store on SQLite: one writer at a time, so each verb that writes is one short transaction.

A transaction begins with its first write, or with BEGIN IMMEDIATE where the database's OPTIONS say so: it never reads
first and then waits for the write lock with a stale snapshot. Whatever may find nothing to do reads outside of a
transaction first, so an idle worker never locks the file. Time is the host's, which is the database's here.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.utils import timezone

from delayedq.store import sqlite_sql as sql
from delayedq.store.base import in_lane_order, new_token, offered
from delayedq.store.listen import SQLiteListener
from delayedq.store.protocol import Claimed, Flaw, Lane, Offered, Sight
from delayedq.store.sqlite_edits import SQLiteEdits
from delayedq.store.sqlite_values import instant, text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime

    from delayedq.store.protocol import Condition, Finish, GiveBack, Listener, Offer, OnConflict

OPTIONS_HINT = (
    'Set OPTIONS = {"transaction_mode": "IMMEDIATE", "timeout": 20, '
    '"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"}.'
)


class SQLiteStore(SQLiteEdits):
    def _many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> int:
        """Run a statement once per row; returns how many rows of the table it changed."""
        with self.connection.cursor() as cursor:
            cursor.executemany(statement, list(rows))
            changed: int = cursor.rowcount
        return changed

    def listener(self) -> Listener:
        return SQLiteListener(self.alias)

    def flaws(self, *, connect: bool) -> list[Flaw]:
        found = []
        if self.connection.settings_dict.get("OPTIONS", {}).get("transaction_mode") != "IMMEDIATE":
            problem = "On SQLite, transactions that read before they write may fail with 'database is locked'."
            found.append(Flaw("delayedq.W001", problem, OPTIONS_HINT))
        if connect and not self._is_in_memory():
            mode = self._rows(sql.JOURNAL_MODE, {})[0][0]
            if mode != "wal":
                problem = f"SQLite's journal mode is {mode}: readers and workers block each other."
                found.append(Flaw("delayedq.W002", problem, OPTIONS_HINT))
        return found

    def _is_in_memory(self) -> bool:
        return not self._rows(sql.FILE, {})[0][0]

    def now(self) -> datetime:
        return timezone.now()

    # Offers

    def _offer_one(self, offer: Offer, on_conflict: OnConflict, now: datetime | None) -> Offered:
        moment = now or timezone.now()
        parameters = {name: getattr(offer, name) for name in sql.OFFER_COLUMNS}
        parameters["scheduled_at"] = text(offer.scheduled_at or moment)
        parameters["now"] = text(moment)
        rows = self._rows(sql.OFFER[on_conflict], parameters)
        return offered(rows[0] if rows else None)

    def _offer_wave(self, offers: Sequence[Offer], on_conflict: OnConflict, now: datetime | None) -> list[Offered]:
        moment = now or timezone.now()
        return [self._offer_one(offer, on_conflict, moment) for offer in offers]

    # The life of a lease

    def look(self, queues: Collection[str] | None = None, now: datetime | None = None) -> list[Sight]:
        moment = now or timezone.now()
        rows = self._rows(sql.LOOK, {"now": text(moment)})
        return [_sight(*row, moment=moment) for row in rows if queues is None or row[0] in queues]

    def lanes(self) -> list[Lane]:
        return [Lane(*row) for row in self._rows(sql.LANES, {})]

    def glance(self, lanes: Sequence[Lane], now: datetime | None = None) -> list[Sight]:
        moment = now or timezone.now()
        return [
            _sight(lane.queue, lane.priority, first_at, moment=moment)
            for lane in lanes
            for (first_at,) in self._rows(sql.GLANCE, {**_lane(lane), "now": text(moment)})
        ]

    def claim(
        self, lanes: Sequence[Lane], limit: int, lease: timedelta, worker: str, now: datetime | None = None
    ) -> list[Claimed]:
        moment = now or timezone.now()
        parameters = _leased(moment, lease, worker)
        claimed: list[Claimed] = []
        if lanes := self._due(lanes, moment) if limit > 0 else []:
            with transaction.atomic(using=self.alias):
                for lane in lanes:
                    if len(claimed) < limit:
                        claimed += self._claim_lane(lane, {**parameters, "limit": limit - len(claimed)})
        return in_lane_order(claimed, lanes)

    def _due(self, lanes: Sequence[Lane], moment: datetime) -> list[Lane]:
        return [lane for lane in lanes if self._rows(sql.IS_DUE, {**_lane(lane), "now": text(moment)})]

    def _claim_lane(self, lane: Lane, parameters: dict[str, Any]) -> list[Claimed]:
        return [_claimed(row) for row in self._rows(sql.CLAIM, {**_lane(lane), **parameters})]

    def claim_matching(
        self,
        lane: Lane,
        conditions: Sequence[Condition],
        limit: int,
        lease: timedelta,
        worker: str,
        now: datetime | None = None,
    ) -> list[Claimed]:
        moment = now or timezone.now()
        matching = {**_lane(lane), "conditions": _conditions(conditions), "now": text(moment)}
        if not self._rows(sql.IS_DUE_MATCHING, matching):
            return []
        parameters = {**matching, **_leased(moment, lease, worker), "limit": limit}
        return in_lane_order(map(_claimed, self._rows(sql.CLAIM_MATCHING, parameters)), [lane])

    def claim_unchanged(
        self, id_: int, generation: int, lease: timedelta, worker: str, now: datetime | None = None
    ) -> Claimed | None:
        parameters = {"id": id_, "generation": generation, **_leased(now or timezone.now(), lease, worker)}
        rows = self._rows(sql.CLAIM_UNCHANGED, parameters)
        return _claimed(rows[0]) if rows else None

    def _finish(self, finishes: Sequence[Finish], now: datetime | None) -> set[int]:
        moment = now or timezone.now()
        recorded = self._many(sql.RECORD, (_record(finish, moment) for finish in finishes))
        if recorded < len(finishes):
            finishes = [finish for finish in finishes if self._rows(sql.IS_HELD, _lease(finish.claimed))]
        self._many(sql.DELETE, (_fence(finish.claimed) for finish in finishes))
        return {finish.claimed.id for finish in finishes}

    def _give_back(self, returns: Sequence[GiveBack], now: datetime | None) -> set[int]:
        moment = now or timezone.now()
        settled = set()
        for back in returns:
            parameters = {
                "refund": 0 if back.charged else 1,
                "scheduled_at": _due_again(back, moment),
                "errors": back.errors,
                "metadata": back.metadata,
                **_lease(back.claimed),
            }
            settled |= {row[0] for row in self._rows(sql.GIVE_BACK, parameters)}
        return settled

    def _discard(self, claims: Sequence[Claimed]) -> set[int]:
        return {row[0] for claimed in claims for row in self._rows(sql.DISCARD, _lease(claimed))}

    def _rearm(self, claims: Sequence[Claimed]) -> set[int]:
        return {row[0] for claimed in claims for row in self._rows(sql.REARM, _lease(claimed))}

    def _record_superseded(self, ran: Sequence[Finish | GiveBack], worker: str, now: datetime | None) -> None:
        moment = now or timezone.now()
        last = self._rows(sql.RESERVE_IDS, {"count": len(ran)})[0][0]
        self._many(
            sql.RECORD_SUPERSEDED,
            (_superseded(id_, t, worker, moment) for id_, t in enumerate(ran, start=last - len(ran) + 1)),
        )

    def renew(
        self, held: Sequence[tuple[int, int]], lease: timedelta, now: datetime | None = None
    ) -> set[tuple[int, int]]:
        until = text((now or timezone.now()) + lease)
        with transaction.atomic(using=self.alias):
            return {
                (id_, token)
                for id_, token in held
                if not self._rows(sql.RENEW, {"id": id_, "lease_token": token, "until": until})
            }

    def release(self, held: Sequence[tuple[int, int]]) -> None:
        with transaction.atomic(using=self.alias):
            self._many(sql.RELEASE, held)

    def _unschedule(self, kind: str, key: str, now: datetime | None) -> bool:
        parameters = {"kind": kind, "key": key, "now": text(now or timezone.now())}
        with transaction.atomic(using=self.alias):
            recorded = self._rows(sql.RECORD_UNSCHEDULED, parameters)
            if recorded:
                self._many(sql.DELETE_BY_KEY, [(kind, key)])
        return bool(recorded)

    def _drop_all(self, queue: str, now: datetime | None) -> int:
        with transaction.atomic(using=self.alias):
            recorded = self._rows(sql.RECORD_ALL, {"queue": queue, "now": text(now or timezone.now())})
            self._many(sql.DELETE_BY_ID, recorded)
        return len(recorded)

    def withdraw(self, ids: Iterable[int], errors: str | None = None, now: datetime | None = None) -> set[int]:
        parameters = {"errors": errors, "now": text(now or timezone.now())}
        with transaction.atomic(using=self.alias):
            rows = [row for id_ in ids for row in self._rows(sql.RECORD_WITHDRAWN, {**parameters, "id": id_})]
            self._many(sql.DELETE_BY_ID, rows)
        return {row[0] for row in rows}

    # History

    def finished(self, ids: Iterable[int]) -> set[int]:
        return {row[0] for id_ in ids for row in self._rows(sql.FINISHED, {"id": id_})}

    def prune(self, older_than: timedelta, limit: int, now: datetime | None = None) -> int:
        before = text((now or timezone.now()) - older_than)
        ids = self._rows(sql.PRUNABLE, {"before": before, "limit": limit})
        if ids:
            with transaction.atomic(using=self.alias):
                self._many(sql.PRUNE, ids)
        return len(ids)


def _lane(lane: Lane) -> dict[str, Any]:
    return {
        "queue": lane.queue,
        "priority": lane.priority,
        "floor": "" if lane.floor is None else text(lane.floor),
    }


def _leased(moment: datetime, lease: timedelta, worker: str) -> dict[str, Any]:
    return {"token": new_token(), "worker": worker, "now": text(moment), "until": text(moment + lease)}


def _conditions(conditions: Sequence[Condition]) -> str:
    """An object of values by path. The values are JSON already, and the names in the paths need no quotes."""
    return "{" + ",".join(f'"$.{".".join(path)}":{value}' for path, value in conditions) + "}"


def _sight(queue: str, priority: int, stored: str, *, moment: datetime) -> Sight:
    first_at = instant(stored)
    return Sight(queue, priority, first_at, (first_at - moment).total_seconds())


def _claimed(row: tuple[Any, ...]) -> Claimed:
    return Claimed._make([*row[:9], *map(instant, row[9:12]), *row[12:]])


def _fence(claimed: Claimed) -> tuple[int, int, int]:
    return claimed.id, claimed.token, claimed.generation


def _lease(claimed: Claimed) -> dict[str, int]:
    return {"id": claimed.id, "lease_token": claimed.token, "generation": claimed.generation}


def _due_again(back: GiveBack, moment: datetime) -> str | None:
    if back.until is not None:
        return text(back.until)
    return None if back.delay is None else text(moment + timedelta(seconds=back.delay))


def _ago(moment: datetime, seconds: float | None) -> str | None:
    return None if seconds is None else text(moment - timedelta(seconds=seconds))


def _record(finish: Finish, moment: datetime) -> tuple[Any, ...]:
    times = _ago(moment, finish.finished), _ago(moment, finish.started)
    unstarted = int(finish.started is None)
    return (*times, unstarted, finish.ending, finish.result, finish.errors, *_fence(finish.claimed))


def _superseded(id_: int, ran: Finish | GiveBack, worker: str, moment: datetime) -> tuple[Any, ...]:
    claimed = ran.claimed
    return (
        id_,
        _ago(moment, ran.finished),
        _ago(moment, ran.started),
        text(claimed.scheduled_at),
        text(claimed.scheduled_at_initially),
        text(claimed.created_at),
        claimed.priority,
        claimed.attempt,
        claimed.max_attempts,
        claimed.queue,
        claimed.kind,
        claimed.key,
        worker,
        claimed.payload,
        claimed.metadata,
        ran.errors or claimed.errors,
    )
