"""The verbs of the store that are about messages with a channel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from delayedq.store.channels.requests import ChannelClaim, ChannelRequest, Held
from delayedq.store.claims import new_token
from delayedq.store.database import retry_on_deadlock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime, timedelta

    from delayedq.store.channels.requests import Rules
    from delayedq.store.database import Database
    from delayedq.store.protocol import Claimed


class Channels(ABC):
    database: Database

    @retry_on_deadlock
    def claim_channels(
        self,
        rules: Callable[[str, str], Rules | None],
        limit: int,
        lease: timedelta,
        worker: str,
        token: int | None = None,
    ) -> ChannelClaim:
        """Lease up to `limit` messages that are due in channels, as far as their limits have room, in fair turn.

        `rules` tells the limits of a queue and a kind; None: its messages are not claimed. Without anything to do it
        only reads.
        """
        from delayedq.store.channels.claims import TAKEN, ChannelTurn, due_in

        coming = due_in(self.database.alias, self.database.now())
        if limit <= 0 or coming is None or coming > 0:
            return ChannelClaim([], coming)
        with self.database.atomic():
            if not self.lock_channels():
                return ChannelClaim([], TAKEN)
            request = ChannelRequest(rules, limit, lease, worker, token or new_token())
            return ChannelTurn(self.at(self.now()), request).take()  # type: ignore[arg-type]  # this is the store

    @abstractmethod
    def lock_channels(self) -> bool:
        """Until the end of the transaction no other claim from channels takes place; False: one does now."""

    @abstractmethod
    def claim_ids(self, ids: Sequence[int], request: ChannelRequest) -> list[Claimed]:
        """Lease those of these messages that wait in limited lanes, are due, and are not locked."""

    @abstractmethod
    def channel_heads(self, most: Mapping[int, int], now: datetime) -> Iterable[tuple[int, int]]:
        """The ids of channels and messages: up to so many of each channel that are due, in their order."""

    def held_among(self, ids: Sequence[int], now: datetime) -> dict[int, Held]:
        """The leases of those of these messages whose leases hold."""
        from delayedq.models import Message, is_held

        held = Message.objects.using(self.database.alias).filter(is_held(now), id__in=ids)
        return {id_: Held(token, until) for id_, token, until in held.values_list("id", "lease_token", "leased_until")}

    # By id, and in no other way: what another transaction has locked is not waited for.

    def forget_notices(self, ids: Collection[int]) -> None:
        from delayedq.models import ChannelNotice

        ChannelNotice.objects.using(self.database.alias).filter(id__in=ids).delete()

    def take_places(self, ids: Collection[int], token: int) -> None:
        """A claim with this token has taken these messages."""
        from delayedq.models import ChannelMessage

        ChannelMessage.objects.using(self.database.alias).filter(message_id__in=ids).update(lease_token=token)

    def drop_places(self, ids: Collection[int]) -> None:
        """These messages have no place any more."""
        from delayedq.models import ChannelMessage

        ChannelMessage.objects.using(self.database.alias).filter(message_id__in=ids).delete()

    @abstractmethod
    def at(self, moment: datetime | None) -> Channels: ...

    @abstractmethod
    def now(self) -> datetime: ...
