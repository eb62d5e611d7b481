"""What features add to the life of messages. The store asks all that are registered, and knows none of them by name.

A feature marks its messages where the queue does not look: by the stored priority (limits), in the metadata (flows), by
the generation (steps) or by a field of the transition (results that expire). It finds them by a look at values that
are in memory, so messages of no feature cost no statement. Everything it writes belongs to the transaction of the verb
that calls it; it takes no lock that others wait for.

The life of a message, and what is called when:

    offered                 `offer`       around the statements that store it
    claimed                 -             by the feature's own claim, if its messages wait in lanes of their own
    settled                 `settled`     in the transaction; then `told`, unless a claim of the feature's follows
    ended elsewhere         `taken`       before an operator, a key or a drop takes it from its attempt
    moved, revived          `moved`, `revived`
    lost, released          `lost`, `released`: its attempt lost it, or was never started
    pruned                  `unneeded`, `needed_history`, `needed_results`: what of the history has to stay

What outlives its messages is removed by a sweep (`sweeps.register_sweep`).

PostgreSQL settles and claims in one statement. A feature that takes part in a batch says by `fused` what its statement
for both is; by default there is none, and the batch takes several statements in one transaction.
"""

from __future__ import annotations

from functools import reduce
from itertools import compress
from operator import or_
from typing import TYPE_CHECKING, ClassVar, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import timedelta
    from typing import Any

    from django.db.models import Q, QuerySet

    from delayedq.models import Message
    from delayedq.store.base import Store
    from delayedq.store.protocol import Offer, Offered, OnConflict, Settled, Transition


#: A message by its id, and the token of its lease.
type Attempt = tuple[int, int]


class TakenMessage(NamedTuple):
    """A message that is taken from its attempt, by what the statement has returned of it.

    None: it did not return that; what has no metadata has an empty text here.
    """

    id: int
    priority: int | None = None
    metadata: str | None = None


class RevivedMessage(NamedTuple):
    """A message that is live again, and has the mark of a feature."""

    id: int
    queue: str
    kind: str
    metadata: str | None


class Fused(NamedTuple):
    """A statement of PostgreSQL that settles a batch and claims, and its parameters besides those of both.

    It answers as `SETTLE_AND_CLAIM` does; or with an empty list and nothing claimed: then it has done nothing.
    """

    statement: str
    parameters: dict[str, Any]


class Feature:
    """By itself it takes part in nothing: a feature says what it does."""

    #: Which messages are its own, as a condition on `Message`, for `revived`; None: it gets all ids, and no rows.
    marks: ClassVar[Q | None] = None

    #: Whether `settled` may offer messages, and wait for others that do.
    may_offer: ClassVar[bool] = False

    def offer(
        self,
        store: Store,
        offers: Sequence[Offer],
        on_conflict: OnConflict,
        store_all: Callable[[Sequence[Offer]], list[Offered]],
    ) -> list[Offered]:
        """Store those of these offers that may be, by `store_all`; the outcomes are in the order of the offers.

        Called in a transaction, if one of them is not plain (`Offer.is_plain`).
        """
        del store, on_conflict
        return store_all(offers)

    def concerned(self, transitions: Sequence[Transition]) -> Sequence[Transition]:
        """Those in which it takes part, told by values alone."""
        del transitions
        return ()

    def settled(self, store: Store, transitions: Sequence[Transition], settled: Settled) -> bool:
        """Those transitions in which it takes part were carried out, but for `settled.untouched`.

        Returns whether messages were offered by it.
        """
        del store, transitions, settled
        return False

    def told(self, store: Store, transitions: Sequence[Transition], settled: Settled) -> None:
        """The same at the end of the settlement."""

    def fused(self, transitions: Sequence[Transition]) -> Fused | None:
        """The statement that settles a batch of ends, of which these concern it, and claims; None: there is none."""
        del transitions
        return None

    def taken(self, store: Store, taken: Sequence[TakenMessage], *, waits: bool = False) -> None:
        """These are to be ended in this transaction, or (`waits`) are to wait again: their attempts run on.

        On PostgreSQL, the statements that take them away do it.
        """

    def taken_of(self, store: Store, messages: QuerySet[Message]) -> None:
        """The same of all messages of a query; what only waits is not read, however much it is."""

    def moved(self, store: Store, ids: Collection[int]) -> None:
        """An operator has moved these messages to another time, queue or priority, in this transaction."""

    def revived(self, store: Store, ids: Collection[int], marked: Sequence[RevivedMessage]) -> None:
        """These messages came back from the history, in this transaction; `marked`: those that have its mark."""

    def lost(self, store: Store, attempts: Collection[Attempt], lease: timedelta) -> None:
        """These attempts were to be renewed for so long, and have lost their messages: they run on."""

    def released(self, store: Store, attempts: Collection[Attempt], ids: Collection[int] = ()) -> None:
        """These attempts were released without having started; so their messages (ids) wait again.

        On PostgreSQL, the statement that releases them does it.
        """

    def unneeded(self, alias: str) -> str:
        """A condition (SQL, with AND before it) that spares history from pruning; "": it needs none."""
        del alias
        return ""

    def needed_history(self, alias: str) -> Q | None:
        """The same as a condition on `FinishedMessage`, of the rows that have to stay; None: none have."""
        del alias
        return None

    def needed_results(self, alias: str) -> Q | None:
        """The rows of `FinishedMessage` whose return values it may still read; None: none."""
        del alias
        return None


#: In the order in which they are asked.
FEATURES: list[Feature] = []


def register(feature: Feature) -> None:
    """Let the stores of this process ask it, too. To register one of the same class again changes nothing."""
    if all(type(one) is not type(feature) for one in FEATURES):
        FEATURES.append(feature)


def concerned(transitions: Sequence[Transition]) -> list[tuple[Feature, Sequence[Transition]]]:
    """The features that take part in some of these transitions, and in which."""
    return [(feature, found) for feature in FEATURES if (found := feature.concerned(transitions))]


def tell_revived(store: Store, ids: Collection[int]) -> None:
    """Tell all features; one statement finds the messages of those that have a mark."""
    from delayedq.models import Message  # stores are imported before the models are loaded

    marks = {f"mark_{number}": one.marks for number, one in enumerate(FEATURES) if one.marks is not None}
    marked: dict[str, list[RevivedMessage]] = {name: [] for name in marks}
    if ids and marks:
        rows = Message.objects.using(store.alias).filter(reduce(or_, marks.values()), id__in=ids).annotate(**marks)
        for id_, queue, kind, metadata, *are_marked in rows.values_list(*RevivedMessage._fields, *marks):
            for name in compress(marks, are_marked):
                marked[name].append(RevivedMessage(id_, queue, kind, metadata))
    for number, feature in enumerate(FEATURES):
        feature.revived(store, ids, marked.get(f"mark_{number}", ()))
