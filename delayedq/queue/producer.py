"""The offering half of a queue. Offers take part in the caller's transaction: messages appear when that commits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from delayedq.async_versions import async_version
from delayedq.conf import get_settings
from delayedq.core.edits import HIGHEST_PRIORITY, LOWEST_PRIORITY
from delayedq.exceptions import InvalidMessage, InvalidQueue
from delayedq.limits.of_queues import QueueChannels
from delayedq.queue.address import REPLY, QueueAddress, declare
from delayedq.queue.filters import Filter
from delayedq.queue.leases import History, Leases, check_duration
from delayedq.queue.serializers import JSON
from delayedq.queue.watch import ring, ring_after_commit
from delayedq.store.protocol import OnConflict
from delayedq.tasks.options import MOST_ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from delayedq.limits.rules import Limit
    from delayedq.queue.serializers import Serializer
    from delayedq.store.protocol import Conflict, Offer, OfferOutcome

# The base class of Producer and Consumer: address, leases, close.


class Base[P]:
    """The options are those of DelayedQueue."""

    #: True for a reply queue, whose messages are dropped when it is closed.
    is_temporary = False

    def __init__(
        self,
        name: str,
        serializer: Serializer[P] = JSON,
        using: str | None = None,
        *,
        lease: timedelta | None = None,
        poll_interval: timedelta | None = None,
        max_attempts: int | None = None,
        priorities: Iterable[int] = (),
        history: History = History.KEEP,
        channels: bool = False,
        limit: Limit | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        for what, duration in (("lease", lease), ("poll_interval", poll_interval)):
            if duration is not None:
                check_duration(what, duration)
        declared = _priorities(priorities)
        waits_in = QueueChannels(channels, limit)
        self.address = QueueAddress(name, serializer, _attempts(max_attempts), declared, waits_in)
        if name.startswith(REPLY) and not self.is_temporary:
            raise InvalidQueue(f"The names of temporary queues begin with {REPLY!r}; make them with reply_queue().")
        self.leases = Leases(
            queue=self.address.queue,
            priorities=declared,
            using=using,
            lease=lease,
            history=History(history),
            channels=waits_in,
            clock=clock,
        )
        declare(self.address.queue, declared)
        waits_in.declare(self.address.queue)
        self._poll_interval = poll_interval
        self._filter = Filter()

    @property
    def name(self) -> str:
        """The name that the queue was made with (str), without the type of its payloads."""
        return self.address.name

    def close(self) -> None:
        """Close the queue, and wake threads that wait in it. Polled messages come back when their leases end."""
        self.leases.close()
        ring(self.leases.alias, self.address.queue)

    def patience(self) -> float:
        """The longest sleep in seconds: the poll interval, at most that of the settings."""
        longest = get_settings().POLL_INTERVAL
        return min(self._poll_interval or longest, longest).total_seconds()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address.queue!r})"


def _attempts(wanted: int | None) -> int:
    if wanted is None:
        return MOST_ATTEMPTS
    if type(wanted) is not int or not 1 <= wanted <= MOST_ATTEMPTS:
        raise InvalidQueue(f"max_attempts is a number from 1 to {MOST_ATTEMPTS:,}, not {wanted!r}.")
    return wanted


def _priorities(wanted: Iterable[int]) -> tuple[int, ...]:
    """These and 0, the most urgent first."""
    declared = [*wanted] if isinstance(wanted, Iterable) else [None]
    if not all(type(one) is int and LOWEST_PRIORITY <= one <= HIGHEST_PRIORITY for one in declared):
        raise InvalidQueue(f"The priorities of a queue are numbers from -100 to 100, not {wanted!r}.")
    return tuple(sorted({0, *declared}, reverse=True))


# Producer


@dataclass(frozen=True, slots=True)
class BatchedMessage[P]:
    """A message for offer_batch().

    input: any value of the caller's; the BatchedReply carries it. key, payload, schedule_at: as in offer_or_update().
    can_update: False leaves a live message of the same key unchanged, as on_conflict="keep" does.
    on_conflict, priority, max_attempts, channel: as in offer_or_update().
    """

    input: Any
    key: str | None
    payload: P
    schedule_at: datetime | None = None
    can_update: bool = True
    on_conflict: Conflict = OnConflict.REPLACE
    priority: int = 0
    max_attempts: int | None = None
    channel: str | None = None


@dataclass(frozen=True, slots=True)
class BatchedReply:
    """The outcome of the message with this `input`."""

    input: Any
    outcome: OfferOutcome


class OfferTerms(TypedDict, total=False):
    """What an offer may say beside its message; see offer_or_update()."""

    priority: int
    max_attempts: int | None
    channel: str | None


class Producer[P](Base[P]):
    """The offering methods of `DelayedQueue`, each with an async version: `aoffer_or_update` and so on."""

    def offer_or_update(
        self,
        key: str | None,
        payload: P,
        schedule_at: datetime | None = None,
        *,
        on_conflict: Conflict = OnConflict.REPLACE,
        reply_to: Base[Any] | None = None,
        **terms: Unpack[OfferTerms],
    ) -> OfferOutcome:
        """Store a message that is due at `schedule_at` (aware datetime; None: now), or replace the live one of `key`.

        The same payload at the same time is IGNORED, even while the message is leased. Any other offer replaces it; if
        it is leased, the replacement is delivered once more. With `key` None each offer is a new message.
        `reply_to` is the result of reply_queue().

        on_conflict: what is replaced: "replace" (payload and time; debounce), "keep" (nothing), "preserve_time"
            (payload only; throttle), "earliest" or "latest" (payload, and the earlier or later of the two times).
        priority: one of the queue's priorities; higher is polled first. Default: 0.
        max_attempts: number of deliveries after which this message becomes a dead letter. Default: that of the queue.
        channel: the channel in which it waits (str of at most 200 characters), if the queue has channels. Default: "".

        Raises InvalidMessage, and stores nothing, for a wrong value. If a limit of the queue has reached its size, the
        message is DROPPED, or QueueFull is raised, as its on_full says.
        """
        return self._offer(key, payload, schedule_at, on_conflict, reply_to, terms)

    def offer_if_not_exists(
        self,
        key: str | None,
        payload: P,
        schedule_at: datetime | None = None,
        *,
        reply_to: Base[Any] | None = None,
        **terms: Unpack[OfferTerms],
    ) -> OfferOutcome:
        """Like offer_or_update(), but if there is a live message of this key it is kept, and the offer is IGNORED."""
        return self._offer(key, payload, schedule_at, OnConflict.KEEP, reply_to, terms)

    def _offer(
        self,
        key: str | None,
        payload: P,
        schedule_at: datetime | None,
        on_conflict: Conflict,
        reply_to: Base[Any] | None,
        terms: OfferTerms,
    ) -> OfferOutcome:
        policy = checked(on_conflict)
        there = None if reply_to is None else self._reply_address(reply_to)
        offer = self.address.offer(key, payload, schedule_at, there, **terms)
        store = self.leases.store
        offered = store.offer(offer, policy)
        ring_after_commit(store.alias, offer.queue)
        return offered.outcome

    def _reply_address(self, reply_to: Base[Any]) -> str:
        if not reply_to.is_temporary or reply_to.address.serializer.type_name != self.address.serializer.type_name:
            raise InvalidQueue(f"{reply_to!r} is not a reply_queue() for the payloads of {self!r}.")
        return reply_to.address.queue

    def offer_batch(self, messages: Iterable[BatchedMessage[P]]) -> list[BatchedReply]:
        """Store all messages or none. The replies are in the order of the messages.

        If a key occurs more than once, its messages are offered one after another, in order.
        Raises InvalidMessage, and stores nothing, if one of them can't be stored.
        """
        batch = list(messages)
        offers = [(self._batched(message), _policy(message)) for message in batch]
        store = self.leases.store
        offered = store.offer_each(offers)
        ring_after_commit(store.alias, self.address.queue)
        return [BatchedReply(message.input, one.outcome) for message, one in zip(batch, offered, strict=True)]

    def _batched(self, message: BatchedMessage[P]) -> Offer:
        terms: OfferTerms = {
            "priority": message.priority,
            "max_attempts": message.max_attempts,
            "channel": message.channel,
        }
        return self.address.offer(message.key, message.payload, message.schedule_at, **terms)

    aoffer_or_update = async_version(offer_or_update)
    aoffer_if_not_exists = async_version(offer_if_not_exists)
    aoffer_batch = async_version(offer_batch)


def checked(on_conflict: Conflict) -> OnConflict:
    """The policy of this name. Raises InvalidMessage if there is none."""
    try:
        return OnConflict(on_conflict)
    except ValueError:
        raise InvalidMessage(f"on_conflict is one of {', '.join(OnConflict)}, not {on_conflict!r}.") from None


def _policy(message: BatchedMessage[Any]) -> OnConflict:
    policy = checked(message.on_conflict)
    return policy if message.can_update else OnConflict.KEEP
