"""Channels of a bare queue: whether its messages wait in them, and which limits they have there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from delayedq.exceptions import InvalidMessage, InvalidQueue
from delayedq.limits.declared import UNLIMITED, made_with_limits, rules_of_bare, sizes_of
from delayedq.limits.rules import Limit
from delayedq.store.offers import check_channel_name
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from delayedq.limits.requests import Rules
    from delayedq.limits.rules import Size


@dataclass(frozen=True, slots=True, weakref_slot=True)
class QueueChannels:
    """A queue has channels if it says so (`declared`), has a limit, or is in LIMITS.

    limit: that of each channel. Raises InvalidQueue for a wrong one.
    """

    declared: bool = False
    limit: Limit | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and (not isinstance(self.limit, Limit) or self.limit.name is not None):
            raise InvalidQueue(f"The limit of a queue is a Limit without a name, not {self.limit!r}.")

    def declare(self, queue: str) -> None:
        """Let the rest of this process know the limit of the queue with this stored name, as long as it has it."""
        if self.limit is not None:
            made_with_limits[queue] = self

    def rules(self, queue: str) -> Rules | None:
        """The limits of the messages of the queue with this stored name; None: they wait in no channel."""
        rules = rules_of_bare(queue, self.limit)
        return rules if self.declared or self.limit is not None or rules.scopes[0][1] != UNLIMITED else None

    def terms(self, queue: str, channel: object) -> tuple[str | None, tuple[Size, ...]]:
        """The channel of an offer that asks for this one (None: for none), and its sizes. Raises InvalidMessage."""
        rules = self.rules(queue)
        if rules is not None:
            check_channel_name(channel or "")
            return str(channel or ""), sizes_of(rules)
        if channel is not None:
            raise InvalidMessage(
                f"The queue {queue.partition(BARE)[0]!r} has no channels, as its consumers know it: not {channel!r}. "
                "Declare them with DelayedQueue(channels=True) or DelayedQueue(limit=...) wherever this queue is made."
            )
        return None, ()


NO_CHANNELS = QueueChannels()
