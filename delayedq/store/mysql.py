"""The store on MariaDB and MySQL: a few statements per verb, in one short transaction at READ COMMITTED.

No worker waits for a row that somebody's transaction has locked: what is to be changed is first locked with SKIP
LOCKED, then written by id. InnoDB locks index records too, and now and then undoes one of two transactions to free the
other. A verb that began its transaction itself is then tried again; within the caller's transaction the error is the
caller's, since all of it was undone.

Two promises are weaker than on PostgreSQL. Other processes are not woken, they ask (see MySQLListener). And an offer of
a known key locks the gap beside that key until its transaction ends: until then nobody else can create keys there.
"""

from __future__ import annotations

from itertools import batched
from typing import TYPE_CHECKING, Any

from django.db import transaction

from delayedq.conf import get_settings
from delayedq.store import mysql_sql as sql
from delayedq.store.base import new_token
from delayedq.store.listen import MySQLListener
from delayedq.store.mysql_again import again
from delayedq.store.mysql_edits import MySQLEdits
from delayedq.store.mysql_offers import offer_one, offer_run, runs
from delayedq.store.mysql_rows import ROWS
from delayedq.store.mysql_values import (
    claimed_from,
    conditions_of,
    fence,
    given_back,
    instant,
    length,
    microseconds,
    packets,
    place,
    record,
    superseded,
    text,
)
from delayedq.store.protocol import Flaw, Lane, OnConflict, Sight

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    from delayedq.store.protocol import (
        Claimed,
        Condition,
        Finish,
        GiveBack,
        Listener,
        Offer,
        Offered,
        Settled,
        Tick,
        Transition,
    )

ISOLATION_HINT = 'Leave "isolation_level" out of OPTIONS: Django then sets READ COMMITTED.'
PACKET_HINT = "Raise max_allowed_packet on the server, or lower DELAYEDQ['MAX_PAYLOAD_BYTES']."


class MySQLStore(MySQLEdits):
    def listener(self) -> Listener:
        return MySQLListener(self.alias)

    def flaws(self, *, connect: bool) -> list[Flaw]:
        found = []
        level = self.connection.settings_dict.get("OPTIONS", {}).get("isolation_level", "read committed")
        if str(level).lower() != "read committed":
            problem = f"The isolation level is {level}: workers and offers lock more than their own rows."
            found.append(Flaw("delayedq.W003", problem, ISOLATION_HINT))
        if connect:
            # A payload is quoted in its statement, which may double it.
            packet, payload = self._rows(sql.PACKET, {})[0][0], get_settings().MAX_PAYLOAD_BYTES
            if packet < 2 * payload:
                problem = f"A payload may take {payload:,} bytes, but max_allowed_packet is {packet:,}."
                found.append(Flaw("delayedq.W004", problem, PACKET_HINT))
        return found

    def now(self) -> datetime:
        return instant(self._rows(sql.CLOCK, {})[0][0])

    # Offers

    @again
    def offer(self, offer: Offer, on_conflict: OnConflict = OnConflict.REPLACE, now: datetime | None = None) -> Offered:
        return super().offer(offer, on_conflict, now)

    def offer_many(
        self, offers: Iterable[Offer], on_conflict: OnConflict = OnConflict.REPLACE, now: datetime | None = None
    ) -> list[Offered]:
        return self._offer_all(list(offers), on_conflict, now)

    @again
    def _offer_all(self, offers: list[Offer], on_conflict: OnConflict, now: datetime | None) -> list[Offered]:
        return super().offer_many(offers, on_conflict, now)

    @again
    def offer_each(self, offers: Sequence[tuple[Offer, OnConflict]], now: datetime | None = None) -> list[Offered]:
        return super().offer_each(offers, now)

    def _offer_one(self, offer: Offer, on_conflict: OnConflict, now: datetime | None) -> Offered:
        with self.connection.cursor() as cursor:
            return offer_one(cursor, offer, on_conflict, now)

    def _offer_wave(self, offers: Sequence[Offer], on_conflict: OnConflict, now: datetime | None) -> list[Offered]:
        with self.connection.cursor() as cursor:
            return [offered for run in runs(offers, ROWS) for offered in offer_run(cursor, run, on_conflict, now)]

    # The life of a lease

    def look(self, queues: Collection[str] | None = None, now: datetime | None = None) -> list[Sight]:
        seen = [lane for lane, paused in self._lanes() if not paused and (queues is None or lane.queue in queues)]
        return self.glance(seen, now)

    def lanes(self) -> list[Lane]:
        return [lane for lane, _ in self._lanes()]

    def _lanes(self) -> Iterator[tuple[Lane, bool]]:
        """All, and which are paused: a loose scan of the due index, one probe per lane, however many rows it has."""
        last = Lane("", 0)
        while rows := self._rows(sql.NEXT_LANE, {"queue": last.queue, "priority": last.priority}):
            last = Lane(*rows[0][:2])
            yield last, bool(rows[0][2])

    def glance(self, lanes: Sequence[Lane], now: datetime | None = None) -> list[Sight]:
        moment = text(now)
        sights = []
        for some in batched(lanes, ROWS // 5):
            values = [(moment, *place(lane).values(), moment) for lane in some]
            with self.connection.cursor() as cursor:
                cursor.execute(sql.heads(len(some)), [value for row in values for value in row])
                sights += [Sight(row[0], row[1], instant(row[2]), row[3]) for row in cursor.fetchall()]
        return sights

    @again
    def claim(
        self, lanes: Sequence[Lane], limit: int, lease: timedelta, worker: str, now: datetime | None = None
    ) -> list[Claimed]:
        return self._claim(sql.CLAIMABLE, map(place, lanes), limit, lease, worker, now) if lanes else []

    @again
    def claim_matching(
        self,
        lane: Lane,
        conditions: Sequence[Condition],
        limit: int,
        lease: timedelta,
        worker: str,
        now: datetime | None = None,
    ) -> list[Claimed]:
        wanted = {**place(lane), **conditions_of(conditions)}
        return self._claim(sql.claimable_matching(len(conditions)), [wanted], limit, lease, worker, now)

    @again
    def claim_unchanged(
        self, id_: int, generation: int, lease: timedelta, worker: str, now: datetime | None = None
    ) -> Claimed | None:
        wanted = {"id": id_, "generation": generation}
        claimed = self._claim(sql.CLAIMABLE_UNCHANGED, [wanted], 1, lease, worker, now)
        return claimed[0] if claimed else None

    def _claim(
        self,
        statement: str,
        places: Iterable[Mapping[str, Any]],
        limit: int,
        lease: timedelta,
        worker: str,
        now: datetime | None,
    ) -> list[Claimed]:
        """Lock what the statement finds in each place, as long as there is room; then lease it."""
        parameters = {"token": new_token(), "worker": worker, "lease": microseconds(lease), "now": text(now)}
        claimed: list[Claimed] = []
        if limit <= 0:
            return claimed
        with transaction.atomic(using=self.alias):
            for where in places:
                if room := limit - len(claimed):
                    claimed += map(claimed_from, self._rows(statement, {**parameters, **where, "limit": room}))
            self._write_to(sql.LEASE, (one.id for one in claimed), **parameters)
        return claimed

    @again
    def tick(
        self,
        transitions: Sequence[Transition],
        lanes: Sequence[Lane],
        limit: int,
        lease: timedelta,
        worker: str,
        now: datetime | None = None,
    ) -> Tick:
        return super().tick(transitions, lanes, limit, lease, worker, now)

    @again
    def settle(self, transitions: Sequence[Transition], worker: str, now: datetime | None = None) -> Settled:
        return super().settle(transitions, worker, now)

    def _finish(self, finishes: Sequence[Finish], now: datetime | None) -> set[int]:
        held = self._held_to_delete([finish.claimed for finish in finishes])
        self._write_given(sql.RECORD, [record(finish) for finish in finishes if finish.claimed.id in held], now)
        self._write_to(sql.DELETE, held)
        return held

    def _discard(self, claims: Sequence[Claimed]) -> set[int]:
        held = self._held_to_delete(claims)
        self._write_to(sql.DELETE, held)
        return held

    def _held_to_delete(self, claims: Sequence[Claimed]) -> set[int]:
        """Lock what nobody else has locked; the ids of what still carries its token and generation."""
        free = self._lock_to_delete([(claimed.id, claimed.kind, claimed.key) for claimed in claims])
        return {claimed.id for claimed in claims if free.get(claimed.id) == fence(claimed)}

    def _lock(self, claims: Iterable[Claimed]) -> dict[int, tuple[int | None, int]]:
        """Lock those of these messages that nobody has locked; their tokens and generations."""
        return {row[0]: (row[1], row[2]) for row in self._rows_of(sql.FREE, [claimed.id for claimed in claims])}

    def _give_back(self, returns: Sequence[GiveBack], now: datetime | None) -> set[int]:
        free = self._lock(back.claimed for back in returns)
        held = [back for back in returns if free.get(back.claimed.id) == fence(back.claimed)]
        self._write_given(sql.GIVE_BACK, map(given_back, held), now)
        return {back.claimed.id for back in held}

    def _rearm(self, claims: Sequence[Claimed]) -> set[int]:
        free = self._lock(claims)
        replaced = {c.id for c in claims if c.id in free and free[c.id][0] == c.token and free[c.id][1] != c.generation}
        self._write_to(sql.REARM, replaced)
        return replaced

    def _still_held(self, claims: Sequence[Claimed]) -> set[int]:
        held = set(self._rows_of(sql.HELD, [claimed.id for claimed in claims]))
        return {claimed.id for claimed in claims if (claimed.id, claimed.token) in held}

    def _record_superseded(self, ran: Sequence[Finish | GiveBack], worker: str, now: datetime | None) -> None:
        rows = [superseded(id_, t, worker, now) for id_, t in zip(self._draw_ids(len(ran)), ran, strict=True)]
        for some in packets(rows, length, ROWS):
            with self.connection.cursor() as cursor:
                cursor.execute(sql.record_superseded(len(some)), [value for row in some for value in row])

    def _draw_ids(self, count: int) -> list[int]:
        for some in batched(range(count), ROWS):
            self._write(sql.draw_ids(len(some)), {})
        ids = [row[0] for row in self._rows(sql.DRAWN_IDS, {})]
        self._write_to(sql.DELETE, ids)
        return ids

    @again
    def renew(
        self, held: Sequence[tuple[int, int]], lease: timedelta, now: datetime | None = None
    ) -> set[tuple[int, int]]:
        with transaction.atomic(using=self.alias):
            free = self._free(held)
            self._write_to(sql.RENEW, (id_ for id_, _ in free), lease=microseconds(lease), now=text(now))
            rest = set(held) - free
            return rest - set(self._rows_of(sql.HELD, {id_ for id_, _ in rest}))

    @again
    def release(self, held: Sequence[tuple[int, int]]) -> None:
        with transaction.atomic(using=self.alias):
            self._write_to(sql.RELEASE, (id_ for id_, _ in self._free(held)))

    def _free(self, held: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        """Lock these messages (id, token); those that nobody else has locked and that carry their token."""
        return set(held) & {(row[0], row[1]) for row in self._rows_of(sql.FREE, {id_ for id_, _ in held})}

    @again
    def _unschedule(self, kind: str, key: str, now: datetime | None) -> bool:
        with transaction.atomic(using=self.alias):
            ids = [row[0] for row in self._rows(sql.LOCK_KEY, {"kind": kind, "key": key})]
            self._cancel(ids, None, now)
        return bool(ids)

    @again
    def _drop_all(self, queue: str, now: datetime | None) -> int:
        with transaction.atomic(using=self.alias):
            ids = [row[0] for row in self._rows(sql.LOCK_QUEUE, {"queue": queue})]
            self._cancel(ids, None, now)
        return len(ids)

    @again
    def _erase(self, queue: str, key: str | None) -> int:
        return super()._erase(queue, key)

    def withdraw(self, ids: Iterable[int], errors: str | None = None, now: datetime | None = None) -> set[int]:
        return self._withdraw(set(ids), errors, now)

    @again
    def _withdraw(self, ids: set[int], errors: str | None, now: datetime | None) -> set[int]:
        with transaction.atomic(using=self.alias):
            self._lock_to_delete([(row[0], row[1], row[2]) for row in self._rows_of(sql.KEYS, ids)])
            unbegun = {row[0] for row in self._rows_of(sql.FREE, ids) if row[1] is None and row[3] == 0}
            self._cancel(unbegun, errors, now)
        return unbegun

    # History

    def finished(self, ids: Iterable[int]) -> set[int]:
        return {row[0] for row in self._rows_of(sql.FINISHED, ids)}

    @again
    def prune(self, older_than: timedelta, limit: int, now: datetime | None = None) -> int:
        age = {"older_than": microseconds(older_than), "limit": limit, "now": text(now)}
        with transaction.atomic(using=self.alias):
            ids = [row[0] for row in self._rows(sql.PRUNABLE, age)]
            self._write_to(sql.PRUNE, ids)
        return len(ids)
