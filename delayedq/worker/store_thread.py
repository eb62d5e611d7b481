"""The thread that makes the loop's round trips to the database.

During the round trip of one batch the loop hands out the batch before and collects the results for the next: the
database and this process work at the same time.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING

from django.db import DataError, Error, IntegrityError, connections

from delayedq.exceptions import InvalidMessage
from delayedq.limits.channels import Channels
from delayedq.limits.continuing import Chains
from delayedq.limits.offers import with_channels
from delayedq.limits.requests import ChannelRequest
from delayedq.limits.setting import rules_for
from delayedq.store.base import with_follow_ups
from delayedq.store.claim_tokens import new_token
from delayedq.store.protocol import ClaimRequest, Settled, SettledAndClaimed
from delayedq.worker.reporting import write_last
from delayedq.worker.sessions import keep_no_query_log
from delayedq.worker.shared_leases import lease_clock
from delayedq.worker.transitions import decision, transition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from contextlib import AbstractContextManager
    from datetime import timedelta

    from delayedq.core.lifecycle import Decision
    from delayedq.store.base import Store
    from delayedq.store.protocol import Lane, Transition
    from delayedq.worker.transitions import AttemptResult

logger = logging.getLogger("delayedq")

#: What settles one message can't be stored, and that of others can.
REFUSALS = (DataError, IntegrityError, InvalidMessage)
NOTHING = SettledAndClaimed([], Settled())


@dataclass(slots=True, eq=False)
class RoundTrip:
    """Settles `results`, and claims up to `room` messages from the planned lanes."""

    results: list[AttemptResult]
    planned: Sequence[Lane]
    room: int
    #: Does it claim from channels, and not from lanes?
    channels: bool = False
    #: May the channels of what it ends continue, since nothing else is due in channels?
    may_continue: bool = False
    #: May it claim messages whose lease has run out?
    expired: bool = True
    #: That of its claim.
    token: int = field(default_factory=new_token)
    #: When the loop sent it, it began and it ended: moments of `time.monotonic()`.
    asked_at: float = field(default_factory=time.monotonic)
    began_at: float = 0.0
    ended_at: float = 0.0
    #: When its claim was sent, at the earliest: a moment of `lease_clock`.
    claimed_at: float = 0.0
    #: Set when its statement is about to be sent, and when all is done.
    sending: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    # Filled in by the store thread.
    decisions: list[Decision] = field(default_factory=list)
    #: The store's answer. After an error, messages that may be settled or not are `busy`.
    answer: SettledAndClaimed = NOTHING
    #: Ids of messages whose end the database refuses: they are left to their leases.
    unstorable: set[int] = field(default_factory=set)
    #: Has it offered messages that follow others?
    followed: bool = False
    #: The queues and kinds whose channels have something to start, and whose tasks this process does not know.
    unknown: set[tuple[str, str]] = field(default_factory=set)
    #: In how many seconds to claim from channels; None: nobody knows of anything to claim. Or AS_BEFORE.
    channels_due_in: float | None = None
    error: BaseException | None = None
    #: Has it failed since there was no connection?
    lacks_connection: bool = False

    @property
    def claims(self) -> bool:
        """Whether it claims something."""
        return bool(self.planned) or self.channels

    def brings_work(self, concluded: Iterable[tuple[AttemptResult, Decision]]) -> bool:
        """Whether something that it settled is due again, now or soon, or has made messages that follow it."""
        settled = self.answer.settled
        return bool(settled.superseded or settled.offered or self.followed) or any(
            decided.outcome is None for _, decided in concluded
        )

    def concluded(self) -> list[tuple[AttemptResult, Decision]]:
        """The results that need no other round trip, with what was decided; once it is done."""
        busy, pairs = self.answer.settled.busy, zip(self.results, self.decisions, strict=False)
        return [pair for pair in pairs if pair[0].attempt.id not in busy] if busy else list(pairs)


class StoreThread(threading.Thread):
    """Makes one round trip after the other, on a connection of its own; `wake` is called after each.

    `remember_claim` is called with the token of a claim before its statement is sent.
    """

    def __init__(
        self,
        store: Store,
        lease: timedelta,
        worker: str,
        wake: Callable[[], None],
        remember_claim: Callable[[int], None] = lambda _: None,
        serves: Callable[[str], bool] = lambda _: True,
        wait: AbstractContextManager[None] | None = None,
    ) -> None:
        super().__init__(name="delayedq-store", daemon=True)
        self._store = store
        self._wait = wait or nullcontext()
        self._lease = lease
        self._remember_claim = remember_claim
        self._rules = rules_for(serves)
        self._chains = Chains()
        #: Messages (ids) that may have been settled by a round trip whose answer never came.
        self._unsure: set[int] = set()
        self._worker = worker
        self._wake = wake
        self._round_trips: SimpleQueue[RoundTrip | None] = SimpleQueue()

    def send(self, round_trip: RoundTrip) -> None:
        """Make this round trip as soon as the one before is done."""
        self._round_trips.put(round_trip)

    def stop(self) -> None:
        """End the thread, and wait for it."""
        self._round_trips.put(None)
        self.join()

    def run(self) -> None:
        keep_no_query_log(self._store.alias)
        while (round_trip := self._round_trips.get()) is not None:
            try:
                with self._wait:
                    self._make(round_trip)
            except BaseException as error:  # noqa: BLE001  the loop raises it, or tries again
                self._fail(round_trip, error, [one.attempt.id for one in round_trip.results])
            round_trip.ended_at = time.monotonic()
            round_trip.done.set()
            self._wake()
        connections[self._store.alias].close()

    def _fail(self, round_trip: RoundTrip, error: BaseException, unsure: Collection[int]) -> None:
        round_trip.error = error
        self._unsure.update(unsure)
        settled = round_trip.answer.settled
        round_trip.answer = SettledAndClaimed([], settled._replace(busy=settled.busy.union(unsure)))
        with suppress(Exception):
            round_trip.lacks_connection = connections[self._store.alias].connection is None
            connections[self._store.alias].close()

    def _make(self, round_trip: RoundTrip) -> None:
        round_trip.began_at, round_trip.claimed_at = time.monotonic(), lease_clock()
        round_trip.decisions = [decision(result) for result in round_trip.results]
        transitions = [
            transition(result, decided, round_trip.began_at)
            for result, decided in zip(round_trip.results, round_trip.decisions, strict=True)
        ]
        round_trip.followed = bool(with_follow_ups(transitions))
        if round_trip.claims:
            self._remember_claim(round_trip.token)
        round_trip.sending.set()
        write_last(result.attempt for result in round_trip.results)
        try:
            self._settle_and_claim(round_trip, transitions)
        except REFUSALS:
            if not transitions:
                raise
            round_trip.planned, round_trip.channels_due_in = (), 0.0 if round_trip.channels else None
            self._settle_singly(round_trip, transitions)
        if transitions:
            self._store.tell_ends()
        settled = round_trip.answer.settled
        round_trip.answer = round_trip.answer._replace(settled=settled._replace(lost=self._really_lost(settled.lost)))
        if round_trip.error is None:
            self._unsure.clear()

    def _settle_and_claim(self, round_trip: RoundTrip, transitions: Sequence[Transition]) -> None:
        where = (round_trip.room, self._lease, self._worker, round_trip.token)
        if round_trip.channels:
            unknown = round_trip.unknown
            request = ChannelRequest(
                self._rules, *where, round_trip.expired, lambda queue, kind: unknown.add((queue, kind)),
                self._chains, round_trip.may_continue,
            )  # fmt: skip
            settled, claim = Channels.of(self._store).settle_and_claim(transitions, self._worker, request)
            round_trip.answer, round_trip.channels_due_in = SettledAndClaimed(claim.claimed, settled), claim.due_in
        else:
            round_trip.answer = self._store.settle_and_claim(
                transitions, ClaimRequest(round_trip.planned, *where, expired=round_trip.expired)
            )
            if with_channels(transitions):
                round_trip.channels_due_in = 0.0  # there is room again

    def _really_lost(self, lost: frozenset[int]) -> frozenset[int]:
        """Without the messages that an earlier round trip has settled, although its answer never came."""
        unsure = lost & self._unsure
        try:
            return lost - self._store.in_history(unsure) if unsure else lost
        except Error:
            return lost - unsure

    def _settle_singly(self, round_trip: RoundTrip, transitions: Sequence[Transition]) -> None:
        """The database refuses one of these: settle each in a statement of its own."""
        for position, one in enumerate(transitions):
            try:
                answer = self._store.settle([one], self._worker)
            except REFUSALS:
                logger.exception("The end of message %s can't be stored.", one.claimed.id)
                round_trip.unstorable.add(one.claimed.id)
            except Error as error:
                self._fail(round_trip, error, [later.claimed.id for later in transitions[position:]])
                return
            else:
                round_trip.answer = SettledAndClaimed([], round_trip.answer.settled.with_(answer))
