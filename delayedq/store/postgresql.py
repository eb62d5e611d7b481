"""The store on PostgreSQL: one statement, one round trip, one commit per verb."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, ClassVar, Self

import psycopg
from django.db import Error, transaction

from delayedq.core.lifecycle import Ending
from delayedq.store import postgresql_offers_sql as offers_sql
from delayedq.store import postgresql_sql as sql
from delayedq.store.base import NOTIFY_GAP, in_lane_order, new_token, offered
from delayedq.store.listen import PostgreSQLListener
from delayedq.store.postgresql_edits import PostgreSQLEdits
from delayedq.store.protocol import Claimed, Finish, Lane, Offered, OfferOutcome, Settled, Sight, Tick

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from datetime import datetime, timedelta

    from delayedq.store.protocol import Condition, GiveBack, Listener, Offer, OnConflict, Transition


class _BatchCursor(psycopg.Cursor[Any]):
    """Never prepares a statement, whatever the connection's settings say: each batch is planned for its own length.

    Of a prepared one PostgreSQL expects ten messages, and plans loops within loops: 53 ms for a tick of 512, not 7.
    """

    def execute(self, query: Any, params: Any = None, **_: Any) -> Self:
        return super().execute(query, params, prepare=False, binary=True)


class PostgreSQLStore(PostgreSQLEdits):
    can_notify: ClassVar[bool] = True
    _notified = 0.0

    def _batch(self, statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        """`_rows` for hundreds of messages: parameters stay out of the statement, and rows come in binary.

        Django's cursors write parameters into the statement, and have times written and read as texts.
        """
        with self.connection.cursor() as cursor:
            cursor.cursor = _BatchCursor(self.connection.connection)
            cursor.execute(statement, parameters)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows

    def now(self) -> datetime:
        moment: datetime = self._rows(sql.CLOCK, {})[0][0]
        return moment

    # Offers

    def _offer_one(self, offer: Offer, on_conflict: OnConflict, now: datetime | None) -> Offered:
        statement = offers_sql.OFFER if offer.key is None else offers_sql.OFFER_KEYED[on_conflict]
        rows = self._rows(statement, {**_columns(offer), "now": now})
        return offered(rows[0] if rows else None)

    def _offer_wave(self, offers: Sequence[Offer], on_conflict: OnConflict, now: datetime | None) -> list[Offered]:
        if all(offer.key is None for offer in offers):
            ids = self._batch(offers_sql.OFFER_UNKEYED, {**_unkeyed(offers), "now": now})
            return [Offered(OfferOutcome.CREATED, id_) for (id_,) in sorted(ids)]
        rows = self._batch(offers_sql.OFFER_MANY[on_conflict], {**_offers(offers), "now": now})
        by_key = {(row[2], row[3]): offered(row) for row in rows if row[3] is not None}
        # Ids were drawn in the order of the offers, so the unkeyed ones are told apart by their rank.
        unkeyed = iter(sorted(row[0] for row in rows if row[3] is None))
        return [
            Offered(OfferOutcome.CREATED, next(unkeyed))
            if offer.key is None
            else by_key.get((offer.kind, offer.key), offered(None))
            for offer in offers
        ]

    def notify(self) -> None:
        """At most one in NOTIFY_GAP: those who heard the last one are about to look again."""
        moment = time.monotonic()
        if moment - self._notified < NOTIFY_GAP:
            return
        self._notified = moment
        # A notification takes a lock of the whole cluster and holds it while its commit is flushed: without the wait
        # for the disk it costs writers nothing. Losing one does no harm.
        with self.connection.cursor() as cursor:
            cursor.execute(sql.NOTIFY)

    def listener(self) -> Listener:
        return PostgreSQLListener(self.alias)

    # The life of a lease

    def look(self, queues: Collection[str] | None = None, now: datetime | None = None) -> list[Sight]:
        rows = self._rows(sql.LOOK, {"queues": None if queues is None else list(queues), "now": now})
        return [Sight(*row) for row in rows]

    def lanes(self) -> list[Lane]:
        return [Lane(*row) for row in self._rows(sql.LANES, {})]

    def glance(self, lanes: Sequence[Lane], now: datetime | None = None) -> list[Sight]:
        return [Sight(*row) for row in self._rows(sql.GLANCE, {**_lanes(lanes), "now": now})] if lanes else []

    def claim(
        self, lanes: Sequence[Lane], limit: int, lease: timedelta, worker: str, now: datetime | None = None
    ) -> list[Claimed]:
        if not lanes or limit <= 0:
            return []
        rows = self._batch(sql.CLAIM, {**_lanes(lanes), **_lease(lease, worker), "limit": limit, "now": now})
        return in_lane_order(map(Claimed._make, rows), lanes)

    def claim_matching(
        self,
        lane: Lane,
        conditions: Sequence[Condition],
        limit: int,
        lease: timedelta,
        worker: str,
        now: datetime | None = None,
    ) -> list[Claimed]:
        parameters = {**lane._asdict(), **_conditions(conditions), **_lease(lease, worker), "limit": limit, "now": now}
        with transaction.atomic(using=self.alias):  # a payload that can't be read must not break the caller's
            rows = self._rows(sql.CLAIM_MATCHING, parameters)
        return in_lane_order(map(Claimed._make, rows), [lane])

    def claim_unchanged(
        self, id_: int, generation: int, lease: timedelta, worker: str, now: datetime | None = None
    ) -> Claimed | None:
        parameters = {"id": id_, "generation": generation, **_lease(lease, worker), "now": now}
        rows = self._rows(sql.CLAIM_UNCHANGED, parameters)
        return Claimed._make(rows[0]) if rows else None

    def tick(
        self,
        transitions: Sequence[Transition],
        lanes: Sequence[Lane],
        limit: int,
        lease: timedelta,
        worker: str,
        now: datetime | None = None,
    ) -> Tick:
        if not transitions or not lanes or limit <= 0 or not all(type(t) is Finish for t in transitions):
            return super().tick(transitions, lanes, limit, lease, worker, now)
        parameters = {**_finishes(transitions), **_lanes(lanes), **_lease(lease, worker), "limit": limit, "now": now}  # type: ignore[arg-type]
        rows = self._batch(sql.TICK, parameters)
        claimed = in_lane_order((Claimed._make(row[1:]) for row in rows if row[1] is not None), lanes)
        missing = _missing(transitions, rows[0][0])
        try:
            return Tick(claimed, self._settle_rest(missing, worker, now))
        except Error:  # what was claimed is committed, and must not be lost with the rest
            return Tick(claimed, Settled(busy=frozenset(transition.claimed.id for transition in missing)))

    def _finish(self, finishes: Sequence[Finish], now: datetime | None) -> set[int]:
        ended = self._batch(sql.FINISH, {**_finishes(finishes), "now": now})[0][0]
        return {finish.claimed.id for finish in finishes} if ended is None else set(ended)

    def _give_back(self, returns: Sequence[GiveBack], now: datetime | None) -> set[int]:
        parameters = {
            **_leases([back.claimed for back in returns]),
            "charged": [back.charged for back in returns],
            "delays": numbers(back.delay for back in returns),
            "untils": [back.until for back in returns],
            "errors": _texts([back.errors for back in returns]),
            "metadata": _texts([back.metadata for back in returns]),
            "now": now,
        }
        return {row[0] for row in self._batch(sql.GIVE_BACK, parameters)}

    def _discard(self, claims: Sequence[Claimed]) -> set[int]:
        return {row[0] for row in self._rows(sql.DISCARD, _leases(claims))}

    def _rearm(self, claims: Sequence[Claimed]) -> set[int]:
        return {row[0] for row in self._rows(sql.REARM, _leases(claims))}

    def _still_held(self, claims: Sequence[Claimed]) -> set[int]:
        return {row[0] for row in self._rows(sql.STILL_HELD, _leases(claims))}

    def _record_superseded(self, ran: Sequence[Finish | GiveBack], worker: str, now: datetime | None) -> None:
        records = [
            {**t.claimed._asdict(), "started": t.started, "finished": t.finished, "new_errors": t.errors} for t in ran
        ]
        parameters = {"records": json.dumps(records, default=str), "worker": worker, "now": now}
        with self.connection.cursor() as cursor:
            cursor.execute(sql.RECORD_SUPERSEDED, parameters)

    def renew(
        self, held: Sequence[tuple[int, int]], lease: timedelta, now: datetime | None = None
    ) -> set[tuple[int, int]]:
        return {(row[0], row[1]) for row in self._batch(sql.RENEW, {**_held(held), "lease": lease, "now": now})}

    def release(self, held: Sequence[tuple[int, int]]) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql.RELEASE, _held(held))

    def _unschedule(self, kind: str, key: str, now: datetime | None) -> bool:
        return bool(self._rows(sql.UNSCHEDULE, {"kind": kind, "key": key, "now": now}))

    def _drop_all(self, queue: str, now: datetime | None) -> int:
        return len(self._rows(sql.DROP_ALL, {"queue": queue, "now": now}))

    def withdraw(self, ids: Iterable[int], errors: str | None = None, now: datetime | None = None) -> set[int]:
        return {row[0] for row in self._rows(sql.WITHDRAW, {"ids": numbers(ids), "errors": errors, "now": now})}

    # History

    def finished(self, ids: Iterable[int]) -> set[int]:
        return {row[0] for row in self._rows(sql.FINISHED, {"ids": list(ids)})}

    def prune(self, older_than: timedelta, limit: int, now: datetime | None = None) -> int:
        with transaction.atomic(using=self.alias):
            with self.connection.cursor() as cursor:
                cursor.execute(sql.BE_BRIEF)
            return len(self._rows(sql.PRUNE, {"older_than": older_than, "limit": limit, "now": now}))


def _columns(offer: Offer) -> dict[str, Any]:
    return {name: getattr(offer, name) for name in offers_sql.OFFER_COLUMNS}


def _offers(offers: Sequence[Offer]) -> dict[str, Any]:
    times = [offer.scheduled_at for offer in offers]
    return {
        **{name: _texts([getattr(offer, name) for offer in offers]) for name in offers_sql.OFFER_TEXTS},
        "priority": numbers(offer.priority for offer in offers),
        "max_attempts": numbers(offer.max_attempts for offer in offers),
        "scheduled_at": times if any(times) else None,
    }


def _unkeyed(offers: Sequence[Offer]) -> dict[str, Any]:
    times = [offer.scheduled_at for offer in offers]
    parameters = {
        "payload": _texts([offer.payload for offer in offers]),
        "metadata": _texts([offer.metadata for offer in offers]),
        "scheduled_at": times if any(times) else None,
    }
    arrays: dict[str, Callable[[list[Any]], str | None]]
    arrays = {"queue": _texts, "kind": _texts, "priority": numbers, "max_attempts": numbers}
    for name, array in arrays.items():
        values = [getattr(offer, name) for offer in offers]
        is_same = values.count(values[0]) == len(values)
        parameters |= {name: None if is_same else array(values), f"same_{name}": values[0] if is_same else None}
    return parameters


def _lanes(lanes: Sequence[Lane]) -> dict[str, Any]:
    return {
        "queues": [lane.queue for lane in lanes],
        "priorities": [lane.priority for lane in lanes],
        "floors": [lane.floor for lane in lanes],
    }


def _lease(lease: timedelta, worker: str) -> dict[str, Any]:
    return {"token": new_token(), "lease": lease, "worker": worker}


def _conditions(conditions: Sequence[Condition]) -> dict[str, list[str]]:
    """Names are ASCII identifiers, so a path is an array as PostgreSQL writes it."""
    return {
        "paths": ["{" + ",".join(f'"{name}"' for name in condition.path) + "}" for condition in conditions],
        "values": [condition.value for condition in conditions],
    }


def _held(held: Sequence[tuple[int, int]]) -> dict[str, Any]:
    return {"ids": numbers(id_ for id_, _ in held), "tokens": numbers(token for _, token in held)}


def _leases(claims: Sequence[Claimed]) -> dict[str, Any]:
    return {
        "ids": numbers(claimed.id for claimed in claims),
        "tokens": numbers(claimed.token for claimed in claims),
        "generations": numbers(claimed.generation for claimed in claims),
    }


def _finishes(finishes: Sequence[Finish]) -> dict[str, Any]:
    return {
        **_leases([finish.claimed for finish in finishes]),
        "endings": _texts([None if f.ending is Ending.SUCCEEDED else f.ending.value for f in finishes]),
        "started": numbers(None if f.started is None else int(f.started * 1e6) for f in finishes),
        "finished": numbers(int(f.finished * 1e6) for f in finishes),
        "results": _texts([finish.result for finish in finishes]),
        "errors": _texts([finish.errors for finish in finishes]),
    }


def numbers(values: Iterable[float | None]) -> str:
    """An array of numbers as PostgreSQL writes it: psycopg's own way takes ten times as long for a batch of acks."""
    return "{" + ",".join(["NULL" if value is None else repr(value) for value in values]) + "}"


def _texts(values: Sequence[str | None]) -> str | None:
    """The same for texts. An array that holds nothing but NULL need not be sent: unnest() fills it up."""
    if all(value is None for value in values):
        return None
    return "{" + ",".join(["NULL" if value is None else _quoted(value) for value in values]) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _missing(transitions: Sequence[Transition], ended: list[int] | None) -> list[Transition]:
    """`ended` None: all of them ended."""
    if ended is None:
        return []
    return [transition for transition in transitions if transition.claimed.id not in ended]
