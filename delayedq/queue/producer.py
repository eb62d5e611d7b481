"""Ways into the queue. Each takes part in the caller's transaction: the message appears when that commits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from delayedq.exceptions import InvalidQueue
from delayedq.queue.base import Base
from delayedq.queue.twins import twin
from delayedq.queue.watch import ring_after_commit
from delayedq.store.protocol import OnConflict

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from delayedq.store.protocol import OfferOutcome


@dataclass(frozen=True, slots=True)
class BatchedMessage[P]:
    """A message of a batch. `input` is yours: the reply carries it. `can_update` False leaves a live message alone."""

    input: Any
    key: str | None
    payload: P
    schedule_at: datetime | None = None
    can_update: bool = True


@dataclass(frozen=True, slots=True)
class BatchedReply:
    input: Any
    outcome: OfferOutcome


class Producer[P](Base[P]):
    def offer_or_update(
        self, key: str | None, payload: P, schedule_at: datetime | None = None, *, reply_to: Base[Any] | None = None
    ) -> OfferOutcome:
        """Store a message that is due at `schedule_at` (aware; None: now), or replace the live one of this key.

        The same payload at the same time is IGNORED, also while a consumer holds the message; another replaces it, and
        is delivered once more. Without a key it is always a new message. `reply_to` is a queue made by reply_queue().
        Raises InvalidMessage, and stores nothing, for what can't be stored.
        """
        return self._offer(key, payload, schedule_at, OnConflict.REPLACE, reply_to)

    def offer_if_not_exists(
        self, key: str | None, payload: P, schedule_at: datetime | None = None, *, reply_to: Base[Any] | None = None
    ) -> OfferOutcome:
        """The same, but a live message of this key is left alone, and the offer IGNORED."""
        return self._offer(key, payload, schedule_at, OnConflict.KEEP, reply_to)

    def _offer(
        self,
        key: str | None,
        payload: P,
        schedule_at: datetime | None,
        on_conflict: OnConflict,
        reply_to: Base[Any] | None,
    ) -> OfferOutcome:
        there = None if reply_to is None else self._reply_address(reply_to)
        offer = self.address.offer(key, payload, schedule_at, there)
        store = self.leases.store
        offered = store.offer(offer, on_conflict, self.leases.now())
        ring_after_commit(store.alias, offer.queue)
        return offered.outcome

    def _reply_address(self, reply_to: Base[Any]) -> str:
        if not reply_to.is_temporary or reply_to.address.serializer.type_name != self.address.serializer.type_name:
            raise InvalidQueue(f"{reply_to!r} is no reply_queue() for the payloads of {self!r}.")
        return reply_to.address.queue

    def offer_batch(self, messages: Iterable[BatchedMessage[P]]) -> list[BatchedReply]:
        """Store all or none; the replies are in the order of the messages.

        A key may occur more than once: its messages are then offered one after the other, in their order.
        """
        batch = list(messages)
        offers = [
            (
                self.address.offer(message.key, message.payload, message.schedule_at),
                OnConflict.REPLACE if message.can_update else OnConflict.KEEP,
            )
            for message in batch
        ]
        store = self.leases.store
        offered = store.offer_each(offers, self.leases.now())
        ring_after_commit(store.alias, self.address.queue)
        return [BatchedReply(message.input, one.outcome) for message, one in zip(batch, offered, strict=True)]

    aoffer_or_update = twin(offer_or_update)
    aoffer_if_not_exists = twin(offer_if_not_exists)
    aoffer_batch = twin(offer_batch)
