"""What a poll hands out: a message under a lease, and the ways to let go of it."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Self

from asgiref.sync import sync_to_async
from django.db import Error, transaction
from django.db.transaction import TransactionManagementError
from django.utils import timezone

from delayedq.core.backoff import as_backoff
from delayedq.core.serialization import dumps
from delayedq.exceptions import LeaseLost, QueueClosed
from delayedq.queue.leases import Acknowledgement, End, History, check_duration, errors_with, seconds_of
from delayedq.queue.replies import send_reply
from delayedq.queue.twins import twin
from delayedq.store.offers import check_time
from delayedq.store.protocol import GiveBack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime, timedelta

    from delayedq.core.backoff import Backoff
    from delayedq.queue.address import Address, Content
    from delayedq.queue.leases import Leases
    from delayedq.store.protocol import Claimed


class DeliveryType(StrEnum):
    FIRST_DELIVERY = "first_delivery"
    #: It was polled before: its consumer gave it back, put it off, or vanished.
    REDELIVERY = "redelivery"


class _Unchanged(Enum):
    UNCHANGED = "unchanged"


UNCHANGED = _Unchanged.UNCHANGED


class Failed(Exception):  # noqa: N818 - it is never raised: it names a reason in the history
    """A consumer said that the message can't be dealt with."""


class Envelope[P]:
    """A message that nobody else is given while the lease holds. One thread at a time uses it.

    Each of acknowledge(), reject(), defer(), fail() and release() ends the delivery and tells whether that took effect;
    after the first of them, all tell what it told. They take part in the caller's transaction if there is one. Raises
    QueueClosed after the queue was closed: the message then comes back when its lease ends.

    As a context manager it acknowledges at the end, or rejects if an exception passes through.
    """

    def __init__(self, address: Address[P], leases: Leases, claimed: Claimed, content: Content[P]) -> None:
        self._address = address
        self._leases = leases
        self._answer: Acknowledgement | None = None
        self._committed = False
        self._started = time.monotonic()
        self._held_until = self._started + leases.duration().total_seconds()
        self._headers = content.headers
        self.claimed = claimed
        self.payload = content.payload
        #: By the host's clock, unless the queue has one of its own.
        self.polled_at: datetime = leases.now() or timezone.now()

    @property
    def key(self) -> str | None:
        return self.claimed.key

    @property
    def message_id(self) -> int:
        """It stays the same when the message is delivered again, and in the history."""
        return self.claimed.id

    @property
    def attempt(self) -> int:
        """Which delivery of the message this is, from 1 on."""
        return self.claimed.attempt

    @property
    def delivery_type(self) -> DeliveryType:
        return DeliveryType.FIRST_DELIVERY if self.attempt == 1 else DeliveryType.REDELIVERY

    @property
    def scheduled_at(self) -> datetime:
        return self.claimed.scheduled_at

    @property
    def state(self) -> Any:
        """What defer() saved; None at first."""
        return self._headers.get("state")

    @property
    def answer(self) -> Acknowledgement | None:
        """How the delivery ended; None while it goes on."""
        return self._answer

    # Letting go

    def acknowledge(self) -> Acknowledgement:
        """The message is done and never comes again."""
        return self._settle(self.acknowledging())

    def reject(self, delay: timedelta | None = None) -> Acknowledgement:
        """Give it back, for anybody at once or after a delay (a timedelta); after the last attempt it has failed."""
        return self._settle(self.rejecting(delay))

    def defer(self, until: datetime, state: Any = UNCHANGED) -> Acknowledgement:
        """Deliver it again at an aware time. Attempts are kept, and so is the saved state unless another is given.

        Raises InvalidTime, or NotStorable for a state that is not JSON, and changes nothing.
        """
        check_time(until)
        headers = None if state is UNCHANGED else dumps({**self._headers, "state": state}, where="state")
        return self._settle(self._given_back(until=until, metadata=headers))

    def fail(self, reason: str) -> Acknowledgement:
        """Set it aside as failed, with a reason: it is a dead letter in the history."""
        return self._settle(self._leases.failed(self.claimed, self._elapsed(), Failed(reason), kept=False))

    def release(self) -> Acknowledgement:
        """Give it back as if it had never been polled: this attempt does not count."""
        return self._settle(self.releasing())

    def extend(self, lease: timedelta) -> bool:
        """Hold it for `lease` (a timedelta over zero) from now on, or longer if it was; False if it was lost."""
        check_duration("lease", lease)
        kept = self._answer is None and self._leases.renew(self.claimed, lease)
        if kept:
            self._held_until = max(self._held_until, time.monotonic() + lease.total_seconds())
        return kept

    def reply(self, payload: P) -> bool:
        """Answer whoever offered the message with `reply_to`; the reply has the key, or else the id, of the message.

        False once the queue for it has expired. Raises LookupError if no reply was asked for.
        """
        return send_reply(self._address, self._leases, self.claimed, self._headers.get("reply_to"), payload)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.acknowledge()
        else:
            self._put_back(error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, type_: object, error: BaseException | None, trace: object) -> None:
        await sync_to_async(self.__exit__)(type_, error, trace)

    @contextmanager
    def transaction(self, backoff: Backoff | timedelta | None = None) -> Iterator[Self]:
        """Run the body in a transaction on the queue's database that ends the message too: both commit, or neither.

        If an exception leaves the body, its writes are undone and the message is rejected, to come back at once or
        after the backoff (a timedelta, or a callable from the number of the attempt). Raises LeaseLost, and undoes the
        writes, if the lease was lost meanwhile; RuntimeError within a transaction, whose end would decide instead.
        """
        delay, alias = None, self._leases.alias
        try:
            delay = self._delay(backoff)
            with transaction.atomic(using=alias, durable=True):
                transaction.on_commit(self._confirm, using=alias)
                yield self
                self._acknowledge_or_undo()
        except BaseException as error:
            if not self._committed:
                self._answer = None  # what it told was undone with the rest
                self._put_back(error, delay)
            raise

    # The transitions

    def acknowledging(self) -> End:
        return self._leases.succeeded(self.claimed, self._elapsed())

    def rejecting(self, delay: timedelta | None = None, error: Exception | None = None) -> End:
        """Raises ValueError for a delay below zero."""
        seconds = seconds_of(delay)
        if self.attempt >= self.claimed.max_attempts:
            reason = error or Failed("It was rejected at its last attempt.")
            return self._leases.failed(self.claimed, self._elapsed(), reason)
        errors = None if error is None else errors_with(self.claimed, error, self._elapsed())
        return self._given_back(delay=seconds, errors=errors)

    def releasing(self) -> End:
        return End(GiveBack(self.claimed, charged=False))

    def putting_back(self, error: BaseException, delay: timedelta | None = None) -> End:
        """Because of the error; what only stops the program is not the message's fault."""
        return self.rejecting(delay, error) if isinstance(error, Exception) else self.releasing()

    def learn(self, answer: Acknowledgement) -> None:
        """It was settled together with others."""
        self._answer = answer

    def held_until(self) -> float:
        """The moment of `time.monotonic()` at which its lease ends."""
        return self._held_until

    def _given_back(self, **fields: Any) -> End:
        # An attempt that started is recorded if the message turns out to be replaced.
        started = self._elapsed() if self._leases.history is History.KEEP else None
        return End(GiveBack(self.claimed, charged=True, started=started, **fields))

    def _delay(self, backoff: Backoff | timedelta | None) -> timedelta | None:
        delay = None if backoff is None else as_backoff(backoff)(self.attempt)
        seconds_of(delay)  # if it can't be waited for, that shows before the body runs
        return delay

    def _acknowledge_or_undo(self) -> None:
        if transaction.get_rollback(using=self._leases.alias):
            raise TransactionManagementError("The transaction is broken; what was done is undone.")
        if self._answer is not None and self._leases.renew(self.claimed, self._leases.duration()):
            self._answer = None  # that was undone, with a savepoint
        if self.acknowledge() is Acknowledgement.LEASE_LOST:
            raise LeaseLost(f"The lease of message {self.message_id} was lost; what was done is undone.")

    def _confirm(self) -> None:
        """The first thing to be called after the commit: what follows may fail and undoes nothing."""
        self._committed = True

    def _put_back(self, error: BaseException, delay: timedelta | None = None) -> None:
        with suppress(Error, QueueClosed):  # the error passes through; the message comes back when its lease ends
            self._settle(self.putting_back(error, delay))

    def _settle(self, end: End) -> Acknowledgement:
        if self._answer is None:
            self._answer = self._leases.settle([end], self._held_until)[self.message_id]
        return self._answer

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    aacknowledge = twin(acknowledge)
    areject = twin(reject)
    adefer = twin(defer)
    afail = twin(fail)
    arelease = twin(release)
    aextend = twin(extend)
    areply = twin(reply)
