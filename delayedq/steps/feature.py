"""What durable steps add to the life of a message: whose records they are, when it is replaced or comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delayedq.steps.store import begin_generations, forget_replaced, forget_steps, replaced_failures
from delayedq.store.feature import Feature, register
from delayedq.store.sweeps import register_sweep

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from delayedq.store.base import Store
    from delayedq.store.feature import RevivedMessage
    from delayedq.store.protocol import Settled, Transition


class StepsFeature(Feature):
    """Dead letters of messages that have replaced others, and what is brought back."""

    def concerned(self, transitions: Sequence[Transition]) -> Sequence[Transition]:
        return replaced_failures(transitions)

    def settled(self, store: Store, transitions: Sequence[Transition], settled: Settled) -> bool:
        untouched = settled.untouched
        ended = [one.claimed for one in transitions if one.claimed.id not in untouched]
        forget_replaced(store, {one.id: one.generation for one in ended})
        return False

    def revived(self, store: Store, ids: Collection[int], marked: Sequence[RevivedMessage]) -> None:
        del marked
        begin_generations(store, ids)


register(StepsFeature())
register_sweep(forget_steps)
