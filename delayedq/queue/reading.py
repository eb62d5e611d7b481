"""Reading messages of a queue without a lease."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from delayedq.async_versions import async_version
from delayedq.queue.leases import Acknowledgement, consumer
from delayedq.queue.undo import stands, until_undone

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from delayedq.models import Message, MessageQuerySet
    from delayedq.queue.address import Content
    from delayedq.queue.leases import Leases
    from delayedq.store.bare_queues import Browsed


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

        Returns SUPERSEDED if it was replaced, LEASE_LOST if it is leased or has ended, BUSY if another transaction has
        locked it.
        """
        if self._answer is not None and self._stands():
            return self._answer
        answer = self._acknowledge()
        if answer is not Acknowledgement.BUSY:
            self._answer, self._stands = answer, until_undone(self._leases.alias)
        return answer

    def _acknowledge(self) -> Acknowledgement:
        lease = self._leases.duration()
        claimed = self._leases.store.claim_unchanged(self.message_id, self._generation, lease, consumer())
        if claimed is None:
            replaced = live(self._leases).filter(id=self.message_id, generation__gt=self._generation).exists()
            return Acknowledgement.SUPERSEDED if replaced else Acknowledgement.LEASE_LOST
        end = self._leases.succeeded(claimed, None)
        return self._leases.settle([end], time.monotonic() + lease.total_seconds())[claimed.id]

    aacknowledge = async_version(acknowledge)


def live(leases: Leases) -> MessageQuerySet:
    """All live messages of the queue, leased or not."""
    from delayedq.models import Message  # queues are made before the models are loaded

    return Message.objects.using(leases.store.alias).filter(queue=leases.queue)


def waiting(leases: Leases) -> MessageQuerySet:
    """The messages that are not leased, due or not, ordered by due time."""
    from delayedq.models import Now, is_free  # queues are made before the models are loaded

    return live(leases).filter(is_free(leases.now() or Now())).order_by("scheduled_at", "id")
