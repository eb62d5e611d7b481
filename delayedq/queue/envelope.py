"""The envelope that a poll returns: a message under a lease, and the verbs that settle it."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Self

from asgiref.sync import sync_to_async
from django.db import Error, transaction
from django.db.transaction import TransactionManagementError

from delayedq import clock
from delayedq.async_versions import async_version
from delayedq.core.backoff import as_backoff
from delayedq.core.serialization import dumps
from delayedq.exceptions import LeaseLost, QueueClosed
from delayedq.queue.leases import Acknowledgement, History, Settlement, check_duration, errors_with, seconds_of
from delayedq.queue.replies import send_reply
from delayedq.queue.rolled_back import stands, until_undone
from delayedq.store.offers import check_size
from delayedq.store.protocol import GiveBack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime, timedelta

    from delayedq.core.backoff import Backoff
    from delayedq.queue.address import Content, QueueAddress
    from delayedq.queue.leases import Leases
    from delayedq.store.protocol import Claimed


class DeliveryType(StrEnum):
    """Whether a message is delivered for the first time."""

    FIRST_DELIVERY = "first_delivery"
    #: It was polled before: its consumer rejected or deferred it, or its lease ended.
    REDELIVERY = "redelivery"


class _Unchanged(Enum):
    UNCHANGED = "unchanged"


UNCHANGED = _Unchanged.UNCHANGED


class Failed(Exception):  # noqa: N818 - it is never raised: it names a reason in the history
    """The reason that a consumer gave for failing or rejecting the message."""


class Envelope[P]:
    """A message that no other consumer gets while its lease lasts. Not thread-safe.

    acknowledge(), reject(), defer(), fail() and release() end the delivery and return an Acknowledgement that says
    whether this took effect; after the first that is not BUSY, all return what it returned. They take part in the
    caller's transaction if there is one: once that, or its savepoint, is rolled back, the envelope has no answer again,
    and the next verb is carried out. They raise QueueClosed after the queue was closed: the message then comes back
    when its lease ends.

    As a context manager it acknowledges at the end of the block; if the block raises, it rejects.
    """

    def __init__(
        self, address: QueueAddress[P], leases: Leases, claimed: Claimed, content: Content[P], lease: timedelta
    ) -> None:
        self._address = address
        self._leases = leases
        self._answer: Acknowledgement | None = None
        self._stands: Callable[[], bool] = stands
        self._committed = False
        self._started = time.monotonic()
        #: When the lease ends, by `time.monotonic()`, as of the poll and of each extension that may be rolled back.
        self._lease_ends: list[tuple[float, Callable[[], bool]]] = [(self._started + lease.total_seconds(), stands)]
        self._headers = content.headers
        self.claimed = claimed
        self.payload = content.payload
        #: When it was polled, by this host's clock unless the queue has a clock.
        self.polled_at: datetime = leases.now() or clock.now()

    @property
    def key(self) -> str | None:
        """The key of the message (str); None if it was offered without one."""
        return self.claimed.key

    @property
    def message_id(self) -> int:
        """The id of the message (int): the same for each delivery, and in the history."""
        return self.claimed.id

    @property
    def attempt(self) -> int:
        """The number of this delivery; 1 for the first."""
        return self.claimed.attempt

    @property
    def delivery_type(self) -> DeliveryType:
        """FIRST_DELIVERY if `attempt` is 1, else REDELIVERY."""
        return DeliveryType.FIRST_DELIVERY if self.attempt == 1 else DeliveryType.REDELIVERY

    @property
    def scheduled_at(self) -> datetime:
        """When the message was due (aware datetime)."""
        return self.claimed.scheduled_at

    @property
    def state(self) -> Any:
        """The state that defer() saved (JSON); None before that."""
        return self._headers.get("state")

    @property
    def answer(self) -> Acknowledgement | None:
        """How the delivery ended; None before that, and after it was rolled back with the caller's transaction."""
        return self._answer if self._stands() else None

    def outlive_queue(self) -> None:
        """Can be settled, too, after the queue was closed."""
        self._leases = replace(self._leases)  # it is open, and nobody closes it

    # Settling

    def acknowledge(self) -> Acknowledgement:
        """End the message as succeeded.

        Any other answer than ACKNOWLEDGED says that it was replaced meanwhile, or that the lease was lost.
        """
        return self._settle(self.acknowledging())

    def reject(self, delay: timedelta | None = None) -> Acknowledgement:
        """Give the message back, due at once or after `delay` (timedelta). Its last attempt: it becomes a dead letter.

        Raises TypeError or ValueError for a delay that is no timedelta of 0 or more.
        """
        return self._settle(self.rejecting(delay))

    def defer(self, until: datetime, state: Any = UNCHANGED) -> Acknowledgement:
        """Give the message back, due at `until` (aware datetime). The attempt counts. `state` replaces the saved state.

        Raises InvalidTime, NotStorable for a state without a JSON form, or PayloadTooLarge, and changes nothing.

            envelope.defer(timezone.now() + timedelta(minutes=1), state={"read": 40})
        """
        self._leases.store.check_time(until)
        headers = None if state is UNCHANGED else dumps({**self._headers, "state": state}, where="state")
        check_size("state", headers or "")
        return self._settle(self._given_back(until=until, metadata=headers))

    def fail(self, reason: str) -> Acknowledgement:
        """End the message as failed, with a reason (str): it becomes a dead letter in the history."""
        return self._settle(self._leases.failed(self.claimed, self._elapsed(), Failed(reason), kept=False))

    def release(self) -> Acknowledgement:
        """Give the message back, due at once. The attempt does not count."""
        return self._settle(self.releasing())

    def extend(self, lease: timedelta) -> bool:
        """Extend the lease to at least `lease` (timedelta above zero) from now. Returns False if it was not extended.

        Then it was lost, or another transaction locks the message and its lease has run out meanwhile. It takes part
        in the caller's transaction: once that, or its savepoint, is rolled back, the lease ends as it did before.
        Raises InvalidQueue for a wrong `lease`.
        """
        check_duration("lease", lease)
        kept = self.answer is None and self._leases.renew(self.claimed, lease, self.held_until())
        if kept:
            ends, still_stands = time.monotonic() + lease.total_seconds(), until_undone(self._leases.alias)
            known = self._lease_ends if still_stands is not stands else [(self.held_until(), stands)]
            self._lease_ends = [*known, (ends, still_stands)]
        return kept

    def reply(self, payload: P) -> bool:
        """Offer `payload` to the queue that the message names as `reply_to`. The key is that of the message, or its id.

        Returns False if that queue has expired. Raises LookupError if the message has no `reply_to`.
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
        """Run the body in a transaction on the queue's database that also ends the message: both commit, or neither.

        If the body raises, its writes are rolled back and the message is rejected, due at once or after `backoff` (a
        timedelta, or a callable that takes the number of the attempt). Raises LeaseLost, and rolls back, if the lease
        was lost during the body; RuntimeError if the caller has a transaction open, as that one would commit later.
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
                self._answer = None  # it was rolled back with the rest
                self._put_back(error, delay)
            raise

    def put_back(self, error: Exception, backoff: Backoff | timedelta | None) -> None:
        """Reject after an error, unless it is settled already: due after `backoff`."""
        self._settle(self.putting_back(error, self._delay(backoff)))

    # The settlements, for Batch too

    def acknowledging(self) -> Settlement:
        """End as succeeded."""
        return self._leases.succeeded(self.claimed, self._elapsed())

    def rejecting(self, delay: timedelta | None = None, error: Exception | None = None) -> Settlement:
        """Give back, due after `delay`; at the last attempt, fail. Raises ValueError for a delay below zero."""
        seconds = seconds_of(delay)
        if self.attempt >= self.claimed.max_attempts:
            reason = error or Failed("It was rejected at its last attempt.")
            return self._leases.failed(self.claimed, self._elapsed(), reason)
        errors = None if error is None else errors_with(self.claimed, error, self._elapsed())
        return self._given_back(delay=seconds, errors=errors)

    def releasing(self) -> Settlement:
        """Give back, due at once; the attempt does not count."""
        return Settlement(GiveBack(self.claimed, charged=False))

    def putting_back(self, error: BaseException, delay: timedelta | None = None) -> Settlement:
        """Reject after an error; release after a KeyboardInterrupt or SystemExit, which the message did not cause."""
        return self.rejecting(delay, error) if isinstance(error, Exception) else self.releasing()

    def learn(self, answer: Acknowledgement, still_stands: Callable[[], bool]) -> None:
        """Remember how the delivery ended, as long as `still_stands()`. After BUSY it has not ended."""
        if answer is not Acknowledgement.BUSY:
            self._answer, self._stands = answer, still_stands

    def held_until(self) -> float:
        """The moment of `time.monotonic()` at which its lease ends."""
        return max(ends for ends, still_stands in self._lease_ends if still_stands())

    def _given_back(self, **fields: Any) -> Settlement:
        # If the message was replaced while leased, this attempt is recorded in the history, with its start.
        started = self._elapsed() if self._leases.history is History.KEEP else None
        return Settlement(GiveBack(self.claimed, charged=True, started=started, **fields))

    def _delay(self, backoff: Backoff | timedelta | None) -> timedelta | None:
        delay = None if backoff is None else as_backoff(backoff)(self.attempt)
        seconds_of(delay)  # raises for a wrong delay before the body runs
        return delay

    def _acknowledge_or_undo(self) -> None:
        if transaction.get_rollback(using=self._leases.alias):
            raise TransactionManagementError("A statement of the transaction failed; it is rolled back.")
        if self.acknowledge() in {Acknowledgement.LEASE_LOST, Acknowledgement.BUSY}:
            raise LeaseLost(f"The lease of message {self.message_id} was lost; its transaction is rolled back.")

    def _confirm(self) -> None:
        """The first on_commit callback: errors of later ones come after the commit."""
        self._committed, self._stands = True, stands

    def _put_back(self, error: BaseException, delay: timedelta | None = None) -> None:
        with suppress(Error, QueueClosed):  # the first error is raised; the message comes back when its lease ends
            self._settle(self.putting_back(error, delay))

    def _settle(self, end: Settlement) -> Acknowledgement:
        if (known := self.answer) is not None:
            return known
        answer = self._leases.settle([end], self.held_until())[self.message_id]
        self.learn(answer, until_undone(self._leases.alias))
        return answer

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    aacknowledge = async_version(acknowledge)
    areject = async_version(reject)
    adefer = async_version(defer)
    afail = async_version(fail)
    arelease = async_version(release)
    aextend = async_version(extend)
    areply = async_version(reply)
