"""DelayedQueue: the bare message queue under the tasks, as an object."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from delayedq.async_versions import async_version
from delayedq.core.other_names import QUEUES, no_attribute
from delayedq.exceptions import QueueClosed
from delayedq.queue.browsing import Browsing, Readings
from delayedq.queue.consumer import Consumer
from delayedq.queue.consuming import BACKOFF, PATIENCE, Consumers, terms
from delayedq.queue.leases import History, check_duration
from delayedq.queue.producer import Producer
from delayedq.queue.reading import Reading, live, waiting
from delayedq.queue.replies import expiry, reply_name, sweep
from delayedq.store.offers import check_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from django.db.models import QuerySet

    from delayedq.core.backoff import Backoff
    from delayedq.cron.service import CronService
    from delayedq.models import FinishedMessage, MessageQuerySet
    from delayedq.queue.envelope import Envelope

#: The argument that drop_all_messages() requires.
CONFIRMATION = "Yes, please, I know what I'm doing!"


class DelayedQueue[P](Producer[P], Consumer[P]):
    """A queue of messages with keys and due times, in the project's database.

    Instances hold no connection and no thread until a consumer waits, and may be shared by threads.

    name: str; with the serializer's type_name at most 199 characters, without "|".
    serializer: converts payloads to text; see `delayedq.queue.serializers`.
    using: alias of the database; None asks the database routers.
    lease: how long a polled message is leased (visibility timeout; timedelta). Default: DELAYEDQ["LEASE"].
    poll_interval: longest sleep of a waiting consumer (timedelta). Default and maximum: DELAYEDQ["POLL_INTERVAL"].
    max_attempts: number of deliveries after which a message becomes a dead letter (1 to 32,000, the default).
    priorities: the priorities that messages may have besides 0 (numbers from -100 to 100). Declare the same wherever
        you create the queue: a consumer gets only messages of the priorities that it knows.
    channels: True: messages wait in channels, which take fair turns; see docs/limits.md. Declare the same wherever you
        create the queue.
    limit: a Limit of each channel; it implies `channels`. For the whole queue, use DELAYEDQ["LIMITS"].
    history: which messages leave a row in the history when they end; see `History`.
    clock: for tests: returns the queue's time (aware datetime). None: the database's clock.

    Raises InvalidQueue for wrong arguments.

        contacts = DelayedQueue("contacts", lease=timedelta(minutes=2))
        contacts.offer_or_update("ann", {"mail": "ann@example.com"})
        with contacts.try_poll() as envelope:
            send(envelope.payload)
    """

    if not TYPE_CHECKING:  # to a type checker, it would make all of them attributes

        def __getattr__(self, name: str) -> Any:
            """Names what does here what a verb of another queue does there."""
            raise no_attribute(self, name, QUEUES)

    # Reading without a lease

    def read(self, key: str) -> Reading[P] | None:
        """Return the live message of this key, due or not, leased or not, without leasing it; None if there is none.

        Raises InvalidKey, or ValueError if its payload can't be read.
        """
        message = self._keyed(key).first()
        if message is None:
            return None
        return Reading(self.leases, message, self.address.read(message.payload, message.metadata))

    def contains_message(self, key: str) -> bool:
        """Whether there is a live message of this key, due or not, leased or not. Raises InvalidKey."""
        return self._keyed(key).exists()

    def _keyed(self, key: str) -> MessageQuerySet:
        check_key(key)
        return live(self.leases).keyed(self.address.queue, key)

    def consume(
        self,
        handle: Callable[[Envelope[P]], object],
        *,
        threads: int | tuple[int, int] = 1,
        patience: timedelta = PATIENCE,
        backoff: Backoff | timedelta | None = BACKOFF,
        lease: timedelta | None = None,
    ) -> None:
        """Hand each message to `handle(envelope)`, in threads, until the queue is closed.

        threads: the number of threads, or (fewest, most): another one starts while all others work, and a thread that
        has waited `patience` (timedelta) for a message ends.

        When `handle` returns, the message is acknowledged, unless `handle` has settled it. If `handle` raises, that
        is logged, and the message is rejected: due again after `backoff` (a timedelta, or a callable that takes the
        number of the attempt; None: at once). `handle` must end within the lease, or extend it. While the database is
        unavailable, polls are repeated. An exception in the calling thread, such as KeyboardInterrupt, is raised when
        the running calls have ended. Raises InvalidQueue.
        """
        Consumers(self, handle, terms(threads, patience, backoff, lease)).run()

    def count(self) -> int:
        """The number of messages that are not leased, due or not (of those that pass the filter)."""
        return sum(1 for _ in self.browse()) if self._filter else waiting(self.leases).count()

    def browse(self, after: str | None = None) -> Browsing[P]:
        """Iterate over the payloads of the messages that are not leased, in the order of claims; it changes nothing.

        The highest of the queue's priorities comes first, in each the message that is due first; those of the future
        too. Messages that can't be read are left out; a poll makes them dead letters.

        after: the `cursor` of an earlier browse(): go on behind the message that it handed out last.
        Raises InvalidQueue for any other text.

            page = contacts.browse(after=request.GET.get("after"))
            rows = [(reading.key, reading.payload) for reading in islice(page.readings, 50)]
            link = {"after": page.cursor}
        """
        return Browsing(Readings(self.address, self.leases, self._filter, after))

    #: `async for payload in queue.abrowse()`: the same object, which is iterated either way.
    abrowse = browse

    def history(self) -> QuerySet[FinishedMessage]:
        """A QuerySet of the ended messages of this queue; see `History` for which are kept."""
        from delayedq.models import FinishedMessage  # queues are made before the models are loaded

        return FinishedMessage.objects.using(self.leases.store.alias).filter(queue=self.address.queue)

    # Cron

    @property
    def cron(self) -> CronService:
        """Schedules that place ticks into this queue and are installed by code; see docs/cron.md."""
        from delayedq.cron.service import CronService  # queues are made before the models are loaded

        leases, store = self.leases, self.leases.store.at(None)
        return CronService(store, self.address.queue, self.address.offer, lambda: leases.now() or store.now())

    # Dropping

    def drop_message(self, key: str) -> bool:
        """End the live message of this key as cancelled, even if it is leased. Returns False if there is none.

        Raises InvalidKey.
        """
        check_key(key)
        return bool(self._drop(key))

    def drop_all_messages(self, confirm: str) -> int:
        """End all live messages of this queue as cancelled. Returns their number.

        Raises ValueError unless `confirm` equals `delayedq.queue.CONFIRMATION`.
        """
        if confirm != CONFIRMATION:
            raise ValueError(f"To drop all messages, confirm it with the words {CONFIRMATION!r}.")
        return self._drop()

    def _drop(self, key: str | None = None) -> int:
        recorded = self.leases.history is History.KEEP
        return self.leases.store.drop(self.address.queue, key, recorded=recorded)

    # Replies

    def reply_queue(self, expires_in: timedelta) -> ReplyQueue[P]:
        """Return a temporary queue for replies to messages of this queue: pass it to an offer as `reply_to`.

        It is dropped with its messages when it is closed, or after `expires_in` (timedelta above zero).
        Raises InvalidQueue for a wrong `expires_in`.
        """
        check_duration("expires_in", expires_in)
        store = self.leases.store
        moment = store.now()
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

    aread = async_version(read)
    acontains_message = async_version(contains_message)
    acount = async_version(count)
    adrop_message = async_version(drop_message)
    adrop_all_messages = async_version(drop_all_messages)


class ReplyQueue[P](DelayedQueue[P]):
    """The result of reply_queue(). Raises QueueClosed when it is used after it expired."""

    is_temporary = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.leases.expires_at = expiry(self.address.queue)

    def close(self) -> None:
        """Close the queue, and drop its messages."""
        try:
            with suppress(QueueClosed):
                self._drop()
        finally:
            super().close()
