"""Many messages at once: polled together and settled together, or one by one."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Self

from django.db import Error

from delayedq.exceptions import QueueClosed
from delayedq.queue.envelope import DeliveryType
from delayedq.queue.twins import twin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import timedelta

    from delayedq.queue.envelope import Envelope
    from delayedq.queue.leases import Acknowledgement, End, Leases


class Batch[P]:
    """What try_poll_many() found, in the order in which it was due; possibly nothing.

    Its verbs settle, in one transaction, those of its envelopes that were not settled on their own, and return what
    became of each, in their order. As a context manager it acknowledges, or rejects if an exception passes through.
    """

    def __init__(self, leases: Leases, envelopes: Sequence[Envelope[P]]) -> None:
        self._leases = leases
        self.envelopes = tuple(envelopes)

    @property
    def payload(self) -> list[P]:
        return [envelope.payload for envelope in self.envelopes]

    @property
    def delivery_type(self) -> DeliveryType:
        """REDELIVERY if any of them is one."""
        types = {envelope.delivery_type for envelope in self.envelopes}
        return DeliveryType.REDELIVERY if DeliveryType.REDELIVERY in types else DeliveryType.FIRST_DELIVERY

    def __len__(self) -> int:
        return len(self.envelopes)

    def __iter__(self) -> Iterator[Envelope[P]]:
        return iter(self.envelopes)

    def acknowledge(self) -> list[Acknowledgement]:
        return self._settle(lambda envelope: envelope.acknowledging())

    def reject(self, delay: timedelta | None = None) -> list[Acknowledgement]:
        """Give them back, for anybody at once or after a delay."""
        return self._settle(lambda envelope: envelope.rejecting(delay))

    def release(self) -> list[Acknowledgement]:
        """Give them back as if they had never been polled: this attempt does not count."""
        return self._settle(lambda envelope: envelope.releasing())

    def _settle(self, end: Callable[[Envelope[P]], End]) -> list[Acknowledgement]:
        held = {envelope.message_id: envelope for envelope in self.envelopes if envelope.answer is None}
        if held:
            until = min(envelope.held_until() for envelope in held.values())
            for id_, answer in self._leases.settle([*map(end, held.values())], until).items():
                held[id_].learn(answer)
        return [envelope.answer for envelope in self.envelopes if envelope.answer is not None]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.acknowledge()
            return
        with suppress(Error, QueueClosed):  # the error passes through; the messages come back when their leases end
            self._settle(lambda envelope: envelope.putting_back(error))

    aacknowledge = twin(acknowledge)
    areject = twin(reject)
    arelease = twin(release)
