"""Looking at a queue without taking anything."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from django.db.models import Q

from delayedq.queue.leases import Acknowledgement, consumer
from delayedq.queue.twins import twin

if TYPE_CHECKING:
    from datetime import datetime

    from delayedq.models import Message, MessageQuerySet
    from delayedq.queue.address import Content
    from delayedq.queue.leases import Leases


class Reading[P]:
    """A message as read(), under no lease."""

    def __init__(self, leases: Leases, message: Message, content: Content[P]) -> None:
        self._leases = leases
        self._generation = message.generation
        self._answer: Acknowledgement | None = None
        self.payload = content.payload
        self.state: Any = content.headers.get("state")
        self.key = message.key
        self.message_id = message.id
        #: How often it was delivered so far.
        self.attempts = message.attempt
        self.scheduled_at: datetime = message.scheduled_at

    def acknowledge(self) -> Acknowledgement:
        """End the message, if it was not replaced since and nobody holds it; idempotent."""
        if self._answer is None:
            self._answer = self._acknowledge()
        return self._answer

    def _acknowledge(self) -> Acknowledgement:
        lease = self._leases.duration()
        claimed = self._leases.store.claim_unchanged(
            self.message_id, self._generation, lease, consumer(), self._leases.now()
        )
        if claimed is None:
            replaced = live(self._leases).filter(id=self.message_id, generation__gt=self._generation).exists()
            return Acknowledgement.SUPERSEDED if replaced else Acknowledgement.LEASE_LOST
        end = self._leases.succeeded(claimed, None)
        return self._leases.settle([end], time.monotonic() + lease.total_seconds())[claimed.id]

    aacknowledge = twin(acknowledge)


def live(leases: Leases) -> MessageQuerySet:
    """All messages of the queue, held or not."""
    from delayedq.models import Message  # queues are made before the models are loaded

    return Message.objects.using(leases.store.alias).filter(queue=leases.queue)


def waiting(leases: Leases) -> MessageQuerySet:
    """Those that nobody holds, due or not, in the order in which they are due."""
    from delayedq.models import Now  # queues are made before the models are loaded

    expired = Q(leased_until__lte=leases.now() or Now())
    return live(leases).filter(Q(lease_token__isnull=True) | expired).order_by("scheduled_at", "id")
