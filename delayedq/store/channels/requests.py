"""The values that go into a claim from channels, and come out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime, timedelta

    from delayedq.core.limiting import Limit
    from delayedq.store.protocol import Claimed


class Rules(NamedTuple):
    """The limits of the channels of one task in one queue.

    `scopes`: those that all of them share, by the name of the queue, the task or the shared limit. `channel`: that of
    each channel by itself.
    """

    scopes: Sequence[tuple[str, Limit]] = ()
    channel: Limit | None = None


class Held(NamedTuple):
    """A lease, and until when it holds unless it is renewed; that may be past, if it was renewed beside its row."""

    token: int | None
    until: datetime | None


class ChannelRequest(NamedTuple):
    """Up to `limit` messages of the groups (queue, kind) that `rules` has an answer for; None: it is not served."""

    rules: Callable[[str, str], Rules | None]
    limit: int
    lease: timedelta
    worker: str
    token: int


class ChannelClaim(NamedTuple):
    """What was claimed, and in how many seconds to ask again; None: when something was offered or ended."""

    claimed: list[Claimed]
    due_in: float | None = None
