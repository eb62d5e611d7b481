"""The verbs that queues and workers use, each declared here once; what all databases do alike is done here too.

`protocol` says what a lease is, and has the values that go in and out.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, ClassVar, Self

from django.db import transaction

from delayedq.store.bare_queues import BareQueues
from delayedq.store.channels.offers import told_of, with_channels
from delayedq.store.channels.verbs import Channels
from delayedq.store.claims import BUSY_PAUSE
from delayedq.store.database import retry_on_deadlock
from delayedq.store.ends import Ends
from delayedq.store.expiring import note_results, with_retention
from delayedq.store.flows.ending import end_members, in_flows
from delayedq.store.offering import Offering
from delayedq.store.offers import check_key, may_be_due_soon
from delayedq.store.protocol import (
    ClaimRequest,
    Discard,
    Finish,
    GiveBack,
    Settled,
    SettledAndClaimed,
)
from delayedq.store.renewals import Renewals
from delayedq.store.steps import forget_replaced, replaced_failures

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from datetime import datetime, timedelta

    from delayedq.store.channels.requests import ChannelClaim, ChannelRequest, Told
    from delayedq.store.database import Database
    from delayedq.store.listener import Listener
    from delayedq.store.protocol import Claimed, Flaw, Lane, LaneHead, Transition


class Store(Offering, Renewals, BareQueues, Channels, Ends):
    """A database that holds the queue. One object per database alias; threads share it, connections are theirs.

    Every verb may raise django.db.Error.
    """

    can_notify: ClassVar[bool] = False

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.database = database
        self.alias = database.alias

    def at(self, moment: datetime | None) -> Self:
        """The same store, which judges what is due and leased at this moment; None: by the database's clock."""
        if moment is None and self.database.moment is None:
            return self
        bound = copy(self)
        bound.database = self.database.at(moment)
        return bound

    def now(self) -> datetime:
        """The moment at which this store judges what is due and leased."""
        return self.database.now()

    def flaws(self, *, connect: bool) -> list[Flaw]:  # noqa: ARG002
        """What is wrong with the settings of this database; `connect`: also what only the database knows."""
        return []

    # Wake-ups

    def notify_after_commit(self, times: Collection[datetime | None] = (None,)) -> None:
        """Wake idle workers after commit, if one of these times (None: now) may come before their next scan."""
        if self.can_notify and may_be_due_soon(times):
            with suppress(transaction.TransactionManagementError):  # autocommit is off: the next scan finds it
                transaction.on_commit(self.notify, using=self.alias, robust=True)

    def tokens(self, ids: Collection[int]) -> dict[int, int | None]:
        """The tokens of the leases of these messages, as far as they live."""
        from delayedq.models import Message  # stores are imported before the models are loaded

        return dict(Message.objects.using(self.alias).filter(id__in=ids).values_list("id", "lease_token"))

    def notify(self) -> None:
        """Wake idle workers, at once or not at all; see `notify_after_commit`."""

    @abstractmethod
    def listener(self) -> Listener:
        """A new one, with a connection of its own: the caller closes it."""

    # Reading

    @abstractmethod
    def scan(self, queues: Collection[str] | None = None) -> list[LaneHead]:
        """The first claimable or future message of each lane (of these queues; None: all), unless its queue is paused.

        It reads all that is dead or leased in front of that, so it may take long.
        """

    @abstractmethod
    def peek(self, lanes: Sequence[Lane]) -> list[LaneHead]:
        """The same for known lanes, from their watermarks on: always short."""

    @abstractmethod
    def lanes(self) -> list[Lane]:
        """All that hold a message, whatever its state, also of paused queues."""

    def paused(self) -> set[str]:
        """The queues that are paused: what scans and peeks pass over, and what no claim takes from."""
        from delayedq.models import PausedQueue  # stores are imported before the models are loaded

        return set(PausedQueue.objects.using(self.alias).values_list("queue", flat=True))

    # Claiming

    @retry_on_deadlock
    def claim(
        self,
        lanes: Sequence[Lane],
        limit: int,
        lease: timedelta,
        worker: str,
        token: int | None = None,
        *,
        expired: bool = True,
    ) -> list[Claimed]:
        """Lease up to `limit` due messages, lane by lane in the given order, in each by due time and id.
        None of a paused queue. `token`: that of the claim, if it is chosen already. `expired` False: none that was
        claimed before.
        """
        return self._claim(ClaimRequest(lanes, limit, lease, worker, token, expired))

    @abstractmethod
    def _claim(self, request: ClaimRequest) -> list[Claimed]: ...

    @abstractmethod
    def claim_unchanged(self, id_: int, generation: int, lease: timedelta, worker: str) -> Claimed | None:
        """Lease this one message, due or not; None if it is leased or locked, or it ended or was replaced since."""

    # Settling

    @retry_on_deadlock
    def settle_and_claim(
        self,
        transitions: Sequence[Transition],
        lanes: Sequence[Lane],
        limit: int,
        lease: timedelta,
        worker: str,
        token: int | None = None,
        *,
        expired: bool = True,
    ) -> SettledAndClaimed:
        """`settle`, then `claim`, in one transaction: a locked row does not stop the claim; an error undoes both.

        On PostgreSQL it is one statement if each transition is a Finish; an error after it undoes nothing.
        """
        return self._settle_and_claim(transitions, ClaimRequest(lanes, limit, lease, worker, token, expired))

    def _settle_and_claim(self, transitions: Sequence[Transition], request: ClaimRequest) -> SettledAndClaimed:
        if not transitions:
            return SettledAndClaimed(self._claim(request), Settled())
        with self.database.atomic():
            settled = self.settle(transitions, request.worker)
            return SettledAndClaimed(self._claim(request), settled)

    @retry_on_deadlock
    def settle(self, transitions: Sequence[Transition], worker: str) -> Settled:
        """Carry out the transitions in one transaction, each fenced by its lease. Waits for no lock of a row."""
        if not transitions:
            return Settled()
        with self.database.atomic(savepoint=False):
            settled = self._settle(transitions, worker)
            if limited := with_channels(transitions):
                self.tell(told_of(limited, settled))
            return settled

    @retry_on_deadlock
    def settle_and_claim_channels(
        self, transitions: Sequence[Transition], worker: str, request: ChannelRequest
    ) -> tuple[Settled, ChannelClaim]:
        """`settle`, then `claim_channels`, in one transaction: it hears at once what the settlement tells."""
        if not (limited := with_channels(transitions)):
            return self.settle(transitions, worker), self.claim_channels(
                *request[:5], expired=request.expired, tell_unknown=request.tell_unknown
            )
        with self.database.atomic():
            settled, moment, told = self._settle_and_lock(transitions, limited, request)
            return settled, self._claim_channels(request, moment, told)

    def _settle_and_lock(
        self, transitions: Sequence[Transition], limited: Sequence[Transition], request: ChannelRequest
    ) -> tuple[Settled, datetime | None, Told]:
        """`_settle`, then `lock_channels`; and what is to be said of those with a channel (`limited`)."""
        settled = self._settle(transitions, request.worker)
        return settled, self.lock_channels(), told_of(limited, settled)

    def _settle(self, transitions: Sequence[Transition], worker: str) -> Settled:
        ended: set[int] = set()
        if finishes := _of(Finish, transitions):
            ended |= self._finish(finishes)
        if returns := _of(GiveBack, transitions):
            ended |= self._give_back(returns)
        if discards := _of(Discard, transitions):
            ended |= self._discard([discard.claimed for discard in discards])
        return self._settled(transitions, ended, worker)

    def _settled(self, transitions: Sequence[Transition], ended: set[int], worker: str) -> Settled:
        """What follows when these (`ended`) were carried out."""
        settled = self._settle_rest([t for t in transitions if t.claimed.id not in ended], worker)
        if followed := with_follow_ups(transitions):
            self._offer_follow_ups(followed, settled)
        if failed := replaced_failures(transitions):
            forget_replaced(self, {one.claimed.id: one.claimed.generation for one in failed if one.claimed.id in ended})
        if expiring := with_retention(transitions):
            note_results(self, expiring, settled)
        if moved := [one.claimed.id for one in with_channels(transitions) if one.claimed.id in settled.superseded]:
            self.tell_freed(moved)
        if members := in_flows(transitions):
            settled = settled._replace(offered=end_members(self, members, settled))
        return settled

    def _offer_follow_ups(self, followed: Sequence[Finish | GiveBack], answer: Settled) -> None:
        """Within the transaction that settles them: what follows those that were carried out."""
        untouched = answer.lost | answer.busy | answer.superseded
        offers = [offer for one in followed if one.claimed.id not in untouched for offer in one.follow_ups]
        if offers:
            self.offer_many(offers)

    def settle_waiting(self, transitions: Sequence[Transition], worker: str, may_wait: Callable[[], bool]) -> Settled:
        """`settle`; what another transaction has locked is tried again every BUSY_PAUSE seconds while `may_wait()`.

        What is locked even then is in the answer's `busy`.
        """
        settled = self.settle(transitions, worker)
        while settled.busy and may_wait():
            time.sleep(BUSY_PAUSE)
            again = self.settle([one for one in transitions if one.claimed.id in settled.busy], worker)
            settled = settled._replace(busy=frozenset()).with_(again)
        return settled

    def _settle_rest(self, rest: Sequence[Transition], worker: str) -> Settled:
        """What carried another generation or token: give the replaced ones back, report the others as lost."""
        if not rest:
            return Settled()
        with self.database.atomic(savepoint=False):
            rearmed = self._rearm([transition.claimed for transition in rest])
            replaced = [t for t in rest if t.claimed.id in rearmed and not isinstance(t, Discard)]
            if ran := [t for t in replaced if t.started is not None]:
                self._record_superseded(ran, worker)
            others = [t.claimed for t in rest if t.claimed.id not in rearmed]
            busy = self._still_held(others) if others else set()
        return Settled(frozenset(c.id for c in others) - busy, frozenset(rearmed), frozenset(busy))

    @abstractmethod
    def _finish(self, finishes: Sequence[Finish]) -> set[int]:
        """Delete and record; returns the ids that still carried their token and generation."""

    @abstractmethod
    def _give_back(self, returns: Sequence[GiveBack]) -> set[int]:
        """Clear the leases; returns the ids that still carried their token and generation."""

    @abstractmethod
    def _discard(self, claims: Sequence[Claimed]) -> set[int]:
        """Delete without a record; returns the ids that still carried their token and generation."""

    @abstractmethod
    def _rearm(self, claims: Sequence[Claimed]) -> set[int]:
        """Clear the leases of messages that were replaced while they ran; returns their ids."""

    def _still_held(self, claims: Sequence[Claimed]) -> set[int]:  # noqa: ARG002
        """Which of these, though they could not be changed, carry their token: another transaction has locked them."""
        return set()

    @abstractmethod
    def _record_superseded(self, ran: Sequence[Finish | GiveBack], worker: str) -> None:
        """Write history for attempts whose message was replaced meanwhile, each under an id of its own."""

    # Taking back

    @retry_on_deadlock
    def unschedule(self, kind: str, key: str) -> bool:
        """End the live message of this key as cancelled, also while it runs; False if there is none.

        Raises InvalidKey.
        """
        check_key(key)
        return self._unschedule(kind, key)

    @abstractmethod
    def _unschedule(self, kind: str, key: str) -> bool: ...

    @retry_on_deadlock
    def drop(self, queue: str, key: str | None = None, *, recorded: bool = True) -> int:
        """End the live messages of a bare queue (of one key, or None: all) as cancelled, also while they run.

        The kind of its messages is the name of the queue. Returns how many there were; `recorded` False leaves no
        history. Raises InvalidKey.
        """
        if key is not None:
            check_key(key)
        if not recorded:
            return self._erase(queue, key)
        return self._drop_all(queue) if key is None else int(self._unschedule(queue, key))

    @abstractmethod
    def _erase(self, queue: str, key: str | None) -> int:
        """Delete the live messages of the queue, or that of a key, without a record; returns how many there were."""

    @abstractmethod
    def _drop_all(self, queue: str) -> int:
        """End the live messages of the queue as cancelled; returns how many there were."""

    @abstractmethod
    def withdraw(self, ids: Iterable[int], errors: str | None = None) -> set[int]:
        """End as cancelled those of these messages that no attempt has begun; returns their ids.

        What runs, waits for another attempt, or is locked by another transaction stays as it is. `errors` goes into
        their history.
        """

    # History

    @abstractmethod
    def in_history(self, ids: Iterable[int]) -> set[int]:
        """Which of these ids have a history row."""

    @abstractmethod
    def prune(self, older_than: timedelta, limit: int) -> int:
        """Delete up to `limit` history rows that ended longer ago; returns how many.

        Dead letters stay, and so does what apps have registered as needed (`store.retention`).
        """


def with_follow_ups(transitions: Sequence[Transition]) -> list[Finish | GiveBack]:
    """Those that offer messages."""
    return [one for one in transitions if not isinstance(one, Discard) and one.follow_ups]


def _of[T: Transition](kind: type[T], transitions: Sequence[Transition]) -> list[T]:
    return [transition for transition in transitions if isinstance(transition, kind)]
