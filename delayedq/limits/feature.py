"""What limits add to the life of a message: places in channels, and notices of what happens there."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from django.db.models import Q

from delayedq.limits.channels import Channels
from delayedq.limits.offers import as_stored, line_up_again, line_up_offered, line_up_rows, told_of, with_channels
from delayedq.limits.places_held import hold, hold_longer, hold_waiting, let_go
from delayedq.limits.rules import channel_of
from delayedq.limits.sizes import offer_sized
from delayedq.sql.priority import BOUNDARY, is_limited
from delayedq.store.feature import Feature, register

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import timedelta

    from django.db.models import QuerySet

    from delayedq.models import Message
    from delayedq.store.base import Store
    from delayedq.store.feature import Attempt, RevivedMessage, TakenMessage
    from delayedq.store.protocol import Offer, Offered, OnConflict, Settled, Transition


class LimitsFeature(Feature):
    """Messages with a channel: their stored priority is below `BOUNDARY`, so no claim of the queue finds them."""

    marks: ClassVar[Q | None] = Q(priority__lt=BOUNDARY)

    def offer(
        self,
        store: Store,
        offers: Sequence[Offer],
        on_conflict: OnConflict,
        store_all: Callable[[Sequence[Offer]], list[Offered]],
    ) -> list[Offered]:
        """As far as limits of sizes have room; what has a channel gets its place in it."""
        line_up = partial(_line_up, store, store_all)
        if any(offer.sizes for offer in offers):
            return offer_sized(store.database, offers, on_conflict, line_up)
        return line_up(offers)

    def concerned(self, transitions: Sequence[Transition]) -> Sequence[Transition]:
        return with_channels(transitions)

    def settled(self, store: Store, transitions: Sequence[Transition], settled: Settled) -> bool:
        """The channels from which messages were moved, as they were replaced while they ran, are looked at."""
        if moved := [one.claimed.id for one in transitions if one.claimed.id in settled.superseded]:
            Channels.of(store).tell_freed(moved)
        return False

    def told(self, store: Store, transitions: Sequence[Transition], settled: Settled) -> None:
        Channels.of(store).tell(told_of(transitions, settled))

    def taken(self, store: Store, taken: Sequence[TakenMessage], *, waits: bool = False) -> None:
        if ids := [one.id for one in taken if _is_marked(one)]:
            (hold_waiting if waits else hold)(Channels.of(store), ids)

    def taken_of(self, store: Store, messages: QuerySet[Message]) -> None:
        leased = messages.filter(priority__lt=BOUNDARY, lease_token__isnull=False)
        hold(Channels.of(store), list(leased.values_list("id", flat=True)))

    def moved(self, store: Store, ids: Collection[int]) -> None:
        line_up_again(Channels.of(store), ids)

    def revived(self, store: Store, ids: Collection[int], marked: Sequence[RevivedMessage]) -> None:
        del ids
        line_up_rows(Channels.of(store), marked)

    def lost(self, store: Store, attempts: Collection[Attempt], lease: timedelta) -> None:
        hold_longer(Channels.of(store), attempts, lease)

    def released(self, store: Store, attempts: Collection[Attempt], ids: Collection[int] = ()) -> None:
        let_go(Channels.of(store), attempts, ids)


def _line_up(
    store: Store, store_all: Callable[[Sequence[Offer]], list[Offered]], offers: Sequence[Offer]
) -> list[Offered]:
    outcomes = store_all([as_stored(offer) for offer in offers])
    line_up_offered(Channels.of(store), offers, outcomes)
    return outcomes


def _is_marked(taken: TakenMessage) -> bool:
    """Whether it has a channel; what the statement has found by that says neither."""
    if taken.priority is not None:
        return is_limited(taken.priority)
    return taken.metadata is None or channel_of(taken.metadata) is not None


register(LimitsFeature())
