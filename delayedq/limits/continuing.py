"""A channel continues: the place of a message that has ended passes to the next one of its channel.

That is one statement and one commit (`postgresql.CONTINUE`), without the lock of the claims: nothing is dealt out. At
every moment that others see, as many messages run in the channel as before. So it is done where that is all that is
limited, and nothing is set live. What several channels share is counted by a claim in several statements, between which
a place must not pass from one message to another.

A channel continues for at most LONGEST seconds. Then it takes its turn among the others again, and is charged with what
it has run meanwhile.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from delayedq.limits.offers import address_of, ran_for
from delayedq.limits.requests import ForeignRules, Uncharged

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from delayedq.limits.requests import ChannelRequest, Rules
    from delayedq.store.protocol import Claimed, Finish, Transition

#: Seconds.
LONGEST = 0.25
#: Of more chains, those that are over are forgotten.
MOST = 1_000


class _Chain(NamedTuple):
    """Messages of a channel that have run one after the other, since this moment (`time.monotonic()`)."""

    began_at: float
    ran: Uncharged = Uncharged()


class Chains:
    """What one thread has continued. longest: seconds."""

    def __init__(self, longest: float = LONGEST) -> None:
        self._longest = longest
        #: By the message (id) that runs now.
        self._chains: dict[int, _Chain] = {}
        self._uncharged: dict[int, Uncharged] = {}

    def may_continue(self, finishes: Sequence[Finish], request: ChannelRequest) -> bool:
        """Whether the channels of all of these may continue, as far as values tell."""
        return len(finishes) <= request.limit and all(
            self._is_young(one) and _limits_channels_only(request.rules(one.claimed.queue, one.claimed.kind))
            for one in finishes
        )

    def _is_young(self, finish: Finish) -> bool:
        return time.monotonic() - self._of(finish).began_at < self._longest

    def _of(self, finish: Finish) -> _Chain:
        return self._chains.get(finish.claimed.id) or _Chain(time.monotonic() - ran_for(finish))

    def continue_with(self, ended: Sequence[Finish], started: Sequence[Claimed]) -> None:
        """These have ended, and the places of them, or of some, have passed to those."""
        before: dict[int, list[_Chain]] = {}
        for one in ended:
            began_at, ran = self._of(one)
            chains = before.setdefault(address_of(one.claimed).id, [])
            chains.append(_Chain(began_at, ran.and_also(Uncharged(1, ran_for(one)))))
            self._chains.pop(one.claimed.id, None)
        for claimed in started:
            self._chains[claimed.id] = before[address_of(claimed).id].pop()
        if len(self._chains) > MOST:  # of messages that ended in another way
            self._forget_old()

    def _forget_old(self) -> None:
        oldest = time.monotonic() - self._longest
        self._chains = {id_: chain for id_, chain in self._chains.items() if chain.began_at > oldest}

    def end(self, limited: Collection[Transition]) -> None:
        """The channels of these take their turn again."""
        for one in limited:
            if chain := self._chains.pop(one.claimed.id, None):
                channel = address_of(one.claimed).id
                self._uncharged[channel] = self._uncharged.get(channel, Uncharged()).and_also(chain.ran)

    def take_uncharged(self) -> dict[int, Uncharged]:
        """What ran in each channel (id) without having been charged; it is told once."""
        taken, self._uncharged = self._uncharged, {}
        return taken


def _limits_channels_only(rules: Rules | None) -> bool:
    """Whether each channel has a concurrency, and nothing else limits what starts, or says in which order."""
    if rules is None or isinstance(rules, ForeignRules) or rules.channel is None:
        return False
    limit, shared = rules.channel, [one for _, one in rules.scopes]
    is_plain = limit.concurrency is not None and limit.rate is None and limit.share is None and not limit.is_strict
    return is_plain and all(one.concurrency is None and one.rate is None for one in shared)
