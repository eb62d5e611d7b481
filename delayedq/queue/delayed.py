"""DelayedQueue: the bare message queue under the tasks, as an object."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from delayedq.exceptions import QueueClosed
from delayedq.queue.consumer import Consumer
from delayedq.queue.filters import meets
from delayedq.queue.leases import History, check_duration
from delayedq.queue.producer import Producer
from delayedq.queue.reading import Reading, live, waiting
from delayedq.queue.replies import expiry, reply_name, sweep
from delayedq.queue.twins import twin
from delayedq.store.offers import check_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from django.db.models import QuerySet

    from delayedq.cron.service import CronService
    from delayedq.models import FinishedMessage, MessageQuerySet

#: What drop_all_messages() wants to hear.
CONFIRMATION = "Yes, please, I know what I'm doing!"


class DelayedQueue[P](Producer[P], Consumer[P]):
    """Messages by key and time. Cheap to make, shared by threads, without a connection until somebody waits in it.

    name: 1 to 200 characters with that of the serializer's type, without "|".
    serializer: how payloads are stored; see `delayedq.queue.serializers`.
    using: the alias of the database; None leaves that to the routers.
    lease: how long a polled message is held (a timedelta; DELAYEDQ["LEASE"]).
    poll_interval: how long a waiting consumer sleeps at most (a timedelta; DELAYEDQ["POLL_INTERVAL"], and never more).
    max_attempts: how often a message is delivered before it is set aside as failed (1 to 32,000, the default).
    history: which messages leave a row when they end.
    clock: returns the queue's time, for tests; None is the database's clock.

    Raises InvalidQueue for anything else.
    """

    # Looking

    def read(self, key: str) -> Reading[P] | None:
        """The live message of this key, due or not, held or not; it is not leased. None if there is none.

        Raises InvalidKey, or ValueError if its payload can't be read.
        """
        message = self._keyed(key).first()
        if message is None:
            return None
        return Reading(self.leases, message, self.address.read(message.payload, message.metadata))

    def contains_message(self, key: str) -> bool:
        """Is there a live message of this key, due or not, held or not? Raises InvalidKey."""
        return self._keyed(key).exists()

    def _keyed(self, key: str) -> MessageQuerySet:
        check_key(key)
        return live(self.leases).keyed(self.address.queue, key)

    def count(self) -> int:
        """How many messages nobody holds, due or not (of those that pass the filter)."""
        return sum(1 for _ in self.browse()) if self._conditions else waiting(self.leases).count()

    def browse(self) -> Iterator[P]:
        """The payloads of the messages that nobody holds, by due time; they stay where they are.

        Those that can't be read are left out; a poll sets them aside.
        """
        messages = waiting(self.leases).iterator()
        return self._payloads((message.payload, message.metadata) for message in messages)

    def _payloads(self, stored: Iterator[tuple[str, str | None]]) -> Iterator[P]:
        for payload, metadata in stored:
            with suppress(ValueError):
                content = self.address.read(payload, metadata)
                if meets(content.payload, self._conditions):
                    yield content.payload

    def history(self) -> QuerySet[FinishedMessage]:
        """The messages of this queue that ended, for statistics; see `History` for which are kept."""
        from delayedq.models import FinishedMessage  # queues are made before the models are loaded

        return FinishedMessage.objects.using(self.leases.store.alias).filter(queue=self.address.queue)

    # Cron

    @property
    def cron(self) -> CronService:
        """Ticks for this queue, installed by code; see docs/cron.md."""
        from delayedq.cron.service import CronService  # queues are made before the models are loaded

        leases, store = self.leases, self.leases.store
        return CronService(store, self.address.queue, self.address.offer, lambda: leases.now() or store.now())

    # Dropping

    def drop_message(self, key: str) -> bool:
        """End the live message of this key as cancelled, also while somebody holds it; False if there is none.

        Raises InvalidKey.
        """
        check_key(key)
        return bool(self._drop(key))

    def drop_all_messages(self, confirm: str) -> int:
        """End all live messages of this queue as cancelled; returns how many there were.

        Raises ValueError unless `confirm` is the exact phrase of CONFIRMATION.
        """
        if confirm != CONFIRMATION:
            raise ValueError(f"To drop all messages, confirm it with the words {CONFIRMATION!r}.")
        return self._drop()

    def _drop(self, key: str | None = None) -> int:
        recorded = self.leases.history is History.KEEP
        return self.leases.store.drop(self.address.queue, key, recorded=recorded, now=self.leases.now())

    # Replies

    def reply_queue(self, expires_in: timedelta) -> ReplyQueue[P]:
        """A temporary queue for the replies to messages of this one: pass it as `reply_to`.

        It is gone, with what is left in it, when it is closed or after `expires_in` (a timedelta over zero).
        """
        check_duration("expires_in", expires_in)
        store = self.leases.store
        moment = self.leases.now() or store.now()
        sweep(store, moment)
        return ReplyQueue(
            reply_name(moment + expires_in),
            self.address.serializer,
            self.leases.using,
            lease=self.leases.lease,
            poll_interval=self._poll_interval,
            history=History.NONE,
            clock=self.leases.clock,
        )

    aread = twin(read)
    acontains_message = twin(contains_message)
    acount = twin(count)
    adrop_message = twin(drop_message)
    adrop_all_messages = twin(drop_all_messages)


class ReplyQueue[P](DelayedQueue[P]):
    """Made by reply_queue(). Using it after it expired raises QueueClosed."""

    is_temporary = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.leases.expires_at = expiry(self.address.queue)

    def close(self) -> None:
        try:
            with suppress(QueueClosed):
                self._drop()
        finally:
            super().close()
