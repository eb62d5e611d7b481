"""The base class of Producer and Consumer: address, leases, close."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from delayedq.conf import get_settings
from delayedq.core.edits import HIGHEST_PRIORITY, LOWEST_PRIORITY
from delayedq.exceptions import InvalidQueue
from delayedq.queue.address import REPLY, Address
from delayedq.queue.channels import QueueChannels
from delayedq.queue.declared import declare
from delayedq.queue.filters import Filter
from delayedq.queue.leases import History, Leases, check_duration
from delayedq.queue.serializers import JSON
from delayedq.queue.watch import ring
from delayedq.tasks.defaults import MOST_ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from delayedq.core.limiting import Limit
    from delayedq.queue.serializers import Serializer


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
        self.address = Address(name, serializer, _attempts(max_attempts), declared, waits_in)
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
