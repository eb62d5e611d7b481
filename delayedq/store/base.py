"""What the stores share: the verbs that do not depend on the database's SQL."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from contextlib import suppress
from itertools import batched
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import connections, transaction
from django.utils import timezone

from delayedq.conf import get_settings
from delayedq.store.offers import check, check_key, waves
from delayedq.store.presence import Roll
from delayedq.store.protocol import Discard, Finish, GiveBack, Offered, OfferOutcome, OnConflict, Settled, Tick

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime, timedelta

    from django.db.backends.base.base import BaseDatabaseWrapper

    from delayedq.store.protocol import Claimed, Condition, Flaw, Lane, Listener, Offer, Sight, Transition

#: How many messages go into one statement.
CHUNK = 10_000

#: A wake-up so soon after the last is dropped: whoever heard that one looks again twice as late.
NOTIFY_GAP = 0.010


class BaseStore(Roll):
    """The part of `protocol.Store` that is the same everywhere. See there for what each verb promises."""

    can_notify: ClassVar[bool] = False

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """The connection of the current thread."""
        return connections[self.alias]

    def _rows(self, statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows

    def flaws(self, *, connect: bool) -> list[Flaw]:  # noqa: ARG002
        return []

    # Offers

    def offer(self, offer: Offer, on_conflict: OnConflict = OnConflict.REPLACE, now: datetime | None = None) -> Offered:
        check(offer)
        offered = self._named(offer, self._offer_one(offer, on_conflict, now))
        self._announce([offer])
        return offered

    def offer_many(
        self, offers: Iterable[Offer], on_conflict: OnConflict = OnConflict.REPLACE, now: datetime | None = None
    ) -> list[Offered]:
        outcomes: list[Offered] = []
        with transaction.atomic(using=self.alias):
            for chunk in batched(offers, CHUNK):
                outcomes += self._offer_chunk(chunk, on_conflict, now)
                self._announce(chunk)
        return outcomes

    def _offer_chunk(self, offers: Sequence[Offer], on_conflict: OnConflict, now: datetime | None) -> list[Offered]:
        for offer in offers:
            check(offer)
        outcomes: list[Offered | None] = [None] * len(offers)
        for positions in waves(offers):
            wave = [offers[position] for position in positions]
            for position, offer, offered in zip(positions, wave, self._offer_wave(wave, on_conflict, now), strict=True):
                outcomes[position] = self._named(offer, offered)
        return outcomes  # type: ignore[return-value]  # every position is in a wave

    def offer_each(self, offers: Sequence[tuple[Offer, OnConflict]], now: datetime | None = None) -> list[Offered]:
        offered: dict[int, Offered] = {}
        with transaction.atomic(using=self.alias):
            # In rounds without a repeated key: within one, it makes no difference which policy goes first.
            for positions in waves([offer for offer, _ in offers]):
                for policy in OnConflict:
                    if chosen := [position for position in positions if offers[position][1] is policy]:
                        outcomes = self.offer_many((offers[position][0] for position in chosen), policy, now)
                        offered.update(zip(chosen, outcomes, strict=True))
        return [offered[position] for position in range(len(offers))]

    def _named(self, offer: Offer, offered: Offered) -> Offered:
        """An ignored offer returns no row: its message is found by key."""
        if offered.id is not None:
            return offered
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT id FROM delayedq_message WHERE kind = %s AND key = %s", [offer.kind, offer.key])
            row = cursor.fetchone()
        return Offered(OfferOutcome.IGNORED, row[0] if row else None)

    @abstractmethod
    def _offer_one(self, offer: Offer, on_conflict: OnConflict, now: datetime | None) -> Offered: ...

    @abstractmethod
    def _offer_wave(self, offers: Sequence[Offer], on_conflict: OnConflict, now: datetime | None) -> list[Offered]: ...

    # Wake-ups

    def _announce(self, offers: Collection[Offer]) -> None:
        """Wake the workers after commit, if something here is due before they would look again."""
        self._announce_times([offer.scheduled_at for offer in offers])

    def _announce_times(self, times: Collection[datetime | None]) -> None:
        """`_announce` messages that are due at these times; None is now."""
        if not self.can_notify:
            return
        soon = timezone.now() + get_settings().POLL_INTERVAL
        if any(time is None or time <= soon for time in times):
            with suppress(transaction.TransactionManagementError):  # autocommit is off: they will look by themselves
                transaction.on_commit(self.notify, using=self.alias, robust=True)

    def notify(self) -> None:
        """Without a way to reach other processes, they ask by themselves."""

    @abstractmethod
    def listener(self) -> Listener: ...

    # The life of a lease

    def tick(
        self,
        transitions: Sequence[Transition],
        lanes: Sequence[Lane],
        limit: int,
        lease: timedelta,
        worker: str,
        now: datetime | None = None,
    ) -> Tick:
        if not transitions:
            return Tick(self.claim(lanes, limit, lease, worker, now), Settled())
        with transaction.atomic(using=self.alias):
            settled = self.settle(transitions, worker, now)
            return Tick(self.claim(lanes, limit, lease, worker, now), settled)

    def settle(self, transitions: Sequence[Transition], worker: str, now: datetime | None = None) -> Settled:
        if not transitions:
            return Settled()
        with transaction.atomic(using=self.alias, savepoint=False):
            settled: set[int] = set()
            if finishes := [transition for transition in transitions if isinstance(transition, Finish)]:
                settled |= self._finish(finishes, now)
            if returns := [transition for transition in transitions if isinstance(transition, GiveBack)]:
                settled |= self._give_back(returns, now)
            if discards := [transition for transition in transitions if isinstance(transition, Discard)]:
                settled |= self._discard([discard.claimed for discard in discards])
            return self._settle_rest([t for t in transitions if t.claimed.id not in settled], worker, now)

    def _settle_rest(self, rest: Sequence[Transition], worker: str, now: datetime | None) -> Settled:
        """What carried another generation or token: give the replaced ones back, report the others as lost."""
        if not rest:
            return Settled()
        with transaction.atomic(using=self.alias, savepoint=False):
            rearmed = self._rearm([transition.claimed for transition in rest])
            if ran := [t for t in rest if t.claimed.id in rearmed and not isinstance(t, Discard) and _ran(t)]:
                self._record_superseded(ran, worker, now)
            others = [t.claimed for t in rest if t.claimed.id not in rearmed]
            busy = self._still_held(others) if others else set()
        return Settled(frozenset(c.id for c in others) - busy, frozenset(rearmed), frozenset(busy))

    def unschedule(self, kind: str, key: str, now: datetime | None = None) -> bool:
        check_key(key)
        return self._unschedule(kind, key, now)

    @abstractmethod
    def _unschedule(self, kind: str, key: str, now: datetime | None) -> bool: ...

    def drop(self, queue: str, key: str | None = None, *, recorded: bool = True, now: datetime | None = None) -> int:
        if key is not None:
            check_key(key)
        if not recorded:
            return self._erase(queue, key)
        return self._drop_all(queue, now) if key is None else int(self._unschedule(queue, key, now))

    def _erase(self, queue: str, key: str | None) -> int:
        from delayedq.models import Message  # stores are imported before the models are loaded

        messages = Message.objects.using(self.alias).filter(queue=queue)
        return (messages if key is None else messages.filter(kind=queue, key=key)).delete()[0]

    @abstractmethod
    def _drop_all(self, queue: str, now: datetime | None) -> int:
        """End the live messages of the queue as cancelled; returns how many there were."""

    @abstractmethod
    def claim(
        self, lanes: Sequence[Lane], limit: int, lease: timedelta, worker: str, now: datetime | None = None
    ) -> list[Claimed]: ...

    @abstractmethod
    def claim_matching(
        self,
        lane: Lane,
        conditions: Sequence[Condition],
        limit: int,
        lease: timedelta,
        worker: str,
        now: datetime | None = None,
    ) -> list[Claimed]: ...

    @abstractmethod
    def claim_unchanged(
        self, id_: int, generation: int, lease: timedelta, worker: str, now: datetime | None = None
    ) -> Claimed | None: ...

    @abstractmethod
    def _finish(self, finishes: Sequence[Finish], now: datetime | None) -> set[int]:
        """Delete and record; returns the ids that still carried their token and generation."""

    @abstractmethod
    def _give_back(self, returns: Sequence[GiveBack], now: datetime | None) -> set[int]:
        """Clear the leases; returns the ids that still carried their token and generation."""

    @abstractmethod
    def _discard(self, claims: Sequence[Claimed]) -> set[int]:
        """Delete without a record; returns the ids that still carried their token and generation."""

    @abstractmethod
    def _rearm(self, claims: Sequence[Claimed]) -> set[int]:
        """Clear the leases of messages that were replaced while they ran; returns their ids."""

    def _still_held(self, claims: Sequence[Claimed]) -> set[int]:  # noqa: ARG002
        """Which of these, though they could not be changed, carry their token: somebody else has locked them."""
        return set()

    @abstractmethod
    def _record_superseded(self, ran: Sequence[Finish | GiveBack], worker: str, now: datetime | None) -> None:
        """Write history for attempts whose message was replaced meanwhile, each under an id of its own."""

    @abstractmethod
    def glance(self, lanes: Sequence[Lane], now: datetime | None = None) -> list[Sight]: ...

    @abstractmethod
    def lanes(self) -> list[Lane]: ...

    @abstractmethod
    def look(self, queues: Collection[str] | None = None, now: datetime | None = None) -> list[Sight]: ...


def _ran(transition: Finish | GiveBack) -> bool:
    return transition.started is not None


def new_token() -> int:
    """A token for one claim: 63 random bits, so that no two claims ever share one."""
    return secrets.randbits(63)


def in_lane_order(claims: Iterable[Claimed], lanes: Sequence[Lane]) -> list[Claimed]:
    """RETURNING has no order: sort by lane, due time and id."""
    ranks = {(lane.queue, lane.priority): rank for rank, lane in enumerate(lanes)}
    return sorted(claims, key=lambda c: (ranks[c.queue, c.priority], c.scheduled_at, c.id))


def offered(row: Sequence[Any] | None) -> Offered:
    """The row of `offers.RETURNING` in words."""
    if row is None:
        return Offered(OfferOutcome.IGNORED, None)
    return Offered(OfferOutcome.UPDATED if row[1] else OfferOutcome.CREATED, row[0])
