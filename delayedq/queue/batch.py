"""A batch of messages that were polled together; they are settled together, or one by one."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Self

from django.db import Error

from delayedq.async_versions import async_version
from delayedq.exceptions import QueueClosed
from delayedq.queue.envelope import DeliveryType
from delayedq.queue.rolled_back import until_undone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import timedelta

    from delayedq.queue.envelope import Envelope
    from delayedq.queue.leases import Acknowledgement, Leases, Settlement


class Batch[P]:
    """The envelopes that try_poll_many() returned, ordered by due time; possibly none.

    Its verbs settle, in one transaction, the envelopes that were not settled individually, and return the
    Acknowledgement of each, in order. As a context manager it acknowledges; if the block raises, it rejects.

        with contacts.try_poll_many(100) as batch:
            send(batch.payload)
    """

    def __init__(self, leases: Leases, envelopes: Sequence[Envelope[P]]) -> None:
        self._leases = leases
        self.envelopes = tuple(envelopes)

    @property
    def payload(self) -> list[P]:
        """The payloads of all its messages (list), also of those that were settled one by one."""
        return [envelope.payload for envelope in self.envelopes]

    @property
    def delivery_type(self) -> DeliveryType:
        """REDELIVERY if any of its messages is one, else FIRST_DELIVERY."""
        types = {envelope.delivery_type for envelope in self.envelopes}
        return DeliveryType.REDELIVERY if DeliveryType.REDELIVERY in types else DeliveryType.FIRST_DELIVERY

    def __len__(self) -> int:
        return len(self.envelopes)

    def __iter__(self) -> Iterator[Envelope[P]]:
        return iter(self.envelopes)

    def acknowledge(self) -> list[Acknowledgement]:
        """End the messages as succeeded."""
        return self._settle(lambda envelope: envelope.acknowledging())

    def reject(self, delay: timedelta | None = None) -> list[Acknowledgement]:
        """Give the messages back, due at once or after `delay` (timedelta). The attempt counts."""
        return self._settle(lambda envelope: envelope.rejecting(delay))

    def release(self) -> list[Acknowledgement]:
        """Give the messages back, due at once. The attempt does not count."""
        return self._settle(lambda envelope: envelope.releasing())

    def _settle(self, end: Callable[[Envelope[P]], Settlement]) -> list[Acknowledgement]:
        answers = [envelope.answer for envelope in self.envelopes]
        held = [envelope for envelope, answer in zip(self.envelopes, answers, strict=True) if answer is None]
        if not held:
            return [answer for answer in answers if answer is not None]
        until = max(envelope.held_until() for envelope in held)
        settled = self._leases.settle([*map(end, held)], until)
        still_stands = until_undone(self._leases.alias)
        for envelope in held:
            envelope.learn(settled[envelope.message_id], still_stands)
        known = zip(self.envelopes, answers, strict=True)
        return [settled[envelope.message_id] if answer is None else answer for envelope, answer in known]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.acknowledge()
            return
        with suppress(Error, QueueClosed):  # the first error is raised; the messages come back when their leases end
            self._settle(lambda envelope: envelope.putting_back(error))

    aacknowledge = async_version(acknowledge)
    areject = async_version(reject)
    arelease = async_version(release)
