"""Publish and subscribe: a payload that is published on a topic is delivered once to each of its subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from delayedq.async_versions import async_version
from delayedq.exceptions import InvalidQueue
from delayedq.queue.delayed import CONFIRMATION, DelayedQueue
from delayedq.queue.producer import OfferTerms, checked
from delayedq.queue.serializers import JSON
from delayedq.queue.watch import ring_after_commit
from delayedq.store.protocol import OnConflict

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from delayedq.queue.serializers import Serializer
    from delayedq.store.protocol import Conflict, OfferOutcome


class Topic[P]:
    """A topic with subscriptions. Each subscription is a DelayedQueue named `topic/subscription`.

    Subscriptions are declared in code, here or by `add_subscription`, so that all processes know them. Several
    consumers may share one. `options` are those of DelayedQueue. Raises InvalidQueue for names that are blank, too
    long or given twice.

        prices = Topic("prices", ["audit", "mail"])
        prices.publish({"gold": 7})
        envelope = prices.subscribe("mail").try_poll()
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
            self.add_subscription(subscription)

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """The names of the declared subscriptions."""
        return tuple(self._queues)

    def add_subscription(self, subscription: str) -> None:
        """Declare one more subscription, for this object: it gets what this object publishes from now on.

        Other processes publish to it as soon as their code declares it too. Raises InvalidQueue as the topic does.
        """
        if not isinstance(subscription, str) or not subscription.strip() or not self.name.strip():
            raise InvalidQueue(f"A topic and its subscriptions have names that are not blank, not {subscription!r}.")
        if subscription in self._queues:
            raise InvalidQueue(f"The topic {self.name!r} has the subscription {subscription!r} already.")
        self._queues[subscription] = self._open(subscription)

    def subscribe(self, subscription: str) -> DelayedQueue[P]:
        """Return a new DelayedQueue that consumes this subscription; close it independently of the topic.

        Raises InvalidQueue if the subscription is not declared.
        """
        self._check(subscription)
        return self._open(subscription)

    def unsubscribe(self, subscription: str) -> int:
        """Stop publishing to this subscription from this object, and drop its messages. Returns their number.

        Other processes publish to it as long as their code declares it. Raises InvalidQueue if it is not declared.
        """
        self._check(subscription)
        return self._queues.pop(subscription).drop_all_messages(CONFIRMATION)

    def publish(
        self,
        payload: P,
        key: str | None = None,
        schedule_at: datetime | None = None,
        *,
        on_conflict: Conflict = OnConflict.REPLACE,
        **terms: Unpack[OfferTerms],
    ) -> dict[str, OfferOutcome]:
        """Offer one copy to each subscription, all or none. Returns the outcomes by subscription.

        A key replaces the live message of that key in each subscription. `schedule_at`: aware datetime; None: now.
        `on_conflict`, `priority` and `max_attempts` are those of offer_or_update().
        Raises InvalidMessage, and stores nothing, for a wrong value.
        """
        policy = checked(on_conflict)
        queues = dict(self._queues)
        if not queues:
            return {}
        offers = [queue.address.offer(key, payload, schedule_at, **terms) for queue in queues.values()]
        leases = next(iter(queues.values())).leases
        offered = leases.store.offer_many(offers, policy)
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

    apublish = async_version(publish)
