"""Claims from channels: which of them are in turn, how much room their limits leave, and what is taken.

One claim at a time does this in a database (`Channels.lock`); another that comes meanwhile finds nothing and asks
again soon. So all that it counts stands still, and a message starts only if all its limits have room: no place is held
while it waits for another.

- It takes the notices: channels in which something happened are in turn again. So are those that rested until a moment
  that has come. Of those in turn, the one that had the least work is first; those that rest are not read, however many
  they are.
- What runs is counted by the leases of the messages themselves, so that no counter can drift.
- A channel whose messages can't start rests: until the release instant of its rate; or until the end of an attempt, of
  which a notice tells. What a worker ran that died tells nothing: it is also looked at when the first lease ends.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from delayedq.limits.offers import address
from delayedq.limits.places import Attempts, Places
from delayedq.limits.rates import after
from delayedq.limits.requests import ChannelClaim, ChannelQuery, Events, ForeignRules, Start
from delayedq.limits.room import MOST_VISITED, Room, Visit, room_of
from delayedq.limits.rules import Limit, bucket_name, channel_id, channel_of, deal

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from delayedq.limits.channels import Channels
    from delayedq.limits.places_held import HeldAttempt
    from delayedq.limits.rates import TokenBucket
    from delayedq.limits.requests import (
        ChannelRequest,
        ChannelState,
        ChannelView,
        ClaimContext,
        Dealt,
        Rules,
        ScopeState,
        ServedGroup,
    )
    from delayedq.limits.rules import Rate
    from delayedq.store.protocol import Claimed

#: At most so many channels are looked for because a share was set live for them.
MOST_SHARES = 10_000
#: With room for so many, channels of short messages get two places at once: half as many are visited and written.
IN_PAIRS, MOST_IN_PAIRS = 64, 640
#: Seconds until a claim asks again that found another one under way; and one whose messages wait for the end of others
#: in a limit that several channels share.
TAKEN, BLOCKED = 0.01, 0.25
#: While leases that ran out are left to their keepers, full channels are looked at again after so long.
UNRENEWED = timedelta(seconds=1)

#: The largest concurrency of channels for which each message that a channel has room for is read in any case.
MOST_PLAIN = 8
#: Places that a channel has no message for are dealt again to the others, at most so often.
ROUNDS = 4

UNLIMITED = Limit()


class ChannelTurn:
    """One claim, at one moment, in a transaction that has the lock."""

    def __init__(self, channels: Channels, request: ChannelRequest) -> None:
        self._channels = channels
        self._request = request
        self._now = channels.now()
        self._places = Places(channels, self._now, expired=request.expired)
        self._groups: list[ServedGroup] = []
        self._live: dict[str, ScopeState] = {}
        self._shares: Sequence[tuple[str, str]] = ()
        self._buckets: dict[str, TokenBucket] = {}
        self._named: set[int] = set()
        self._running: Counter[str] = Counter()
        self._claimed: list[Claimed] = []
        #: When the database has dealt, and nothing was served after that: what it said.
        self._dealt_last: Dealt | None = None
        #: Seconds after which it is worth to ask again.
        self._again: list[float] = []

    def take(self, told: Events) -> ChannelClaim:
        around = self._channels.hear(self._now, told)
        self._live, self._shares, self._buckets = around.scopes, around.shares, around.buckets
        self._named = around.named
        if around.is_cut:
            self._again.append(0.0)
        served = self._served(around)
        self._count(served)
        random.shuffle(served)
        for group, rules in served:
            if group.is_ready:
                self._serve(group, rules)
        return ChannelClaim(self._claimed, self._due_in())

    def _served(self, around: ClaimContext) -> list[tuple[ServedGroup, Rules]]:
        self._groups = around.groups
        groups = [g for g in around.groups if g.queue not in around.queues_paused and g.kind not in around.kinds_paused]
        given = [(group, self._request.rules(group.queue, group.kind)) for group in groups]
        for group in (group for group, rules in given if rules is None and group.is_ready):
            self._request.tell_unknown(group.queue, group.kind)
        return [(group, rules) for group, rules in given if rules is not None and not isinstance(rules, ForeignRules)]

    def _due_in(self) -> float | None:
        if 0.0 not in self._again:
            first = (self._dealt_last or self._channels.coming()).rests_until
            if first is not None:
                self._again.append(max(0.0, (first - self._now).total_seconds()))
        return min(self._again, default=None)

    # What the channels of a group share

    def _count(self, served: Sequence[tuple[ServedGroup, Rules]]) -> None:
        """How many messages run in each scope that is limited; those of paused and of other workers' queues count."""
        shared = [(scope, limit) for _, rules in served for scope, limit in rules.scopes]
        limited = {scope: most for scope, limit in shared if (most := self._of(scope, limit).concurrency)}
        if not limited:
            return
        members = {group.id: scopes for group in self._groups if (scopes := limited.keys() & self._scopes(group))}
        attempts = {scope: Attempts(set(), set()) for scope in limited}
        for id_, (running, ended) in self._places.attempts_by_group(members).items():
            for scope in members[id_]:
                attempts[scope].running.update(running)
                attempts[scope].ended.update(ended)
        gone: set[HeldAttempt] = set()
        if any(group.is_ready for group, _ in served):
            for scope, (running, ended) in attempts.items():
                gone |= self._make_room(limited[scope], running, ended - gone)
        self._running.update({scope: len((one.running | one.ended) - gone) for scope, one in attempts.items()})

    def _make_room(
        self, most: int, running: AbstractSet[HeldAttempt], ended: AbstractSet[HeldAttempt]
    ) -> AbstractSet[HeldAttempt]:
        """Take as many of the leases that ran out as are in the way of what this claim may start; says which."""
        lacking = len(running | ended) + self._request.limit - most
        return self._places.take_leases(ended, lacking) if lacking > 0 else set()

    def _scopes(self, group: ServedGroup) -> set[str]:
        """The limits that this group shares with others, as far as this process knows its task."""
        rules = self._request.rules(group.queue, group.kind)
        return {group.queue, group.kind, *(scope for scope, _ in (rules.scopes if rules else ()))}

    def _of(self, scope: str, defined: Limit) -> Limit:
        """The limit of a scope as it was set live, or else as defined."""
        state = self._live.get(scope)
        return defined if state is None or state.definition is None else limit_in(state.definition, defined)

    def _shared_room(self, rules: Rules) -> Room:
        room = Room(self._request.limit - len(self._claimed))
        for scope, defined in rules.scopes:
            limit, bucket = self._of(scope, defined), self._buckets.get(bucket_name(scope))
            room = min(room, room_of(limit, self._running[scope], bucket, room.places, self._now), key=_places)
        return room

    def _take_shared(self, rules: Rules, claimed: Sequence[Claimed]) -> None:
        for scope, defined in rules.scopes:
            self._running[scope] += len(claimed)
            if (rate := self._of(scope, defined).rate) is not None:
                name, number = bucket_name(scope), sum(counts(rate, one) for one in claimed)
                bucket = self._buckets[name] = after(rate, self._buckets.get(name), self._now, number)
                self._channels.keep_tokens(scope, bucket)

    # Its channels

    def _serve(self, group: ServedGroup, rules: Rules) -> None:
        self._dealt_last = None
        room = self._shared_room(rules)
        asked = self._asked(group, rules, room.places)
        if is_plain(asked, rules) and group.id not in self._named and (dealt := self._dealt(asked, rules)):
            self._dealt_last = dealt
            self._keep(asked.group, rules, dealt)
            return
        looks = self._look(asked)
        if not looks:
            return
        if room.places <= 0:
            until = room.released_at
            self._again.append(BLOCKED if until is None else max(0.0, (until - self._now).total_seconds()))
            return
        visits = [Visit(one, _limit(one, rules), in_pairs=asked.in_pairs) for one in looks]
        self._choose(visits, room.places)
        has_more = sum(one.at_once for one in visits) >= asked.most
        if has_more and not any(one.is_full for one in visits):
            for one in visits:
                one.stays = True
        claimed, is_ready = self._start(group, visits)
        self._take_shared(rules, claimed)
        if has_more or len(claimed) >= room.places or is_ready:
            self._again.append(0.0)

    def _asked(self, group: ServedGroup, rules: Rules, places: int) -> ChannelQuery:
        """Which channels to visit: for a share, also those that are far behind in turn."""
        is_strict = rules.is_strict
        if places <= 0:
            return ChannelQuery(group, 1, places, is_strict, expired=self._request.expired)
        limit = rules.channel or UNLIMITED
        names = {name for scope, name in self._shares if scope in {group.queue, group.kind}}
        named = random.sample([*names], MOST_SHARES) if len(names) > MOST_SHARES else names
        others = [channel_id(group.queue, group.kind, name) for name in named]
        in_pairs = places >= IN_PAIRS and limit.concurrency != 1 and limit.share is None and not others
        most = MOST_VISITED if limit.share is not None else _visited(places, in_pairs=in_pairs)
        return ChannelQuery(group, most, places, is_strict, others, self._request.expired, in_pairs)

    def _look(self, asked: ChannelQuery) -> list[ChannelView]:
        looks = self._channels.look(asked, self._now)
        if ended := [id_ for one in looks for id_ in one.ended]:
            self._places.give_away(ended, is_strict=asked.is_strict)
            looks = [one.with_ended(self._now) for one in self._channels.look(asked, self._now)]
        if asked.expired:
            return looks
        later = self._now + UNRENEWED
        return [one._replace(running=one.running.not_before(later)) for one in looks]

    def _dealt(self, asked: ChannelQuery, rules: Rules) -> Dealt | None:
        """What the database deals by itself; None: it does not, or can't at this moment."""
        limit = rules.channel or UNLIMITED
        dealt = self._channels.deal(asked, limit, self._request)
        if dealt and dealt.ended:
            self._places.give_away(dealt.ended)
            dealt = self._channels.deal(asked, limit, self._request)
        return None if dealt is None or dealt.ended else dealt

    def _keep(self, group: ServedGroup, rules: Rules, dealt: Dealt) -> None:
        """What was dealt by the database. The channels of what can't be started there are looked at again at once."""
        homes = {id_: (group.queue, group.kind, name) for id_, name in dealt.chosen.items()}
        claimed = self._without_moved(dealt.claimed, homes)
        started = {one.id for one in claimed}
        moved = {one.id for one in dealt.claimed} - started
        gone = self._places.put_right(dealt.chosen.keys() - started)
        for where in {address(*homes[id_]) for id_ in gone}:
            self._places.sweep(where.id)
        if again := {address(*homes[id_]) for id_ in gone | moved}:
            self._channels.tell(Events([where.notice(self._now) for where in again]))
        self._take_shared(rules, claimed)
        self._claimed += claimed
        if dealt.is_more or again:
            self._again.append(0.0)

    def _choose(self, visits: Sequence[Visit], places: int) -> None:
        """Deal the places to the channels in turn, as far as their limits have room and messages are due in them."""
        by_id = {one.look.channel.id: one for one in visits}
        waiting = {id_: one.waiting(places, self._now) for id_, one in by_id.items()}
        known = {id_: one.look.asked for id_, one in by_id.items()}
        for _ in range(ROUNDS):
            for id_, one in by_id.items():
                if len(one.heads) < known[id_]:
                    waiting[id_] = waiting[id_]._replace(most=min(waiting[id_].most, len(one.heads)))
            dealt = deal(places, waiting)
            more = {id_: number + 1 for id_, number in dealt.items() if len(by_id[id_].heads) == known[id_] <= number}
            if not more:
                break
            known |= more
            for id_, heads in self._channels.heads(more, self._now).items():
                by_id[id_].heads = heads
        for id_, one in by_id.items():
            one.wanted = min(dealt[id_], len(one.heads))

    def _start(self, group: ServedGroup, visits: Sequence[Visit]) -> tuple[list[Claimed], bool]:
        """Claim what was chosen; says what that was, and whether a channel stays in turn."""
        home = {id_: visit for visit in visits for id_ in visit.heads[: visit.wanted]}
        turn = max([group.turn, *(one.look.channel.turn for one in visits if one.wanted)])
        started = Counter({one.look.channel.id: one.wanted for one in visits})
        start = self._left(group._replace(turn=turn), visits, started, started)
        claimed = self._channels.start(start._replace(ids=list(home), channels=_changed(start, visits)), self._request)
        claimed = self._without_moved(claimed, {id_: (group.queue, group.kind, one.name) for id_, one in home.items()})
        missed = home.keys() - {one.id for one in claimed}
        free = [one for one in claimed if not counts(home[one.id].limit.rate, one)]
        self._pass_over(self._places.put_right(missed), home)
        if missed or free:
            started = Counter(home[one.id].look.channel.id for one in claimed)
            counted = started - Counter(home[one.id].look.channel.id for one in free)
            start = self._left(group._replace(turn=turn), visits, started, counted)
            self._channels.keep(start)
        order = {id_: rank for rank, id_ in enumerate(home)}
        self._claimed += sorted(claimed, key=lambda one: order[one.id])
        return claimed, any(one.is_ready for one in start.channels)

    def _without_moved(self, claimed: list[Claimed], homes: Mapping[int, tuple[str, str, str]]) -> list[Claimed]:
        """Release what was replaced into another channel after its channel was looked at: nothing was counted there."""
        moved = [one for one in claimed if (one.queue, one.kind, channel_of(one.metadata) or "") != homes[one.id]]
        if not moved:
            return claimed
        self._channels.store.release([(one.id, one.token) for one in moved])
        return [one for one in claimed if one not in moved]

    def _pass_over(self, gone: Collection[int], home: Mapping[int, Visit]) -> None:
        """Their messages were cancelled: no one else has them, so those behind them may start at once."""
        for id_ in gone:
            home[id_].heads.remove(id_)
            home[id_].wanted -= 1
        for channel in {home[id_].look.channel.id for id_ in gone}:
            self._places.sweep(channel)

    def _left(self, group: ServedGroup, visits: Sequence[Visit], started: Counter[int], counted: Counter[int]) -> Start:
        """The channels when so many of their messages have started, of which so many count for their rates."""
        lease, now = self._request.lease, self._now
        numbers = {one.look.channel.id: (one, started[one.look.channel.id]) for one in visits}
        states = {id_: one.after(number, counted[id_], now, lease) for id_, (one, number) in numbers.items()}
        gone = [id_ for id_, state in states.items() if state is None]
        return Start([], [state for state in states.values() if state is not None], gone, group)


def is_plain(asked: ChannelQuery, rules: Rules) -> bool:
    """Whether its channels have only a concurrency, for which a look at a few messages of each is enough.

    What is set live for single channels, and what carries an expired lease during an outage, is none of it.
    """
    limit = rules.channel
    if limit is None or limit.concurrency is None or limit.concurrency > MOST_PLAIN or isinstance(limit.weight, dict):
        return False
    is_other = limit.rate is not None or limit.share is not None or limit.is_strict or asked.others
    return asked.room > 0 and asked.expired and not is_other


def _changed(start: Start, visits: Sequence[Visit]) -> list[ChannelState]:
    """Those that are not left as they were."""
    before = {one.look.channel.id: one.look.channel for one in visits}
    return [state for state in start.channels if state is not before[state.id]]


@lru_cache(maxsize=1_000)
def limit_in(definition: str, defined: Limit) -> Limit:
    """A limit with what was set live, as it is stored: a line for what a queue says, then one for what a task says."""
    stored: dict[str, Any] = {}
    for line in definition.split("\n"):
        stored |= json.loads(line)
    return defined.overridden(stored)


def _limit(look: ChannelView, rules: Rules) -> Limit:
    defined = rules.channel or UNLIMITED
    return defined if look.definition is None else limit_in(look.definition, defined)


def counts(rate: Rate | None, claimed: Claimed) -> bool:
    """Whether the start of this attempt counts for the rate."""
    return rate is None or rate.retries or claimed.attempt <= 1


def _places(room: Room) -> int:
    return room.places


def _visited(places: int, *, in_pairs: bool) -> int:
    """For how many places to visit channels, to fill so many: some of them may turn out to be empty."""
    return min(places + places // 16 + 16, MOST_IN_PAIRS) if in_pairs else min(max(0, 2 * places) + 16, MOST_VISITED)
