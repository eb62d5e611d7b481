"""Claims from channels: which of them are in turn, how much room their limits leave, and what is taken.

One claim at a time does this in a database (`Store.lock_channels`); another that comes meanwhile finds nothing and asks
again soon. So all that it counts stands still, and a message starts only if all its limits have room: no place is held
while it waits for another.

- It takes the notices: channels in which something happened are in turn again. So are those that rested until a moment
  that has come. Of those in turn, the one that had the least work is first; those that rest are not read, however many
  they are.
- What runs is counted by the leases of the messages themselves, so that no counter can drift.
- A channel whose messages can't start rests: until the release instant of its rate; or until the end of an attempt, of
  which a notice tells. A worker that died tells nothing, so it is also looked at after the length of a lease.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import TYPE_CHECKING

from delayedq.core.limiting import Limit, after, in_turns
from delayedq.store.channels.notices import store_channels, take_notices
from delayedq.store.channels.places import Places
from delayedq.store.channels.requests import ChannelClaim
from delayedq.store.channels.visits import Room, Visit, bucket_of, room_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from delayedq.models import Channel, ChannelGroup, LimitState
    from delayedq.store.base import Store
    from delayedq.store.channels.requests import ChannelRequest, Rules

#: At most so many channels of each group are visited by one claim, and so many are put in turn when their time came.
MOST_VISITED, MOST_RISING = 512, 1_000
#: Seconds until a claim asks again that found another one under way; and one whose messages wait for the end of others
#: in a limit that several channels share.
TAKEN, BLOCKED = 0.01, 0.25

#: Places that a channel has no message for are dealt again to the others, at most so often.
ROUNDS = 4

UNLIMITED = Limit()


def due_in(alias: str, now: datetime) -> float | None:
    """Seconds until there is something to do in some channel; None: nothing waits. It locks nothing."""
    from delayedq.models import Channel, ChannelNotice

    channels = Channel.objects.using(alias)
    if ChannelNotice.objects.using(alias).exists() or channels.filter(is_ready=True).exists():
        return 0.0
    first = channels.filter(is_ready=False).order_by("ready_at").values_list("ready_at", flat=True).first()
    return None if first is None else max(0.0, (first - now).total_seconds())


class ChannelTurn:
    """One claim, at one moment, in a transaction that has the lock."""

    def __init__(self, store: Store, request: ChannelRequest) -> None:
        self._store = store
        self._alias = store.alias
        self._request = request
        self._now = store.now()
        self._places = Places(store, self._now)
        self._live: dict[str, LimitState] = {}
        self._running: Counter[str] = Counter()
        self._claim = ChannelClaim([])
        #: Seconds after which it is worth to ask again.
        self._again: list[float] = []

    def take(self) -> ChannelClaim:
        from delayedq.models import LimitState

        take_notices(self._store, self._now)
        self._raise_rested()
        self._live = {one.scope: one for one in LimitState.objects.using(self._alias).filter(channel="")}
        served = self._served()
        self._count(served)
        random.shuffle(served)
        for group, rules in served:
            self._serve(group, rules)
        return self._claim._replace(due_in=self._due_in())

    def _raise_rested(self) -> None:
        """Those whose time has come are in turn."""
        from delayedq.models import Channel

        rested = Channel.objects.using(self._alias).filter(is_ready=False, ready_at__lte=self._now)
        ids = list(rested.order_by("ready_at").values_list("id", flat=True)[:MOST_RISING])
        if ids:
            Channel.objects.using(self._alias).filter(id__in=ids).update(is_ready=True)

    def _served(self) -> list[tuple[ChannelGroup, Rules]]:
        from delayedq.models import ChannelGroup, PausedTask

        queues = self._store.paused()
        kinds = set(PausedTask.objects.using(self._alias).values_list("kind", flat=True))
        every = ChannelGroup.objects.using(self._alias)
        groups = [one for one in every if one.queue not in queues and one.kind not in kinds]
        given = [(group, self._request.rules(group.queue, group.kind)) for group in groups]
        return [(group, rules) for group, rules in given if rules is not None]

    def _due_in(self) -> float | None:
        from delayedq.models import Channel

        resting = Channel.objects.using(self._alias).filter(is_ready=False).order_by("ready_at")
        first = resting.values_list("ready_at", flat=True).first()
        if first is not None:
            self._again.append(max(0.0, (first - self._now).total_seconds()))
        return min(self._again, default=None)

    # What the channels of a group share

    def _count(self, served: Sequence[tuple[ChannelGroup, Rules]]) -> None:
        """How many messages run in each scope, if that is limited somewhere."""
        scopes = [(scope, limit) for _, rules in served for scope, limit in rules.scopes]
        if any(self._of(scope, limit).concurrency for scope, limit in scopes):
            by_group = self._places.running_by_group([group.pk for group, _ in served])
            for group, rules in served:
                for scope, _ in rules.scopes:
                    self._running[scope] += by_group[group.pk]

    def _of(self, scope: str, defined: Limit) -> Limit:
        """The limit of a scope as it was set live, or else as defined."""
        state = self._live.get(scope)
        return defined if state is None or state.definition is None else Limit.from_json(json.loads(state.definition))

    def _shared_room(self, rules: Rules) -> Room:
        room = Room(self._request.limit - len(self._claim.claimed))
        for scope, defined in rules.scopes:
            limit, bucket = self._of(scope, defined), bucket_of(self._live.get(scope))
            room = min(room, room_of(limit, self._running[scope], bucket, room.places, self._now), key=_places)
        return room

    def _take_shared(self, rules: Rules, started: int) -> None:
        from delayedq.models import LimitState

        for scope, defined in rules.scopes:
            self._running[scope] += started
            if (rate := self._of(scope, defined).rate) is not None:
                state = self._live.setdefault(scope, LimitState(scope=scope))
                state.tokens, state.tokens_at = after(rate, bucket_of(state), self._now, started)
                state.save(using=self._alias)

    # Its channels

    def _serve(self, group: ChannelGroup, rules: Rules) -> None:
        room = self._shared_room(rules)
        visited = self._in_turn(group, _visited(room.places))
        if not visited:
            return
        if room.places <= 0:
            until = room.released_at
            self._again.append(BLOCKED if until is None else max(0.0, (until - self._now).total_seconds()))
            return
        visits = self._visits(group, rules, visited)
        self._choose(visits, room.places)
        started = self._start(group, visits)
        self._take_shared(rules, started)
        for visit in visits:
            visit.rest(self._now, self._request.lease)
        if (
            len(visits) == _visited(room.places)
            or started >= room.places
            or any(one.channel.is_ready for one in visits)
        ):
            self._again.append(0.0)
        self._write(group, visits)

    def _in_turn(self, group: ChannelGroup, most: int) -> list[Channel]:
        from delayedq.models import Channel

        ready = Channel.objects.using(self._alias).filter(group_id=group.pk, is_ready=True)
        return list(ready.order_by("turn", "id")[:most])

    def _visits(self, group: ChannelGroup, rules: Rules, channels: Sequence[Channel]) -> list[Visit]:
        from delayedq.models import LimitState

        names = [one.name for one in channels if one.name]
        named = LimitState.objects.using(self._alias).filter(scope__in=[group.queue, group.kind], channel__in=names)
        live = {one.channel: Limit.from_json(json.loads(one.definition)) for one in named if one.definition}
        running = self._places.running([one.pk for one in channels])
        defined = rules.channel or UNLIMITED
        return [Visit(one, live.get(one.name, defined), running[one.pk]) for one in channels]

    def _choose(self, visits: Sequence[Visit], places: int) -> None:
        """Deal the places to the channels in turn, as far as their limits have room and messages are due in them."""
        most = {one.channel.pk: one.room(places, self._now).places for one in visits}
        heads: dict[int, list[int]] = {id_: [] for id_ in most}
        for _ in range(ROUNDS):
            dealt = in_turns(places, most)
            asked = {id_: number + 1 for id_, number in dealt.items() if number >= len(heads[id_])}
            heads |= self._places.heads(asked)
            short = [id_ for id_, number in asked.items() if len(heads[id_]) < number]
            most |= {id_: min(most[id_], len(heads[id_])) for id_ in short}
            if not short:
                break
        for visit in visits:
            id_ = visit.channel.pk
            visit.wanted, visit.heads = min(dealt[id_], len(heads[id_])), heads[id_]

    def _start(self, group: ChannelGroup, visits: Sequence[Visit]) -> int:
        """Claim what was chosen; says how many messages that were."""
        home = {id_: visit for visit in visits for id_ in visit.heads[: visit.wanted]}
        claimed = self._store.claim_ids(list(home), self._request) if home else []
        order = {id_: rank for rank, id_ in enumerate(home)}
        self._claim.claimed.extend(sorted(claimed, key=lambda one: order[one.id]))
        taken = {one.id for one in claimed}
        self._store.take_places(taken, self._request.token)
        self._places.put_right(home.keys() - taken)
        started = Counter(home[id_].channel.pk for id_ in taken)
        for visit in visits:
            visit.start(group, started[visit.channel.pk], self._now)
        return len(taken)

    def _write(self, group: ChannelGroup, visits: Sequence[Visit]) -> None:
        """Store the channels. Where nothing is due, one rests until its next message is, or vanishes."""
        from delayedq.models import Channel, ChannelGroup

        quiet = {one.channel.pk: one for one in visits if not one.has_more}
        due = self._places.next_due(quiet)
        gone = []
        for id_, visit in quiet.items():
            ends_at = visit.ends_at(self._now, self._request.lease)
            until = due[id_] or ends_at if id_ in due else visit.is_needed_until(self._now)
            if until is None:
                gone.append(id_)
            else:
                visit.channel.is_ready, visit.channel.ready_at = False, until
        store_channels(self._alias, [one.channel for one in visits if one.channel.pk not in gone])
        Channel.objects.using(self._alias).filter(id__in=gone).delete()
        ChannelGroup.objects.using(self._alias).filter(pk=group.pk).update(turn=group.turn)


def _places(room: Room) -> int:
    return room.places


def _visited(places: int) -> int:
    """How many channels to visit for so many places: some of them may turn out to be empty."""
    return min(max(0, 2 * places) + 16, MOST_VISITED)
