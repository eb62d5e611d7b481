"""Offers: one message, or many in one transaction, whose keys every batch locks in the same order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from itertools import batched, groupby
from typing import TYPE_CHECKING

from delayedq.store.channels.offers import as_stored, line_up_offered
from delayedq.store.channels.sizes import offer_sized
from delayedq.store.database import retry_on_deadlock
from delayedq.store.flows import members_sql
from delayedq.store.offers import check, check_time, in_lock_order, waves
from delayedq.store.protocol import Offered, OfferOutcome, OnConflict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from datetime import datetime

    from delayedq.store.database import Database
    from delayedq.store.protocol import Offer

#: At most this many messages go into one statement; `enqueue_bulk` holds this many in memory.
CHUNK = 10_000
#: So many keys are looked up by one statement: SQLite's may have no more than 999 parameters where it is old.
LOOKED_UP = 500


def chunks(offers: Sequence[Offer]) -> Iterator[tuple[int, ...]]:
    """The positions of offers that go into one statement each, in lock order."""
    positions = range(len(offers))
    return batched(positions if len(offers) <= CHUNK else in_lock_order(offers, positions), CHUNK)


class Offering(ABC):
    database: Database

    @retry_on_deadlock
    def offer(self, offer: Offer, on_conflict: OnConflict = OnConflict.REPLACE) -> Offered:
        """Store one message in one statement, within the caller's transaction if there is one.

        One with a channel takes more, in one transaction: on PostgreSQL one more.

        Raises InvalidMessage for what can't be stored.
        """
        if offer.channel is not None:
            return self._offer_all([offer], on_conflict)[0]
        check(offer)
        offered = self._named(offer, self._offer_one(offer, on_conflict))
        self.notify_after_commit([offer.scheduled_at])
        return offered

    def offer_many(
        self, offers: Iterable[Offer], on_conflict: OnConflict = OnConflict.REPLACE, *, checked: bool = False
    ) -> list[Offered]:
        """Store all or none; the outcomes are in the order of the offers. A key may occur more than once.

        checked: they were checked when they were made, and are stored whatever the settings say now: an end of a
        message must not fail because of what follows it. Raises InvalidMessage for what can't be stored.
        """
        return self._offer_all([*offers], on_conflict, checked=checked)

    def offer_counted(self, offers: Sequence[Offer]) -> int:
        """`offer_many` for who only asks how many were stored."""
        return sum(one.outcome is not OfferOutcome.DROPPED for one in self._offer_all(offers, OnConflict.REPLACE))

    @retry_on_deadlock
    def _offer_all(self, offers: Sequence[Offer], on_conflict: OnConflict, *, checked: bool = False) -> list[Offered]:
        offered: dict[int, Offered] = {}
        with self.database.atomic():
            for positions in chunks(offers):
                chunk = [offers[position] for position in positions]
                store = partial(self._offer_lined_up, on_conflict=on_conflict, checked=checked)
                sized = any(offer.sizes for offer in chunk)
                outcomes = offer_sized(self.database, chunk, on_conflict, store) if sized else store(chunk)
                offered.update(zip(positions, outcomes, strict=True))
                stored = zip(chunk, outcomes, strict=True)
                self.notify_after_commit(
                    [offer.scheduled_at for offer, one in stored if one.outcome is not OfferOutcome.DROPPED]
                )
        return [offered[position] for position in range(len(offers))]

    def _offer_lined_up(self, offers: Sequence[Offer], on_conflict: OnConflict, *, checked: bool) -> list[Offered]:
        """Those with a channel get their places in it."""
        stored = [as_stored(offer) for offer in offers]
        if not checked:
            for offer in stored:
                check(offer)
        outcomes = self._offer_chunk(stored, on_conflict)
        line_up_offered(self, offers, outcomes)  # type: ignore[arg-type]  # this is the store
        return outcomes

    def _offer_chunk(self, offers: Sequence[Offer], on_conflict: OnConflict) -> list[Offered]:
        outcomes: list[Offered | None] = [None] * len(offers)
        for positions in waves(offers):
            wave = [offers[position] for position in positions]
            offered = self._offer_wave(wave, on_conflict)
            unnamed = [offer for offer, one in zip(wave, offered, strict=True) if one.id is None]
            ids = self._ids_of(unnamed)
            for position, offer, one in zip(positions, wave, offered, strict=True):
                known = one.id is not None
                outcomes[position] = one if known else Offered(OfferOutcome.IGNORED, ids.get((offer.kind, offer.key)))
        return outcomes  # type: ignore[return-value]  # every position is in a wave

    @retry_on_deadlock
    def offer_step(self, offers: Sequence[Offer], step: int, *, checked: bool = False) -> None:
        """`offer_many` of messages without keys, and store that they are members of this step of a flow."""
        with self.database.atomic():
            offered = self._offer_all(offers, OnConflict.REPLACE, checked=checked)
            ids = [one.id for one in offered if one.id is not None]
            members_sql.store(self.database, ids, [step] * len(ids))

    @retry_on_deadlock
    def offer_each(self, given: Sequence[tuple[Offer, OnConflict]]) -> list[Offered]:
        """`offer_many`, but each offer has its own policy."""
        offers, policies = [offer for offer, _ in given], [policy for _, policy in given]
        if len(set(policies)) == 1:
            return self._offer_all(offers, policies[0])
        offered: dict[int, Offered] = {}
        with self.database.atomic():
            # In rounds without a repeated key; those after the first lock nothing new.
            for positions in waves(offers):
                for policy, run in groupby(in_lock_order(offers, positions), policies.__getitem__):
                    chosen = list(run)
                    outcomes = self._offer_all([offers[position] for position in chosen], policy)
                    offered.update(zip(chosen, outcomes, strict=True))
        return [offered[position] for position in range(len(offers))]

    def check_time(self, when: object) -> None:
        """Refuse with InvalidTime what is no aware datetime, or none that this database can store."""
        check_time(when)

    def _named(self, offer: Offer, offered: Offered) -> Offered:
        """An ignored offer returns no row: its message is found by key."""
        if offered.id is not None:
            return offered
        with self.database.connection.cursor() as cursor:
            cursor.execute("SELECT id FROM delayedq_message WHERE kind = %s AND key = %s", [offer.kind, offer.key])
            row = cursor.fetchone()
        return Offered(OfferOutcome.IGNORED, row[0] if row else None)

    def _ids_of(self, offers: Iterable[Offer]) -> dict[tuple[str, str | None], int]:
        """The same for hundreds by one statement."""
        from delayedq.models import Message  # stores are imported before the models are loaded

        found: dict[tuple[str, str | None], int] = {}
        for kind, some in groupby(sorted(offers, key=lambda offer: offer.kind), lambda offer: offer.kind):
            for keys in batched((offer.key for offer in some), LOOKED_UP):
                rows = Message.objects.using(self.database.alias).filter(kind=kind, key__in=keys)
                found |= {(kind, key): id_ for key, id_ in rows.values_list("key", "id")}
        return found

    @abstractmethod
    def _offer_one(self, offer: Offer, on_conflict: OnConflict) -> Offered: ...

    @abstractmethod
    def _offer_wave(self, offers: Sequence[Offer], on_conflict: OnConflict) -> list[Offered]:
        """No key occurs twice in them."""

    @abstractmethod
    def notify_after_commit(self, times: Collection[datetime | None] = (None,)) -> None:
        """Wake the workers after commit, if what is due at these times (None: now) is due before their next scan."""
