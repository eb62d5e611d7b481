"""The store on MariaDB and MySQL: a few statements per verb, in one short transaction at READ COMMITTED.

No worker waits for a row that another transaction has locked: what is to be changed is first locked with SKIP
LOCKED, then written by id. InnoDB locks index records too, and now and then undoes one of two transactions to free the
other. A verb that began its transaction itself is then tried again; within the caller's transaction the error is the
caller's, since all of it was undone.

Two promises are weaker than on PostgreSQL. Other processes are not woken, they ask (see MySQLListener). And an offer of
a known key locks the gap beside that key until its transaction ends: until then no other can create keys there.
"""

from __future__ import annotations

from itertools import batched, groupby
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from delayedq.conf import get_settings
from delayedq.sql import columns
from delayedq.sql.dialects import instant
from delayedq.store import retention
from delayedq.store.bare_queues import FEW
from delayedq.store.base import Store
from delayedq.store.claim_tokens import new_token
from delayedq.store.database import retry_on_deadlock
from delayedq.store.feature import TakenMessage
from delayedq.store.mysql import sql
from delayedq.store.mysql.database import (
    ROWS,
    MySQLListener,
    check_year,
    claimed_from,
    document,
    fence,
    given_back,
    length,
    matching_of,
    microseconds,
    packets,
    place,
    record,
    superseded,
    text,
)
from delayedq.store.offers import in_lock_order
from delayedq.store.operator import ALL_KEYS, OperatorStore, Seen
from delayedq.store.protocol import (
    ClaimRequest,
    Flaw,
    Lane,
    LaneHead,
    Offered,
    OfferOutcome,
    OnConflict,
    with_watermarks,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    from django.db.backends.utils import CursorWrapper

    from delayedq.core.conditions import KeyRange
    from delayedq.store.bare_queues import Matching
    from delayedq.store.base import LeaseId
    from delayedq.store.database import Listener
    from delayedq.store.mysql.database import MySQLDatabase
    from delayedq.store.operator import Move, Revival, Rewrite
    from delayedq.store.protocol import Claimed, Finish, GiveBack, Offer

# Offers on MariaDB and MySQL: what an upsert did, found out without a RETURNING.


#: The server's integers wrap: an id below zero comes as one above this.
HALF = 2**63

CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED


class _Stored(NamedTuple):
    id: int
    generation: int


def offer_one(cursor: CursorWrapper, offer: Offer, on_conflict: OnConflict, now: str | None) -> Offered:
    """Offer with one statement; its answer contains the id and the outcome."""
    cursor.execute(sql.insert(1, on_conflict), _values(offer, now))
    id_ = int(cursor.lastrowid)
    if id_ > HALF:
        return Offered(IGNORED, 2 * HALF - id_)
    return Offered(CREATED if cursor.rowcount == 1 else UPDATED, id_)


def runs(offers: Sequence[Offer], rows: int) -> Iterator[list[Offer]]:
    """In their order, split for statements of limited size; in each all have a key, or none has."""
    for _, alike in groupby(offers, lambda offer: offer.key is None):
        yield from packets(alike, lambda offer: len(offer.payload) + len(offer.metadata or ""), rows)


def offer_run(cursor: CursorWrapper, run: Sequence[Offer], on_conflict: OnConflict, now: str | None) -> list[Offered]:
    names = {"names": document(sorted((offer.kind, offer.key) for offer in run if offer.key is not None))}
    keyed = run[0].key is not None
    known = _by_key(cursor, sql.KNOWN, names) if keyed else {}
    cursor.execute(sql.insert_many(len(run), on_conflict), [value for offer in run for value in _values(offer, now)])
    first = int(cursor.lastrowid)
    cursor.execute(sql.STEP)
    step = cursor.fetchone()[0]
    # The ids of one statement are drawn in a row, so whatever lies in between was created by it.
    created = range(first, first + len(run) * step, step) if first else range(0)
    if not keyed:
        return [Offered(CREATED, id_) for id_ in created]
    stored = known | _by_key(cursor, sql.STORED, names)  # an old snapshot does not show what was not changed
    keeps = on_conflict is OnConflict.KEEP
    return [
        _judge(stored[offer.kind, offer.key], known.get((offer.kind, offer.key)), created, keeps=keeps) for offer in run
    ]


def _by_key(cursor: CursorWrapper, statement: str, names: dict[str, str]) -> dict[tuple[str, str | None], _Stored]:
    cursor.execute(statement, names)
    return {(kind, key): _Stored(id_, generation) for kind, key, id_, generation in cursor.fetchall()}


def _judge(stored: _Stored, known: _Stored | None, created: range, *, keeps: bool) -> Offered:
    """`known` was locked before the offer, so only this changed it since; None if the key was not live then.

    Others may have created it in between, and replaced it too. `keeps`: this offer replaces nothing.
    """
    if known is None and stored.id in created and not stored.generation:
        return Offered(CREATED, stored.id)
    if keeps:
        return Offered(IGNORED, stored.id)
    return Offered(IGNORED if stored.generation == (known.generation if known else 0) else UPDATED, stored.id)


def _values(offer: Offer, now: str | None) -> list[Any]:
    values = [getattr(offer, name) for name in columns.OFFER]
    due = _due(offer.scheduled_at) or now
    return [*values, due, due, now]


def _due(scheduled_at: datetime | None) -> str | None:
    if scheduled_at is not None:
        check_year(scheduled_at)
    return text(scheduled_at)


# Store


ISOLATION_HINT = 'Leave "isolation_level" out of OPTIONS: Django then sets READ COMMITTED.'

PACKET_HINT = "Raise max_allowed_packet on the server, or lower DELAYEDQ['MAX_PAYLOAD_BYTES']."


class MySQLStore(Store):
    page: ClassVar[str] = sql.PAGE
    keys: ClassVar[str] = sql.KEYS_OF_QUEUE
    database: MySQLDatabase

    def listener(self) -> Listener:
        return MySQLListener(self.alias)

    def flaws(self, *, connect: bool) -> list[Flaw]:
        found = []
        level = self.database.connection.settings_dict.get("OPTIONS", {}).get("isolation_level", "read committed")
        if str(level).lower() != "read committed":
            problem = f"The isolation level is {level}: offers would find old rows, and tell wrong outcomes."
            found.append(Flaw("delayedq.E007", problem, ISOLATION_HINT))
        if connect:
            # A payload is quoted in its statement, which may double it.
            packet, payload = self.database.rows(sql.PACKET)[0][0], get_settings().MAX_PAYLOAD_BYTES
            if packet < 2 * payload:
                problem = f"A payload may take {payload:,} bytes, but max_allowed_packet is {packet:,}."
                found.append(Flaw("delayedq.W004", problem, PACKET_HINT))
        return found

    # Offers

    def check_time(self, when: object) -> None:
        super().check_time(when)
        check_year(cast("datetime", when))

    def _offer_one(self, offer: Offer, on_conflict: OnConflict) -> Offered:
        with self.database.connection.cursor() as cursor:
            return offer_one(cursor, offer, on_conflict, self.database.now_parameter)

    def _offer_wave(self, offers: Sequence[Offer], on_conflict: OnConflict) -> list[Offered]:
        now = self.database.now_parameter
        order: Sequence[int] = range(len(offers))
        if len(offers) > ROWS:  # fewer draw their ids in the order of the offers
            order = in_lock_order(offers, order)
        with self.database.connection.cursor() as cursor:
            each = runs([offers[position] for position in order], ROWS)
            outcomes = [offered for run in each for offered in offer_run(cursor, run, on_conflict, now)]
        offered = dict(zip(order, outcomes, strict=True))
        return [offered[position] for position in range(len(offers))]

    # The life of a lease

    def scan(self, queues: Collection[str] | None = None) -> list[LaneHead]:
        seen = [lane for lane, paused in self._lanes() if not paused and (queues is None or lane.queue in queues)]
        return self.peek(seen)

    def scan_ahead(self, known: Sequence[Lane], queues: Collection[str] | None = None) -> list[LaneHead]:
        return self.peek(with_watermarks(self._lanes_around(known), known, queues))

    def lanes(self) -> list[Lane]:
        return [lane for lane, _ in self._lanes()]

    def _lanes(self) -> Iterator[tuple[Lane, bool]]:
        """All, and which are paused: a loose scan of the due index, one probe per lane, however many rows it has."""
        last = Lane("", 0)
        while rows := self.database.rows(sql.NEXT_LANE, {"queue": last.queue, "priority": last.priority}):
            last = Lane(*rows[0][:2])
            yield last, bool(rows[0][2])

    def _lanes_around(self, known: Sequence[Lane]) -> Iterator[Lane]:
        """The same, but of the known ones nothing is read: they go in by name."""
        last = Lane("", 0)
        for stop in (*sorted(known), None):
            statement = sql.NEXT_LANE_BEFORE if stop else sql.NEXT_LANE
            before = {"before_queue": stop.queue, "before_priority": stop.priority} if stop else {}
            while rows := self.database.rows(statement, {"queue": last.queue, "priority": last.priority, **before}):
                yield (last := Lane(*rows[0][:2]))
            if stop:
                yield (last := stop)

    def peek(self, lanes: Sequence[Lane]) -> list[LaneHead]:
        moment = self.database.now_parameter
        heads = []
        for some in batched(lanes, ROWS // 6):
            values = [(moment, *place(lane).values(), moment, moment) for lane in some]
            with self.database.connection.cursor() as cursor:
                cursor.execute(sql.heads(len(some)), [value for row in values for value in row])
                heads += [LaneHead(row[0], row[1], instant(row[2]), row[3]) for row in cursor.fetchall()]
        return heads

    def _claim(self, request: ClaimRequest) -> list[Claimed]:
        places = [{**place(lane), "expired": request.expired} for lane in request.lanes]
        return self.lease(sql.CLAIMABLE, places, request) if request.lanes else []

    def _claim_matching(self, matching: Matching, limit: int, lease: timedelta, worker: str) -> list[Claimed]:
        wanted = {**matching_of(matching), "expired": True}
        request = ClaimRequest([matching.lane], limit, lease, worker)
        if not matching.by_key:
            return self.lease(sql.claimable_matching(matching), [wanted], request)
        ids = [row[0] for row in self.database.rows(sql.few_matching(matching), {**wanted, "limit": FEW})]
        # One after the other where others were faster: nothing is locked that is not claimed.
        some = [ids[:limit], *([id_] for id_ in ids[limit:])] if ids else []
        places = [{**wanted, "ids": chunk} for chunk in some]
        return self.lease(sql.claimable_few(matching), places, request)

    @retry_on_deadlock
    def claim_unchanged(self, id_: int, generation: int, lease: timedelta, worker: str) -> Claimed | None:
        wanted = {"id": id_, "generation": generation, "expired": True}
        claimed = self.lease(sql.CLAIMABLE_UNCHANGED, [wanted], ClaimRequest((), 1, lease, worker))
        return claimed[0] if claimed else None

    def lease(self, statement: str, places: Iterable[Mapping[str, Any]], request: ClaimRequest) -> list[Claimed]:
        """Lock what the statement finds in each place, as long as there is room; then lease it."""
        token = request.token or new_token()
        parameters = {"token": token, "worker": request.worker, "lease": microseconds(request.lease)}
        claimed: list[Claimed] = []
        if request.limit <= 0:
            return claimed
        with self.database.atomic():
            for where in places:
                if room := request.limit - len(claimed):
                    claimed += map(claimed_from, self.database.rows(statement, {**parameters, **where, "limit": room}))
            self.database.write_to(sql.LEASE, (one.id for one in claimed), **parameters)
        return claimed

    def _finish(self, finishes: Sequence[Finish]) -> set[int]:
        held = self._held_to_delete([finish.claimed for finish in finishes])
        self.database.write_given(sql.RECORD, [record(finish) for finish in finishes if finish.claimed.id in held])
        self.database.write_to(sql.DELETE, held)
        return held

    def _discard(self, claims: Sequence[Claimed]) -> set[int]:
        held = self._held_to_delete(claims)
        self.database.write_to(sql.DELETE, held)
        return held

    def _held_to_delete(self, claims: Sequence[Claimed]) -> set[int]:
        """Lock what no other transaction has locked; the ids of what still carries its token and generation."""
        free = self.database.lock_to_delete([(claimed.id, claimed.kind, claimed.key) for claimed in claims])
        return {claimed.id for claimed in claims if free.get(claimed.id) == fence(claimed)}

    def _lock(self, claims: Iterable[Claimed]) -> dict[int, tuple[int | None, int]]:
        """Lock those of these messages that no other transaction has locked; their tokens and generations."""
        return {row[0]: (row[1], row[2]) for row in self.database.rows_of(sql.FREE, [claimed.id for claimed in claims])}

    def _give_back(self, returns: Sequence[GiveBack]) -> set[int]:
        free = self._lock(back.claimed for back in returns)
        held = [back for back in returns if free.get(back.claimed.id) == fence(back.claimed)]
        self.database.write_given(sql.GIVE_BACK, map(given_back, held))
        return {back.claimed.id for back in held}

    def _rearm(self, claims: Sequence[Claimed]) -> set[int]:
        free = self._lock(claims)
        replaced = {c.id for c in claims if c.id in free and free[c.id][0] == c.token and free[c.id][1] != c.generation}
        self.database.write_to(sql.REARM, replaced)
        return replaced

    def _still_held(self, claims: Sequence[Claimed]) -> set[int]:
        held = set(self.database.rows_of(sql.HELD, [claimed.id for claimed in claims]))
        return {claimed.id for claimed in claims if (claimed.id, claimed.token) in held}

    def _record_superseded(self, ran: Sequence[Finish | GiveBack], worker: str) -> None:
        now = self.database.now_parameter
        rows = [superseded(id_, t, worker, now) for id_, t in zip(self._draw_ids(len(ran)), ran, strict=True)]
        for some in packets(rows, length, ROWS):
            with self.database.connection.cursor() as cursor:
                cursor.execute(sql.record_superseded(len(some)), [value for row in some for value in row])

    def _draw_ids(self, count: int) -> list[int]:
        for some in batched(range(count), ROWS):
            self.database.write(sql.draw_ids(len(some)))
        ids = [row[0] for row in self.database.rows(sql.DRAWN_IDS)]
        self.database.write_to(sql.DELETE, ids)
        return ids

    def _renew(self, held: Sequence[LeaseId], lease: timedelta) -> dict[LeaseId, float | None]:
        with self.database.atomic():
            free = self._free(held)
            self.database.write_to(sql.RENEW, (id_ for id_, _ in free), lease=microseconds(lease))
            rest = set(held) - free
            rows = self.database.rows_of(sql.LEFT, {id_ for id_, _ in rest})
        left = {(id_, token): micros / 1e6 for id_, token, micros in rows}
        return {pair: left.get(pair) for pair in rest}

    def _keep_locked(self, held: Collection[LeaseId], lease: timedelta) -> None:
        micros = microseconds(lease)
        self.database.write_given(sql.KEEP_LOCKED, ([*pair, micros] for pair in held))

    def _forget_locked(self, held: Collection[LeaseId]) -> None:
        self.database.write_given(sql.FORGET_LOCKED, map(list, held))

    def _forget_expired(self) -> None:
        self.database.write(sql.FORGET_EXPIRED)

    def _release(self, held: Collection[LeaseId]) -> dict[LeaseId, bool]:
        with self.database.atomic():
            free = self._free(held)
            self.database.write_to(sql.RELEASE, (id_ for id_, _ in free))
            self.tell_released(free)
            rest = set(held) - free
            present = set(self.database.rows_of(sql.HELD, {id_ for id_, _ in rest}))
        return {pair: pair in present for pair in rest}

    def _free(self, held: Collection[LeaseId]) -> set[LeaseId]:
        """Lock these messages (id, token); those that no other transaction has locked and that carry their token."""
        return set(held) & {(row[0], row[1]) for row in self.database.rows_of(sql.FREE, {id_ for id_, _ in held})}

    def _unschedule(self, kind: str, key: str) -> bool:
        with self.database.atomic():
            ids = self._locked_to_drop(sql.LOCK_KEY, {"kind": kind, "key": key})
            self.database.cancel(ids)
        return bool(ids)

    def _drop_all(self, queue: str) -> int:
        with self.database.atomic():
            ids = self._locked_to_drop(sql.LOCK_QUEUE, {"queue": queue})
            self.database.cancel(ids)
        return len(ids)

    def _locked_to_drop(self, statement: str, parameters: dict[str, Any]) -> set[int]:
        """The ids of the messages that the statement locks; those that run are taken from their attempts."""
        rows = self.database.rows(statement, parameters)
        self.take_away([TakenMessage(id_, priority) for id_, priority, token in rows if token is not None])
        return {row[0] for row in rows}

    def _erase(self, queue: str, key: str | None) -> int:
        lock = sql.LOCK_QUEUE if key is None else sql.LOCK_KEY_OF_QUEUE
        with self.database.atomic():
            ids = self._locked_to_drop(lock, {"queue": queue, "key": key})
            self.database.write_to(sql.DELETE, ids)
        return len(ids)

    def withdraw(self, ids: Iterable[int], errors: str | None = None) -> set[int]:
        return self._withdraw(set(ids), errors)

    @retry_on_deadlock
    def _withdraw(self, ids: set[int], errors: str | None) -> set[int]:
        with self.database.atomic():
            self.database.lock_to_delete([(row[0], row[1], row[2]) for row in self.database.rows_of(sql.KEYS, ids)])
            unbegun = {row[0] for row in self.database.rows_of(sql.FREE, ids) if row[1] is None and row[3] == 0}
            self.database.cancel(unbegun, errors)
        return unbegun

    # History

    def in_history(self, ids: Iterable[int]) -> set[int]:
        return {row[0] for row in self.database.rows_of(sql.FINISHED, ids)}

    @retry_on_deadlock
    def prune(self, older_than: timedelta, limit: int) -> int:
        unneeded, parameters = retention.unneeded(self.alias, sql.UNNEEDED)
        parameters |= {"older_than": microseconds(older_than), "limit": limit}
        with self.database.atomic():
            ids = [row[0] for row in self.database.rows(sql.PRUNABLE.format(unneeded=unneeded), parameters)]
            self.database.write_to(sql.PRUNE, ids)
        return len(ids)


# An operator's edits on MariaDB and MySQL: what is to be changed is locked first, if it is not locked already.


class MySQLOperatorStore(OperatorStore):
    database: MySQLDatabase
    groups: ClassVar[str] = sql.GROUPS

    def keyed_kinds(self, keys: KeyRange = ALL_KEYS) -> list[str]:  # noqa: ARG002
        kinds: list[str] = []
        while rows := self.database.rows(sql.NEXT_KIND, {"kind": kinds[-1] if kinds else ""}):
            kinds.append(rows[0][0])
        return kinds

    def _move(self, moves: Sequence[Move]) -> set[int]:
        with self.database.atomic():
            unchanged = self._unchanged([move.seen for move in moves])
            self._store.take_away(_leased(unchanged), waits=True)
            given = [_moved(move) for move in moves if move.seen.id in unchanged]
            self.database.write_given(sql.MOVE, given)
        return set(unchanged)

    @retry_on_deadlock
    def cancel(self, seen: Sequence[Seen]) -> set[int]:
        with self.database.atomic():
            rows = self.database.rows_of(sql.KEYS, [one.id for one in seen])
            self.database.lock_to_delete([(row[0], row[1], row[2]) for row in rows])
            unchanged = self._unchanged(seen)
            self._store.take_away(_leased(unchanged))
            self.database.cancel(unchanged)
        return set(unchanged)

    @retry_on_deadlock
    def rewrite(self, rewrites: Sequence[Rewrite]) -> set[int]:
        with self.database.atomic():
            unchanged = self._unchanged([rewrite.seen for rewrite in rewrites])
            payloads = dict(self.database.rows_of(sql.PAYLOADS, unchanged))
            given = [one for one in rewrites if payloads.get(one.seen.id) == one.before]
            changed = {one.seen.id: unchanged[one.seen.id] for one in given}
            self._store.take_away(_leased(changed), waits=True)
            self.database.write_given(sql.REWRITE, [[one.seen.id, one.after] for one in given])
        return set(changed)

    @retry_on_deadlock
    def stop(self, seen: Sequence[Seen]) -> set[int]:
        with self.database.atomic():
            rows = self.database.rows_of(sql.KEYS, [one.id for one in seen])
            self.database.lock_to_delete([(row[0], row[1], row[2]) for row in rows])
            held = self._unchanged(seen, sql.SEEN_HELD)
            self._store.take_away(_leased(held))
            self.database.write_to(sql.RECORD_STOPPED, held)
            self.database.write_to(sql.DELETE, held)
        return set(held)

    def _unchanged(self, seen: Iterable[Seen], which: str = sql.SEEN_WAITING) -> dict[int, bool]:
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
            self.database.write_to(sql.PRUNE, revived)
        return revived


def _leased(locked: Mapping[int, bool]) -> list[TakenMessage]:
    return [TakenMessage(id_) for id_, is_leased in locked.items() if is_leased]


def _moved(move: Move) -> list[Any]:
    return [move.seen.id, text(move.scheduled_at), move.queue, move.priority]
