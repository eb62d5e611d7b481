"""The values that go into a claim from channels, and come out of it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import datetime, timedelta

    from delayedq.limits.continuing import Chains
    from delayedq.limits.rates import TokenBucket
    from delayedq.limits.rules import Limit
    from delayedq.store.protocol import Claimed


class Rules(NamedTuple):
    """The limits of the channels of one task in one queue.

    `scopes`: those that all of them share, by the name of the queue, the task or the shared limit. `channel`: that of
    each channel by itself.
    """

    scopes: Sequence[tuple[str, Limit]] = ()
    channel: Limit | None = None

    @property
    def is_strict(self) -> bool:
        """Whether a message that is to be tried again blocks its channel."""
        return self.channel is not None and self.channel.is_strict


class ForeignRules(Rules):
    """Those of messages that only other workers claim: what runs of them counts in the limits that they share."""


class Lease(NamedTuple):
    """A lease, and until when it holds unless it is renewed; that may be past, if it was renewed beside its row."""

    token: int | None
    until: datetime | None


def nobody(queue: str, kind: str) -> None:
    """Nobody wants to know."""


class ChannelRequest(NamedTuple):
    """Up to `limit` messages of the groups (queue, kind) that `rules` has an answer for, but for `ForeignRules`.

    expired: whether places of leases that ran out may be given away; else what carries a lease runs. tell_unknown: is
    called with the queue and the kind of each group that is in turn, and that has no rules. chains: what has continued
    (see `continuing`). may_continue: whether the channels of what ends may continue, since nothing else is due.
    """

    rules: Callable[[str, str], Rules | None]
    limit: int
    lease: timedelta
    worker: str
    token: int
    expired: bool = True
    tell_unknown: Callable[[str, str], object] = nobody
    chains: Chains | None = None
    may_continue: bool = False


#: In how many seconds to ask again, if the channels of all that ended have continued: when it was to be asked before.
AS_BEFORE = -1.0


class ChannelClaim(NamedTuple):
    """What was claimed, and in how many seconds to ask again; None: when something was offered or ended."""

    claimed: list[Claimed]
    due_in: float | None = None


# What the store reads and writes of channels. These are rows of the models of the same names, without Django's cost.
class Notice(NamedTuple):
    """Look at this channel at that moment. `ended` attempts of it took `seconds` together."""

    channel_id: int
    group_id: int
    queue: str
    kind: str
    name: str
    at: datetime
    ended: int = 0
    seconds: float = 0.0


class Uncharged(NamedTuple):
    """So many messages of a channel took so many seconds together, and its turn was not charged with them."""

    number: int = 0
    seconds: float = 0.0

    def and_also(self, other: Uncharged) -> Uncharged:
        return Uncharged(self.number + other.number, self.seconds + other.seconds)


class Events(NamedTuple):
    """What settlements and offers say: the notices, and the messages (ids) that have no place any more.

    uncharged: of channels (ids) that have continued.
    """

    notices: Collection[Notice]
    ended: Collection[int] = ()
    uncharged: Mapping[int, Uncharged] = MappingProxyType({})


class ServedGroup(NamedTuple):
    """The channels of one task in one queue. `is_ready`: at least one of them is in turn."""

    id: int
    queue: str
    kind: str
    turn: float
    is_ready: bool = True


class ScopeState(NamedTuple):
    """What is stored of a limit that channels share: how it is set live."""

    definition: str | None = None


class ClaimContext(NamedTuple):
    """What a claim reads before it looks at channels."""

    queues_paused: set[str]
    kinds_paused: set[str]
    groups: list[ServedGroup]
    scopes: dict[str, ScopeState]
    #: Channels for which a share was set live, as scope and name.
    shares: list[tuple[str, str]]
    #: The token buckets of the limits that channels share, by `bucket_name`.
    buckets: dict[str, TokenBucket]
    #: Groups (ids) with a limit that was set live for one of their channels. Asked of databases that deal themselves.
    named: set[int]
    #: As many notices were taken as one claim takes: there may be more.
    is_cut: bool = False


class ChannelState(NamedTuple):
    """A channel that has messages. It is in turn (`is_ready`), or rests until `ready_at`."""

    id: int
    name: str
    is_ready: bool
    ready_at: datetime
    turn: float
    seconds: float
    tokens: float | None
    tokens_at: datetime | None
    weight: float = 1.0


class ChannelQuery(NamedTuple):
    """Which channels of a group a claim visits: the first in turn, and the first of `others` (ids) that are.

    most: as many as take so many places, if each takes one; in_pairs: or two, where messages are short
    (`at_once`). room: how many messages it may start. is_strict: messages that are to be tried again block their
    channels. expired: see `ChannelRequest`.
    """

    group: ServedGroup
    most: int
    room: int
    is_strict: bool = False
    others: Collection[int] = ()
    expired: bool = True
    in_pairs: bool = False


class Running(NamedTuple):
    """How many messages run, and the first moment at which one of their leases ends.

    That of a message counts that waits here for its attempt in another channel; the attempt runs there.
    """

    number: int = 0
    until: datetime | None = None

    def and_until(self, until: datetime, number: int = 1) -> Running:
        """With another one; number: 0 if its attempt runs in another channel."""
        return Running(self.number + number, until if self.until is None else min(self.until, until))

    def not_before(self, moment: datetime) -> Running:
        """None of them ends before this moment."""
        return self if self.until is None else self._replace(until=max(self.until, moment))


class ChannelView(NamedTuple):
    """A channel in turn.

    heads: the ids of the first messages that are due in it, up to `asked`. next_due: if those are all, when the next of
    the others is.
    ended: messages with a place as if they ran, which do not. definition: the limit that was set live.
    blocked_until: when its first message, which blocks it, is due again; None: it is not blocked.
    """

    channel: ChannelState
    running: Running
    asked: int
    heads: list[int]
    next_due: datetime | None
    ended: list[int]
    definition: str | None = None
    blocked_until: datetime | None = None

    def with_ended(self, now: datetime) -> ChannelView:
        """What did not run, and whose place could not be given away, runs: it may be renewed at this moment."""
        running = self.running
        for _ in self.ended:
            running = running.and_until(now)
        return self._replace(running=running)


class Dealt(NamedTuple):
    """What a database has dealt and claimed by itself, in fair turn.

    chosen: the messages (ids), and the channels in which they stood (names); what is not `claimed` was locked, or has
    ended. is_more: it is worth to ask again at once. ended: as in `ChannelView`; then nothing else was done.
    rests_until: when the first of all channels that rest now is looked at again.
    """

    chosen: dict[int, str]
    claimed: list[Claimed]
    is_more: bool
    ended: list[int]
    rests_until: datetime | None


class Start(NamedTuple):
    """Messages to claim, and how their channels are left: `gone` ones have no message any more."""

    ids: list[int]
    channels: list[ChannelState]
    gone: list[int]
    group: ServedGroup
