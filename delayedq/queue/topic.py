"""Copying consumers: what is published on a topic is delivered once to each of its subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from delayedq.exceptions import InvalidQueue
from delayedq.queue.delayed import CONFIRMATION, DelayedQueue
from delayedq.queue.serializers import JSON
from delayedq.queue.twins import twin
from delayedq.queue.watch import ring_after_commit

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from delayedq.queue.serializers import Serializer
    from delayedq.store.protocol import OfferOutcome


class Topic[P]:
    """Each subscription is a queue of its own, named `topic/subscription`; several consumers may share it.

    Subscriptions are declared in code, where all processes see them: `Topic("prices", ["audit", "mail"])`. `options`
    are those of DelayedQueue. Raises InvalidQueue for names that are blank, too long or given twice.
    """

    def __init__(
        self,
        name: str,
        subscriptions: Iterable[str],
        serializer: Serializer[P] = JSON,
        using: str | None = None,
        **options: Any,
    ) -> None:
        self.name = name
        self._options = {"serializer": serializer, "using": using, **options}
        self._queues: dict[str, DelayedQueue[P]] = {}
        if isinstance(subscriptions, str):
            raise InvalidQueue(f"The subscriptions of a topic are several names, not the text {subscriptions!r}.")
        for subscription in subscriptions:
            if subscription in self._queues or not subscription.strip() or not name.strip():
                raise InvalidQueue(f"A topic and its subscriptions have names of their own, not {subscription!r}.")
            self._queues[subscription] = self._open(subscription)

    @property
    def subscriptions(self) -> tuple[str, ...]:
        return tuple(self._queues)

    def subscribe(self, subscription: str) -> DelayedQueue[P]:
        """A consumer of what is published for this subscription, to be closed on its own.

        Raises InvalidQueue if it is not declared.
        """
        self._check(subscription)
        return self._open(subscription)

    def unsubscribe(self, subscription: str) -> int:
        """Publish nothing more for it from here, and drop what waits; returns how much that was.

        Other processes publish for it as long as their code declares it. Raises InvalidQueue if it is not declared.
        """
        self._check(subscription)
        return self._queues.pop(subscription).drop_all_messages(CONFIRMATION)

    def publish(
        self, payload: P, key: str | None = None, schedule_at: datetime | None = None
    ) -> dict[str, OfferOutcome]:
        """Offer one copy to each subscription: all or none. A key replaces, in each, the live message that has it.

        Raises InvalidMessage, and stores nothing, for what can't be stored.
        """
        queues = dict(self._queues)
        if not queues:
            return {}
        offers = [queue.address.offer(key, payload, schedule_at) for queue in queues.values()]
        leases = next(iter(queues.values())).leases
        offered = leases.store.offer_many(offers, now=leases.now())
        for offer in offers:
            ring_after_commit(leases.alias, offer.queue)
        return {subscription: one.outcome for subscription, one in zip(queues, offered, strict=True)}

    def _open(self, subscription: str) -> DelayedQueue[P]:
        return DelayedQueue(f"{self.name}/{subscription}", **self._options)

    def _check(self, subscription: str) -> None:
        if subscription not in self._queues:
            declared = ", ".join(self._queues) or "none"
            raise InvalidQueue(
                f"The topic {self.name!r} has no subscription {subscription!r}; declared are {declared}."
            )

    apublish = twin(publish)
