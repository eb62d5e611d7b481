"""The store on PostgreSQL: one statement, one round trip, one commit per verb."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

from django.db import Error, transaction
from psycopg import IsolationLevel

from delayedq.store import operator, retention
from delayedq.store.base import TOLD_FOR, EndNotices, Store, chunks, with_follow_ups
from delayedq.store.claim_tokens import in_lane_order
from delayedq.store.database import NOTIFY_GAP, retry_on_deadlock
from delayedq.store.feature import Fused, concerned
from delayedq.store.offers import check, have_own_times, in_lock_order, offered, waves
from delayedq.store.operator import ALL_KEYS, OperatorStore, wanted_of
from delayedq.store.postgresql import operator_sql, partitions, sql, uniting
from delayedq.store.postgresql.database import (
    FEW,
    Given,
    PostgreSQLListener,
    numbers,
    of_finishes,
    of_held,
    of_lanes,
    of_lease,
    of_leases,
    of_matching,
    of_offer,
    of_offers,
    of_request,
    of_returns,
)
from delayedq.store.postgresql.sql import LISTEN_TO_ENDS, NOTIFY_ENDS, NOTIFY_STOPPED, NOTIFY_WAITING
from delayedq.store.protocol import (
    Claimed,
    Finish,
    Flaw,
    Lane,
    LaneHead,
    Offered,
    OfferOutcome,
    OnConflict,
    Settled,
    SettledAndClaimed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from datetime import timedelta

    from delayedq.core.conditions import KeyRange
    from delayedq.sql.states import MessageState
    from delayedq.store.bare_queues import Matching
    from delayedq.store.base import LeaseId
    from delayedq.store.database import Listener
    from delayedq.store.feature import Feature
    from delayedq.store.operator import KeysetPage, Move, Revival, Rewrite, Seen
    from delayedq.store.postgresql.database import PostgreSQLDatabase
    from delayedq.store.protocol import ClaimRequest, GiveBack, Offer, PartitionChange, Transition

# Ends of messages are told by NOTIFY, while somebody waits for one.


class EndListener(PostgreSQLListener):
    listen_to = (LISTEN_TO_ENDS,)
    channel = "delayedq_ended"


class PostgreSQLEnds(EndNotices):
    database: PostgreSQLDatabase

    #: Until when ends are told, and when that was last done, by `time.monotonic()`: all moments of a store share it.
    _ends: list[float]

    def end_listener(self) -> Listener | None:
        return EndListener(self.database.alias)

    def ask_for_ends(self) -> None:
        self.database.write(NOTIFY_WAITING)

    def somebody_waits(self) -> None:
        self._ends[0] = time.monotonic() + TOLD_FOR

    def tell_stopped_after_commit(self) -> None:
        with suppress(transaction.TransactionManagementError):  # autocommit is off: leases are renewed in vain
            transaction.on_commit(partial(self.database.write, NOTIFY_STOPPED), self.database.alias, robust=True)

    def tell_ends(self) -> None:
        """At most once in NOTIFY_GAP seconds: who waits checks again after each."""
        moment = time.monotonic()
        if moment < self._ends[0] and moment - self._ends[1] >= NOTIFY_GAP:
            self._ends[1] = moment
            self.database.write(NOTIFY_ENDS)


# Store


ISOLATION_HINT = (
    'Leave "isolation_level" out of OPTIONS; or retry your transactions after "could not serialize access" (40001). '
    "The queue's own transactions do not fail."
)


class PostgreSQLStore(PostgreSQLEnds, Store):
    can_notify: ClassVar[bool] = True
    page: ClassVar[str] = sql.PAGE
    keys: ClassVar[str] = sql.KEYS
    database: PostgreSQLDatabase

    def __init__(self, database: PostgreSQLDatabase) -> None:
        super().__init__(database)
        #: When the last NOTIFY was sent, by `time.monotonic()`; in a list, which all moments of this store share.
        self._notified = [0.0]
        self._ends = [0.0, 0.0]

    def flaws(self, *, connect: bool) -> list[Flaw]:
        configured = self.database.connection.settings_dict.get("OPTIONS", {}).get("isolation_level")
        level = None if configured is None else IsolationLevel(configured).name
        if connect and level is None:
            level = str(self.database.rows(sql.ISOLATION)[0][0]).upper().replace(" ", "_")
        if level in {None, "READ_COMMITTED", "READ_UNCOMMITTED"}:
            return []
        problem = f"The isolation level is {level}: your transactions that offer or settle a message may be undone."
        return [Flaw("delayedq.W003", problem, ISOLATION_HINT)]

    # Offers

    def _offer_one(self, offer: Offer, on_conflict: OnConflict) -> Offered:
        statement = sql.OFFER if offer.key is None else sql.OFFER_KEYED[on_conflict]
        rows = self.database.rows(statement, of_offer(offer))
        return offered(rows[0] if rows else None)

    def _offer_wave(self, offers: Sequence[Offer], on_conflict: OnConflict) -> list[Offered]:
        if all(offer.key is None for offer in offers):
            ids = self.database.batch(sql.OFFER_UNKEYED, of_offers(offers))
            return [Offered(OfferOutcome.CREATED, id_) for (id_,) in sorted(ids)]
        rows = self.database.batch(sql.OFFER_MANY[on_conflict], of_offers(offers))
        by_key = {(row[2], row[3]): offered(row) for row in rows if row[3] is not None}
        # Ids were drawn in the order of the offers, so the unkeyed ones are told apart by their rank.
        unkeyed = iter(sorted(row[0] for row in rows if row[3] is None))
        return [
            Offered(OfferOutcome.CREATED, next(unkeyed))
            if offer.key is None
            else by_key.get((offer.kind, offer.key), offered(None))
            for offer in offers
        ]

    @retry_on_deadlock
    def offer_counted(self, offers: Sequence[Offer]) -> int:
        """No outcome comes here: of 100,000 with keys that takes a fifth of the time."""
        if not all(offer.is_plain for offer in offers):
            return super().offer_counted(offers)
        for offer in offers:
            check(offer)
        with self.database.atomic():
            for some in chunks(offers):
                chunk = [offers[position] for position in some]
                for positions in waves(chunk):
                    self._store_wave([chunk[position] for position in positions])
            self.notify_after_commit({offer.scheduled_at for offer in offers})
        return len(offers)

    def _store_wave(self, offers: Sequence[Offer]) -> None:
        if all(offer.key is None for offer in offers):
            statement = sql.STORE_UNKEYED
        elif have_own_times(offers):
            statement = sql.STORE_SORTED
            offers = [offers[position] for position in in_lock_order(offers, range(len(offers)))]
        else:
            statement = sql.STORE_MANY
        self.database.batch(statement, of_offers(offers))

    def notify(self) -> None:
        """At most one in NOTIFY_GAP seconds: listeners that heard the last one are about to check again."""
        moment = time.monotonic()
        if moment - self._notified[0] < NOTIFY_GAP:
            return
        self._notified[0] = moment
        # A notification takes a lock of the whole cluster and holds it while its commit is flushed: without the wait
        # for the disk it costs writers nothing. Losing one does no harm.
        self.database.write(sql.NOTIFY)

    def listener(self) -> Listener:
        return PostgreSQLListener(self.alias)

    # The life of a lease

    def scan(self, queues: Collection[str] | None = None) -> list[LaneHead]:
        rows = self.database.rows(sql.SCAN, {"queues": None if queues is None else list(queues)})
        return [LaneHead(*row) for row in rows]

    def scan_ahead(self, known: Sequence[Lane], queues: Collection[str] | None = None) -> list[LaneHead]:
        parameters = {**of_lanes(known), "served": None if queues is None else list(queues)}
        return [LaneHead(*row) for row in self.database.rows(sql.SCAN_AHEAD, parameters)]

    def lanes(self) -> list[Lane]:
        return [Lane(*row) for row in self.database.rows(sql.LANES)]

    def peek(self, lanes: Sequence[Lane]) -> list[LaneHead]:
        return [LaneHead(*row) for row in self.database.rows(sql.PEEK, of_lanes(lanes))] if lanes else []

    def _claim(self, request: ClaimRequest) -> list[Claimed]:
        if not request.lanes or request.limit <= 0:
            return []
        rows = self.database.batch(sql.CLAIM, of_request(request), may_prepare=True)
        return in_lane_order(map(Claimed._make, rows), request.lanes)

    def _claim_matching(self, matching: Matching, limit: int, lease: timedelta, worker: str) -> list[Claimed]:
        parameters = {**of_matching(matching), **of_lease(lease, worker), "limit": limit}
        with self.database.atomic():  # a payload that can't be read must not break the caller's
            rows = self.database.rows(sql.claim_matching(matching), parameters)
        return in_lane_order(map(Claimed._make, rows), [matching.lane])

    def claim_unchanged(self, id_: int, generation: int, lease: timedelta, worker: str) -> Claimed | None:
        parameters = {"id": id_, "generation": generation, **of_lease(lease, worker)}
        rows = self.database.rows(sql.CLAIM_UNCHANGED, parameters)
        return Claimed._make(rows[0]) if rows else None

    def _settle_and_claim(self, transitions: Sequence[Transition], request: ClaimRequest) -> SettledAndClaimed:
        if not transitions or not request.lanes or request.limit <= 0 or not _are_alike(transitions):
            return super()._settle_and_claim(transitions, request)
        concerning = concerned(transitions)
        fused = _fused(concerning)
        if fused is None:
            return super()._settle_and_claim(transitions, request)
        parameters = {**of_finishes(transitions), **of_request(request), **fused.parameters}
        rows = self.database.batch(fused.statement, parameters, may_prepare=len(transitions) <= FEW)
        if concerning and rows[0][:2] == ([], None):  # nothing was done
            return super()._settle_and_claim(transitions, request)
        claimed = in_lane_order((Claimed._make(row[1:]) for row in rows if row[1] is not None), request.lanes)
        missing = missing_of(transitions, rows[0][0])
        return SettledAndClaimed(claimed, settled_or_busy(self._settle_rest, missing, request.worker))

    def _finish(self, finishes: Sequence[Finish]) -> set[int]:
        return ended_of(finishes, self.database.batch(**finishing(finishes)._asdict()))

    def finish_and_commit(self, finish: Finish) -> bool:
        """Not of one with a key: such are replaced while they run, and the server would log each that did not end."""
        if finish.claimed.key is not None or with_follow_ups([finish]) or concerned([finish]):
            return False
        return self.database.commit_with(sql.FINISH_OR_FAIL, of_finishes([finish]))

    def _give_back(self, returns: Sequence[GiveBack]) -> set[int]:
        return {row[0] for row in self.database.batch(sql.GIVE_BACK, of_returns(returns))}

    def _discard(self, claims: Sequence[Claimed]) -> set[int]:
        return self.database.ids(sql.DISCARD, of_leases(claims))

    def _rearm(self, claims: Sequence[Claimed]) -> set[int]:
        return self.database.ids(sql.REARM, of_leases(claims))

    def _still_held(self, claims: Sequence[Claimed]) -> set[int]:
        return self.database.ids(sql.STILL_HELD, of_leases(claims))

    def _record_superseded(self, ran: Sequence[Finish | GiveBack], worker: str) -> None:
        records = [
            {**t.claimed._asdict(), "started": t.started, "finished": t.finished, "new_errors": t.errors} for t in ran
        ]
        self.database.write(sql.RECORD_SUPERSEDED, {"records": json.dumps(records, default=str), "worker": worker})

    def _renew(self, held: Sequence[LeaseId], lease: timedelta) -> dict[LeaseId, float | None]:
        rows = self.database.batch(sql.RENEW, {**of_held(held), "lease": lease})
        return {(id_, token): left for id_, token, left in rows}

    def _keep_locked(self, held: Collection[LeaseId], lease: timedelta) -> None:
        self.database.write(sql.KEEP_LOCKED, {**of_held(held), "lease": lease})

    def _forget_locked(self, held: Collection[LeaseId]) -> None:
        self.database.write(sql.FORGET_LOCKED, of_held(held))

    def _forget_expired(self) -> None:
        self.database.write(sql.FORGET_EXPIRED)

    def _release(self, held: Collection[LeaseId]) -> dict[LeaseId, bool]:
        rows = self.database.batch(sql.RELEASE, of_held(held))
        return {(id_, token): is_held for id_, token, is_held in rows}

    def _unschedule(self, kind: str, key: str) -> bool:
        return bool(self._end_keys(sql.DROP_KEY, kind, [key]))

    def _drop_all(self, queue: str) -> int:
        return self._end_queue(sql.DROP_ALL, sql.DROP_KEY, queue)

    def _erase(self, queue: str, key: str | None) -> int:
        if key is None:
            return self._end_queue(sql.ERASE_ALL, sql.ERASE_KEY, queue)
        return self._end_keys(sql.ERASE_KEY, queue, [key])

    def _end_queue(self, of_all: str, of_key: str, queue: str) -> int:
        with self.database.atomic():
            ((ended, missed),) = self.database.rows(of_all, {"queue": queue})
            return int(ended) + self._end_keys(of_key, queue, missed)

    def _end_keys(self, statement: str, kind: str, keys: list[str]) -> int:
        """End the messages of these keys; then look again for those that the statement missed."""
        count = 0
        while keys:
            ((ended, missed),) = self.database.rows(statement, {"kind": kind, "key": keys[0]})
            count += ended
            keys = [*keys[1:], *missed]
        return count

    def withdraw(self, ids: Iterable[int], errors: str | None = None) -> set[int]:
        return self.database.ids(sql.WITHDRAW, {"ids": numbers(ids), "errors": errors})

    # History

    def in_history(self, ids: Iterable[int]) -> set[int]:
        return self.database.ids(sql.FINISHED, {"ids": list(ids)})

    def prune(self, older_than: timedelta, limit: int) -> int:
        unneeded, parameters = retention.unneeded(self.alias, sql.UNNEEDED)
        parameters |= {"older_than": older_than, "limit": limit}
        with self.database.atomic():
            is_partitioned = self.database.rows(sql.BEFORE_PRUNING)[0][0]
            statement = sql.PRUNE_PARTITIONED if is_partitioned else sql.PRUNE
            return len(self.database.rows(statement.format(unneeded=unneeded), parameters))

    def partition_history(self, retention: timedelta | None) -> Iterator[PartitionChange]:
        return partitions.partition(self, retention)

    def maintain_partitions(self, retention: timedelta | None) -> PartitionChange | None:
        return partitions.maintain(self, retention)

    def rows_to_unite(self) -> int | None:
        return uniting.rows_to_copy(self.database)

    def unite_history(self) -> PartitionChange | None:
        return uniting.unite(self.database)


def _are_alike(transitions: Sequence[Transition]) -> TypeGuard[Sequence[Finish]]:
    """Whether each of them is the end of a message that no other follows."""
    return all(type(one) is Finish for one in transitions) and not with_follow_ups(transitions)


_ALONE = Fused(sql.SETTLE_AND_CLAIM, {})


def _fused(concerning: Sequence[tuple[Feature, Sequence[Transition]]]) -> Fused | None:
    """The statement for a batch, if at most one feature takes part in it, and has one."""
    match concerning:
        case []:
            return _ALONE
        case [(feature, transitions)]:
            return feature.fused(transitions)
        case _:
            return None


def finishing(finishes: Sequence[Finish]) -> Given:
    """The statement that ends them."""
    statement = sql.FINISH_ONE if len(finishes) == 1 else sql.FINISH
    return Given(statement, of_finishes(finishes), may_prepare=len(finishes) <= FEW)


def ended_of(finishes: Sequence[Finish], rows: Sequence[tuple[list[int] | None]]) -> set[int]:
    """The ids of those that ended, of the answer of `sql.FINISH`."""
    ((ended,),) = rows
    return {finish.claimed.id for finish in finishes} if ended is None else set(ended)


def missing_of(finishes: Sequence[Finish], ended: list[int] | None) -> list[Finish]:
    """`ended` None: all of them ended."""
    if ended is None:
        return []
    return [finish for finish in finishes if finish.claimed.id not in ended]


def settled_or_busy(
    settle: Callable[[Sequence[Transition], str], Settled], missing: Sequence[Finish], worker: str
) -> Settled:
    """Those that did not end, after a statement that has claimed others.

    That is committed, and must not be lost with an error: after one they are busy.
    """
    try:
        return settle(missing, worker)
    except Error:
        return Settled(busy=frozenset(finish.claimed.id for finish in missing))


# An operator's edits on PostgreSQL: each is one statement.


class PostgreSQLOperatorStore(OperatorStore):
    def keyed_kinds(self, keys: KeyRange = ALL_KEYS) -> list[str]:
        return [row[0] for row in self.database.rows(operator_sql.KEYED_KINDS, keys._asdict())]

    def _move(self, moves: Sequence[Move]) -> set[int]:
        parameters = {
            **_seen([move.seen for move in moves]),
            "new_times": [move.scheduled_at for move in moves],
            "new_queues": [move.queue for move in moves],
            "new_priorities": [move.priority for move in moves],
        }
        moved = self.database.ids(operator_sql.MOVE, parameters)
        self._store.notify_after_commit([move.scheduled_at for move in moves])
        return moved

    def cancel(self, seen: Sequence[Seen]) -> set[int]:
        return self.database.ids(operator_sql.CANCEL, _seen(seen))

    def rewrite(self, rewrites: Sequence[Rewrite]) -> set[int]:
        parameters = {
            **_seen([rewrite.seen for rewrite in rewrites]),
            "payloads_before": [rewrite.before for rewrite in rewrites],
            "payloads": [rewrite.after for rewrite in rewrites],
        }
        return self.database.ids(operator_sql.REWRITE, parameters)

    def stop(self, seen: Sequence[Seen]) -> set[int]:
        return self.database.ids(operator_sql.STOP, _seen(seen))

    def _revive(self, revivals: Sequence[Revival], outcome: str) -> set[int]:
        times = [revival.scheduled_at for revival in revivals]
        ids = [revival.id for revival in revivals]
        revived = self.database.ids(operator_sql.REVIVE, {"ids": ids, "times": times, "outcome": outcome})
        self._store.notify_after_commit(times)
        return revived

    def _scan_lanes(
        self, lanes: Sequence[Lane], state: MessageState | None, parameters: dict[str, Any]
    ) -> list[KeysetPage]:
        """All lanes in one statement."""
        words = {"queue": "lane.queue", "priority": "lane.priority"}
        along = operator.lane(self.database.dialect, state, wanted_of(parameters), **words)
        places = {"queues": [lane.queue for lane in lanes], "priorities": [lane.priority for lane in lanes]}
        return self._pages(
            self.database.rows(operator_sql.LANES.format(lane=along), {**parameters, **places}), parameters
        )


def _seen(seen: Sequence[Seen]) -> dict[str, Any]:
    return {
        "ids": [one.id for one in seen],
        "generations": [one.generation for one in seen],
        "attempts": [one.attempt for one in seen],
        "times": [one.scheduled_at for one in seen],
        "queues": [one.queue for one in seen],
        "priorities": [one.priority for one in seen],
    }
