"""The store on SQLite: one writer at a time, so each verb that writes is one short transaction.

A transaction begins with its first write, or with BEGIN IMMEDIATE where the database's OPTIONS say so: it never reads
first and then waits for the write lock with a stale snapshot. Whatever may find nothing to do reads outside of a
transaction first, so an idle worker never locks the file. Time is the host's, which is the database's here.
"""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from delayedq.core.conditions import as_text, from_text, meets
from delayedq.sql import columns
from delayedq.sql.dialects import instant, text
from delayedq.store import retention
from delayedq.store.base import Store
from delayedq.store.claim_tokens import in_lane_order
from delayedq.store.feature import TakenMessage
from delayedq.store.offers import offered
from delayedq.store.operator import ALL_KEYS, OperatorStore
from delayedq.store.protocol import Flaw, Lane, LaneHead, Offered, Settled, SettledAndClaimed
from delayedq.store.sqlite import sql
from delayedq.store.sqlite.database import SQLiteListener, claimed_from, leased, unrenewed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime

    from delayedq.core.conditions import KeyRange
    from delayedq.store.bare_queues import Matching
    from delayedq.store.base import LeaseId
    from delayedq.store.database import Listener
    from delayedq.store.operator import Move, Revival, Rewrite, Seen
    from delayedq.store.protocol import Claimed, ClaimRequest, Finish, GiveBack, Offer, OnConflict, Transition
    from delayedq.store.sqlite.database import SQLiteDatabase

# Store


OPTIONS_HINT = (
    'Set OPTIONS = {"transaction_mode": "IMMEDIATE", "timeout": 20, '
    '"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"}.'
)


class SQLiteStore(Store):
    page: ClassVar[str] = sql.PAGE
    keys: ClassVar[str] = sql.KEYS
    database: SQLiteDatabase

    def end_listener(self) -> Listener:
        return self.listener()

    def listener(self) -> Listener:
        return SQLiteListener(self.alias)

    def flaws(self, *, connect: bool) -> list[Flaw]:
        found = []
        if self.database.connection.settings_dict.get("OPTIONS", {}).get("transaction_mode") != "IMMEDIATE":
            problem = "On SQLite, transactions that read before they write may fail with 'database is locked'."
            found.append(Flaw("delayedq.W001", problem, OPTIONS_HINT))
        if connect and not self._is_in_memory():
            mode = self.database.rows(sql.JOURNAL_MODE)[0][0]
            if mode != "wal":
                problem = f"SQLite's journal mode is {mode}: readers and workers block each other."
                found.append(Flaw("delayedq.W002", problem, OPTIONS_HINT))
        return found

    def _is_in_memory(self) -> bool:
        return not self.database.rows(sql.FILE)[0][0]

    # Offers

    def _offer_one(self, offer: Offer, on_conflict: OnConflict) -> Offered:
        moment = self.database.now()
        parameters = {name: getattr(offer, name) for name in columns.OFFER}
        parameters["scheduled_at"] = text(offer.scheduled_at or moment)
        parameters["now"] = text(moment)
        rows = self.database.rows(sql.OFFER[on_conflict], parameters)
        return offered((*rows[0][:4], instant(rows[0][4])) if rows else None)

    def _offer_wave(self, offers: Sequence[Offer], on_conflict: OnConflict) -> list[Offered]:
        at_once = self.at(self.now())
        return [at_once._offer_one(offer, on_conflict) for offer in offers]  # noqa: SLF001 - the same store

    # The life of a lease

    def scan(self, queues: Collection[str] | None = None) -> list[LaneHead]:
        moment = self.database.now()
        rows = self.database.rows(sql.SCAN, {"now": text(moment), **unrenewed(moment)})
        return [_lane_head(*row, moment=moment) for row in rows if queues is None or row[0] in queues]

    def lanes(self) -> list[Lane]:
        return [Lane(*row) for row in self.database.rows(sql.LANES)]

    def peek(self, lanes: Sequence[Lane]) -> list[LaneHead]:
        moment = self.database.now()
        return [
            _lane_head(lane.queue, lane.priority, first_at, moment=moment)
            for lane in lanes
            for (first_at,) in self.database.rows(sql.PEEK, {**_lane(lane), "now": text(moment), **unrenewed(moment)})
        ]

    def _settle_and_claim(self, transitions: Sequence[Transition], request: ClaimRequest) -> SettledAndClaimed:
        expired_by = self._expired_by(expired=request.expired)
        if not transitions:
            return SettledAndClaimed(self._claim_expired_by(expired_by, request), Settled())
        with self.database.atomic():
            settled = self.settle(transitions, request.worker)
            return SettledAndClaimed(self._claim_expired_by(expired_by, request), settled)

    def _claim(self, request: ClaimRequest) -> list[Claimed]:
        return self._claim_expired_by(self._expired_by(expired=request.expired), request)

    def _expired_by(self, *, expired: bool = True) -> str:
        """By when a lease must have run out to be claimed; "": none is."""
        return text(self.database.now()) if expired else ""

    def _claim_expired_by(self, expired_by: str, request: ClaimRequest) -> list[Claimed]:
        claimed: list[Claimed] = []
        if lanes := self._due(request.lanes, expired_by) if request.limit > 0 else []:
            with self.database.atomic():
                # A lease begins when there is nothing more to wait for.
                lease = leased(self.database.now(), request.lease, request.worker, request.token)
                for lane in lanes:
                    if room := request.limit - len(claimed):
                        claimed += self._claim_lane(lane, {**lease, "expired_by": expired_by, "limit": room})
        return in_lane_order(claimed, lanes)

    def _due(self, lanes: Sequence[Lane], expired_by: str) -> list[Lane]:
        moment = self.database.now()
        parameters = {"now": text(moment), "expired_by": expired_by, **unrenewed(moment)}
        return [lane for lane in lanes if self.database.rows(sql.IS_DUE, {**_lane(lane), **parameters})]

    def _claim_lane(self, lane: Lane, parameters: dict[str, Any]) -> list[Claimed]:
        return [claimed_from(row) for row in self.database.rows(sql.CLAIM, {**_lane(lane), **parameters})]

    def _claim_matching(self, matching: Matching, limit: int, lease: timedelta, worker: str) -> list[Claimed]:
        self.database.define(sql.MEETS, _meets)
        asked = text(self.database.now())
        matching_rows = {**_matching(matching), "now": asked, "expired_by": asked}
        if not self.database.rows(sql.due_matching(matching), {**matching_rows, "limit": 1}):
            return []
        with self.database.atomic():
            parameters = {**matching_rows, **leased(self.database.now(), lease, worker), "limit": limit}
            rows = self.database.rows(sql.claim_matching(matching), parameters)
        return in_lane_order(map(claimed_from, rows), [matching.lane])

    def claim_unchanged(self, id_: int, generation: int, lease: timedelta, worker: str) -> Claimed | None:
        wanted = {"id": id_, "generation": generation, "expired_by": self._expired_by()}
        with self.database.atomic():
            parameters = {**wanted, **leased(self.database.now(), lease, worker)}
            rows = self.database.rows(sql.CLAIM_UNCHANGED, parameters)
        return claimed_from(rows[0]) if rows else None

    def _finish(self, finishes: Sequence[Finish]) -> set[int]:
        moment = self.database.now()
        recorded = self.database.many(sql.RECORD, (_record(finish, moment) for finish in finishes))
        if recorded < len(finishes):
            finishes = [finish for finish in finishes if self.database.rows(sql.IS_HELD, _lease(finish.claimed))]
        self.database.many(sql.DELETE, (_fence(finish.claimed) for finish in finishes))
        return {finish.claimed.id for finish in finishes}

    def _give_back(self, returns: Sequence[GiveBack]) -> set[int]:
        moment = self.database.now()
        settled = set()
        for back in returns:
            parameters = {
                "refund": 0 if back.charged else 1,
                "scheduled_at": _due_again(back, moment),
                "errors": back.errors,
                "metadata": back.metadata,
                **_lease(back.claimed),
            }
            settled |= self.database.ids(sql.GIVE_BACK, parameters)
        return settled

    def _discard(self, claims: Sequence[Claimed]) -> set[int]:
        return {row[0] for claimed in claims for row in self.database.rows(sql.DISCARD, _lease(claimed))}

    def _rearm(self, claims: Sequence[Claimed]) -> set[int]:
        return {row[0] for claimed in claims for row in self.database.rows(sql.REARM, _lease(claimed))}

    def _record_superseded(self, ran: Sequence[Finish | GiveBack], worker: str) -> None:
        moment = self.database.now()
        last = self.database.rows(sql.RESERVE_IDS, {"count": len(ran)})[0][0]
        self.database.many(
            sql.RECORD_SUPERSEDED,
            (_superseded(id_, t, worker, moment) for id_, t in enumerate(ran, start=last - len(ran) + 1)),
        )

    def _renew(self, held: Sequence[LeaseId], lease: timedelta) -> dict[LeaseId, float | None]:
        with self.database.atomic():
            self.database.write(sql.WRITE_LOCK)
            until = text(self.database.now() + lease)
            return {
                (id_, token): None
                for id_, token in held
                if not self.database.rows(sql.RENEW, {"id": id_, "lease_token": token, "until": until})
            }

    # No row is ever locked: the whole file is, and a renewal waits for it.

    def _keep_locked(self, held: Collection[LeaseId], lease: timedelta) -> None: ...

    def _forget_locked(self, held: Collection[LeaseId]) -> None: ...

    def _forget_expired(self) -> None: ...

    def _release(self, held: Collection[LeaseId]) -> dict[LeaseId, bool]:
        with self.database.atomic():
            each = [(pair, self.database.rows(sql.RELEASE, {"id": pair[0], "lease_token": pair[1]})) for pair in held]
            gone = [pair for pair, released in each if released]
            self.tell_released(gone)
        return {pair: False for pair, released in each if not released}

    def _unschedule(self, kind: str, key: str) -> bool:
        parameters = {"kind": kind, "key": key}
        with self.database.atomic():
            recorded = self.database.rows(sql.RECORD_UNSCHEDULED, parameters)
            if recorded:
                self.take_away([TakenMessage(id_, metadata=metadata or "") for id_, metadata in recorded])
                self.database.many(sql.DELETE_BY_KEY, [(kind, key)])
        return bool(recorded)

    def _drop_all(self, queue: str) -> int:
        from delayedq.models import Message  # stores are imported before the models are loaded

        with self.database.atomic():
            recorded = self.database.rows(sql.RECORD_ALL, {"queue": queue})
            if any(metadata is not None for _, metadata in recorded):
                self.take_away_all(Message.objects.using(self.alias).filter(queue=queue))
            self.database.many(sql.DELETE_BY_ID, ((id_,) for id_, _ in recorded))
        return len(recorded)

    def _erase(self, queue: str, key: str | None) -> int:
        from delayedq.models import Message  # stores are imported before the models are loaded

        messages = Message.objects.using(self.alias).filter(queue=queue)
        if key is not None:
            messages = messages.filter(kind=queue, key=key)
        with self.database.atomic():
            self.database.write(sql.WRITE_LOCK)
            self.take_away_all(messages)
            return messages.delete()[0]

    def withdraw(self, ids: Iterable[int], errors: str | None = None) -> set[int]:
        parameters = {"errors": errors, "now": text(self.database.now())}
        with self.database.atomic():
            rows = [row for id_ in ids for row in self.database.rows(sql.RECORD_WITHDRAWN, {**parameters, "id": id_})]
            self.database.many(sql.DELETE_BY_ID, ((id_,) for id_, _ in rows))
        return {row[0] for row in rows}

    # History

    def in_history(self, ids: Iterable[int]) -> set[int]:
        return {row[0] for id_ in ids for row in self.database.rows(sql.FINISHED, {"id": id_})}

    def prune(self, older_than: timedelta, limit: int) -> int:
        unneeded, parameters = retention.unneeded(self.alias, sql.UNNEEDED)
        parameters |= {"before": text(self.database.now() - older_than)}
        # Reading comes first: it takes no write lock, and mostly nothing is to be deleted.
        if not self.database.rows(sql.PRUNABLE.format(unneeded=unneeded), parameters | {"limit": 1}):
            return 0
        return len(self.database.rows(sql.PRUNE.format(unneeded=unneeded), parameters | {"limit": limit}))


def _lane(lane: Lane) -> dict[str, Any]:
    return {
        "queue": lane.queue,
        "priority": lane.priority,
        "watermark": "" if lane.watermark is None else text(lane.watermark),
    }


def _matching(matching: Matching) -> dict[str, Any]:
    keys = matching.keys._asdict() if matching.keys else {}
    return {**_lane(matching.lane), **keys, "conditions": as_text(matching.conditions)}


_conditions = lru_cache(from_text)


def _meets(payload: str, conditions: str) -> bool:
    return meets(payload, _conditions(conditions))


def _lane_head(queue: str, priority: int, stored: str, *, moment: datetime) -> LaneHead:
    first_at = instant(stored)
    return LaneHead(queue, priority, first_at, (first_at - moment).total_seconds())


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
    ended = finish.outcome, finish.result, finish.errors, *finish.last_error
    return (*times, unstarted, *ended, *_fence(finish.claimed))


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


# An operator's edits on SQLite: a statement for each message, in one short transaction.


class SQLiteOperatorStore(OperatorStore):
    def keyed_kinds(self, keys: KeyRange = ALL_KEYS) -> list[str]:
        return [row[0] for row in self.database.rows(sql.KEYED_KINDS, keys._asdict())]

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
        self._store.take_away([TakenMessage(id_) for id_ in leased], waits=True)
        self._each(sql.TAKE_LEASE, [{"id": id_} for id_ in leased])
        return {id_ for id_, _ in rows}

    def _ended(self, statement: str, given: Iterable[dict[str, Any]]) -> set[int]:
        """Those that the statement has recorded, which it deletes."""
        recorded = self._rows(statement, given)
        self._store.take_away([TakenMessage(id_, metadata=metadata or "") for id_, metadata in recorded])
        return self._each(sql.DELETE_LIVE, [{"id": id_} for id_, _ in recorded])

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
