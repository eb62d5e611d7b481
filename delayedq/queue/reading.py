"""Reading messages of a queue without a lease."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from delayedq.async_versions import async_version
from delayedq.queue.leases import Acknowledgement, consumer
from delayedq.queue.rolled_back import stands, until_undone
from delayedq.store.claim_tokens import BUSY_PAUSE

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from delayedq.models import Message, MessageQuerySet
    from delayedq.queue.address import Content
    from delayedq.queue.leases import Leases
    from delayedq.store.bare_queues import Browsed
    from delayedq.store.protocol import Claimed


class Reading[P]:
    """What read() returns, and browse() goes through: a message, without leasing it."""

    def __init__(self, leases: Leases, message: Message | Browsed, content: Content[P]) -> None:
        self._leases = leases
        self._generation = message.generation
        self._answer: Acknowledgement | None = None
        self._stands: Callable[[], bool] = stands
        self.payload = content.payload
        self.state: Any = content.headers.get("state")
        self.key = message.key
        self.message_id = message.id
        #: The number of its deliveries so far.
        self.attempts = message.attempt
        self.scheduled_at: datetime = message.scheduled_at

    def acknowledge(self) -> Acknowledgement:
        """End the message as succeeded, unless it was replaced since, or is leased. Calling it again has no effect.

        Returns SUPERSEDED if it was replaced, LEASE_LOST if it is leased or has ended, BUSY if another transaction
        keeps it locked for as long as a lease of the queue.
        """
        if self._answer is not None and self._stands():
            return self._answer
        answer = self._acknowledge()
        if answer is not Acknowledgement.BUSY:
            self._answer, self._stands = answer, until_undone(self._leases.alias)
        return answer

    def _acknowledge(self) -> Acknowledgement:
        lease = self._leases.duration()
        until = time.monotonic() + lease.total_seconds()
        while (claimed := self._claim(lease)) is None:
            reason = self._refused()
            if reason is not Acknowledgement.BUSY or time.monotonic() >= until:
                return reason
            time.sleep(BUSY_PAUSE)
        end = self._leases.succeeded(claimed, None)
        return self._leases.settle([end], time.monotonic() + lease.total_seconds())[claimed.id]

    def _claim(self, lease: timedelta) -> Claimed | None:
        return self._leases.store.claim_unchanged(self.message_id, self._generation, lease, consumer())

    def _refused(self) -> Acknowledgement:
        """Why it was not claimed."""
        from django.db.models import Case, When  # queues are made before the models are loaded

        from delayedq.models import Now, is_free

        judged = Case(When(is_free(self._leases.now() or Now()), then=True), default=False)
        found = live(self._leases).filter(id=self.message_id).values_list("generation", judged).first()
        if found is None:
            return Acknowledgement.LEASE_LOST
        generation, is_waiting = found
        if generation > self._generation:
            return Acknowledgement.SUPERSEDED
        return Acknowledgement.BUSY if is_waiting else Acknowledgement.LEASE_LOST

    aacknowledge = async_version(acknowledge)


def live(leases: Leases) -> MessageQuerySet:
    """All live messages of the queue, leased or not."""
    from delayedq.models import Message  # queues are made before the models are loaded

    return Message.objects.using(leases.store.alias).filter(queue=leases.queue)


def waiting(leases: Leases) -> MessageQuerySet:
    """The messages that are not leased, due or not, ordered by due time."""
    from delayedq.models import Now, is_free  # queues are made before the models are loaded

    return live(leases).filter(is_free(leases.now() or Now())).order_by("scheduled_at", "id")
