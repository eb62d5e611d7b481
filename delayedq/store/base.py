"""The verbs that queues and workers use, each declared here once; what all databases do alike is done here too.

`protocol` says what a lease is, and has the values that go in and out.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from contextlib import suppress
from copy import copy
from functools import partial
from itertools import batched, groupby
from typing import TYPE_CHECKING, ClassVar, Self

from django.db import transaction

from delayedq.exceptions import CannotPartition
from delayedq.store.bare_queues import BareQueues
from delayedq.store.claim_tokens import BUSY_PAUSE
from delayedq.store.database import retry_on_deadlock
from delayedq.store.feature import FEATURES, concerned
from delayedq.store.offers import check, check_key, check_time, in_lock_order, may_be_due_soon, waves
from delayedq.store.protocol import (
    ClaimRequest,
    Discard,
    Finish,
    GiveBack,
    Offered,
    OfferOutcome,
    OnConflict,
    Released,
    Renewed,
    Settled,
    SettledAndClaimed,
    with_watermarks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from datetime import datetime, timedelta

    from django.db.models import QuerySet

    from delayedq.models import Message
    from delayedq.store.database import Database, Listener
    from delayedq.store.feature import TakenMessage
    from delayedq.store.protocol import Claimed, Flaw, Lane, LaneHead, Offer, PartitionChange, Transition

type LeaseId = tuple[int, int]

#: At most this many messages go into one statement; `enqueue_bulk` holds this many in memory.
CHUNK = 10_000

#: So many keys are looked up by one statement: SQLite's may have no more than 999 parameters where it is old.
LOOKED_UP = 500


def chunks(offers: Sequence[Offer]) -> Iterator[tuple[int, ...]]:
    """The positions of offers that go into one statement each, in lock order."""
    positions = range(len(offers))
    return batched(positions if len(offers) <= CHUNK else in_lock_order(offers, positions), CHUNK)


# Wake-ups for those who wait for the end of messages, and for workers whose message has ended.
#
# Nobody pays for them while nobody waits: who waits says so, and workers that hear it tell of ends for a while.
# Whatever is not told is found by asking the table: this saves time, and nothing depends on it.


#: Workers tell of ends for this many seconds after they heard that somebody waits; who waits says so twice as often.
TOLD_FOR = 10.0

ASK_EVERY = TOLD_FOR / 2


class EndNotices:
    """What a database without notifications does: nothing. Who waits there polls."""

    def end_listener(self) -> Listener | None:
        """A new listener that hears of ends; the caller closes it. None: the database tells of none."""
        return None

    def ask_for_ends(self) -> None:
        """Say that somebody waits. Raises django.db.Error."""

    def somebody_waits(self) -> None:
        """A worker heard that somebody waits."""

    def tell_stopped_after_commit(self) -> None:
        """Have workers look which of their running messages have ended, after the commit of the caller."""

    def tell_ends(self) -> None:
        """A worker has ended messages: tell who waits, if somebody does. Raises django.db.Error."""


class Store(BareQueues, EndNotices):
    """A database that holds the queue. One object per database alias; threads share it, connections are theirs.

    Every verb may raise django.db.Error.
    """

    can_notify: ClassVar[bool] = False

    def __init__(self, database: Database) -> None:
        self.database = database
        self.alias = database.alias
        #: From when on there may be renewals beside locked rows to delete, by `time.monotonic()`; infinity: there are
        #: none. In a list, which all moments of this store share.
        self._sweep_at = [float("inf")]

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

    # Offers: one message, or many in one transaction, whose keys every batch locks in the same order.

    @retry_on_deadlock
    def offer(self, offer: Offer, on_conflict: OnConflict = OnConflict.REPLACE) -> Offered:
        """Store one message in one statement, within the caller's transaction if there is one.

        One of which a feature takes part takes more, in one transaction.

        Raises InvalidMessage for what can't be stored.
        """
        if not offer.is_plain:
            return self._offer_all([offer], on_conflict)[0]
        check(offer)
        offered = self._named(offer, self._offer_one(offer, on_conflict))
        self.notify_after_commit([offer.scheduled_at])
        return offered

    def offer_many(
        self, offers: Iterable[Offer], on_conflict: OnConflict = OnConflict.REPLACE, *, checked: bool = False
    ) -> list[Offered]:
        """Store all or none; the outcomes are in the order of the offers. A key may occur more than once.

        checked: they were checked when they were made, and are stored whatever the settings say now: an end of a
        message must not fail because of what follows it. Raises InvalidMessage for what can't be stored.
        """
        return self._offer_all([*offers], on_conflict, checked=checked)

    def offer_counted(self, offers: Sequence[Offer]) -> int:
        """`offer_many` for who only asks how many were stored."""
        return sum(one.outcome is not OfferOutcome.DROPPED for one in self._offer_all(offers, OnConflict.REPLACE))

    @retry_on_deadlock
    def _offer_all(self, offers: Sequence[Offer], on_conflict: OnConflict, *, checked: bool = False) -> list[Offered]:
        offered: dict[int, Offered] = {}
        with self.database.atomic():
            for positions in chunks(offers):
                chunk = [offers[position] for position in positions]
                outcomes = self._offer_with_features(chunk, on_conflict, checked=checked)
                offered.update(zip(positions, outcomes, strict=True))
                stored = zip(chunk, outcomes, strict=True)
                self.notify_after_commit(
                    [offer.scheduled_at for offer, one in stored if one.outcome is not OfferOutcome.DROPPED]
                )
        return [offered[position] for position in range(len(offers))]

    def _offer_with_features(self, offers: Sequence[Offer], on_conflict: OnConflict, *, checked: bool) -> list[Offered]:
        """Each feature stores what the next ones leave of the offers, if one of these is not plain."""
        store = partial(self._offer_checked, on_conflict=on_conflict, checked=checked)
        if not all(offer.is_plain for offer in offers):
            for feature in FEATURES:
                store = partial(feature.offer, self, on_conflict=on_conflict, store_all=store)
        return store(offers)

    def _offer_checked(self, offers: Sequence[Offer], on_conflict: OnConflict, *, checked: bool) -> list[Offered]:
        for offer in () if checked else offers:
            check(offer)
        return self._offer_chunk(offers, on_conflict)

    def _offer_chunk(self, offers: Sequence[Offer], on_conflict: OnConflict) -> list[Offered]:
        outcomes: list[Offered | None] = [None] * len(offers)
        for positions in waves(offers):
            wave = [offers[position] for position in positions]
            offered = self._offer_wave(wave, on_conflict)
            unnamed = [offer for offer, one in zip(wave, offered, strict=True) if one.id is None]
            ids = self._ids_of(unnamed)
            for position, offer, one in zip(positions, wave, offered, strict=True):
                known = one.id is not None
                outcomes[position] = one if known else Offered(OfferOutcome.IGNORED, ids.get((offer.kind, offer.key)))
        return outcomes  # type: ignore[return-value]  # every position is in a wave

    @retry_on_deadlock
    def offer_each(self, given: Sequence[tuple[Offer, OnConflict]]) -> list[Offered]:
        """`offer_many`, but each offer has its own policy."""
        offers, policies = [offer for offer, _ in given], [policy for _, policy in given]
        if len(set(policies)) == 1:
            return self._offer_all(offers, policies[0])
        offered: dict[int, Offered] = {}
        with self.database.atomic():
            # In rounds without a repeated key; those after the first lock nothing new.
            for positions in waves(offers):
                for policy, run in groupby(in_lock_order(offers, positions), policies.__getitem__):
                    chosen = list(run)
                    outcomes = self._offer_all([offers[position] for position in chosen], policy)
                    offered.update(zip(chosen, outcomes, strict=True))
        return [offered[position] for position in range(len(offers))]

    def check_time(self, when: object) -> None:
        """Refuse with InvalidTime what is no aware datetime, or none that this database can store."""
        check_time(when)

    def _named(self, offer: Offer, offered: Offered) -> Offered:
        """An ignored offer returns no row: its message is found by key."""
        if offered.id is not None:
            return offered
        with self.database.connection.cursor() as cursor:
            cursor.execute("SELECT id FROM delayedq_message WHERE kind = %s AND key = %s", [offer.kind, offer.key])
            row = cursor.fetchone()
        return Offered(OfferOutcome.IGNORED, row[0] if row else None)

    def _ids_of(self, offers: Iterable[Offer]) -> dict[tuple[str, str | None], int]:
        """The same for hundreds by one statement."""
        from delayedq.models import Message  # stores are imported before the models are loaded

        found: dict[tuple[str, str | None], int] = {}
        for kind, some in groupby(sorted(offers, key=lambda offer: offer.kind), lambda offer: offer.kind):
            for keys in batched((offer.key for offer in some), LOOKED_UP):
                rows = Message.objects.using(self.database.alias).filter(kind=kind, key__in=keys)
                found |= {(kind, key): id_ for key, id_ in rows.values_list("key", "id")}
        return found

    @abstractmethod
    def _offer_one(self, offer: Offer, on_conflict: OnConflict) -> Offered: ...

    @abstractmethod
    def _offer_wave(self, offers: Sequence[Offer], on_conflict: OnConflict) -> list[Offered]:
        """No key occurs twice in them."""

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

    def scan_ahead(self, known: Sequence[Lane], queues: Collection[str] | None = None) -> list[LaneHead]:
        """The same, but of these lanes only what lies behind their watermarks: short, whatever is dead in them."""
        return self.peek(with_watermarks(self.lanes(), known, queues))

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
    def claim(self, request: ClaimRequest) -> list[Claimed]:
        """Lease what is asked for: due messages, lane by lane in the given order, in each by due time and id.

        None of a paused queue or task.
        """
        return self._claim(request)

    @abstractmethod
    def _claim(self, request: ClaimRequest) -> list[Claimed]: ...

    @abstractmethod
    def claim_unchanged(self, id_: int, generation: int, lease: timedelta, worker: str) -> Claimed | None:
        """Lease this one message, due or not; None if it is leased or locked, or it ended or was replaced since."""

    # Renewing and releasing leases, also of messages whose rows somebody's open transaction has locked.
    #
    # A renewal never waits for a row. The lease of a row that is locked is written beside it, into `LockedRenewal`, and
    # every claim of an expired lease looks there. That holds only if the renewal was committed before the lease ran
    # out: a claim that takes place later finds it then, as it reads its clock before it looks. What came too late is
    # taken back.

    @retry_on_deadlock
    def renew(self, held: Sequence[LeaseId], lease: timedelta) -> Renewed:
        """Extend the leases of (id, token) pairs, never shortening one.

        It waits for no lock of a row. Raises django.db.Error.
        """
        began = time.monotonic()
        skipped = self._renew(held, lease)
        self._sweep(began)
        left = {pair: seconds for pair, seconds in skipped.items() if seconds is not None}
        kept = self._renew_locked(left, lease, began) if left else set()
        lost = frozenset(skipped.keys() - left.keys())
        if lost:
            for feature in FEATURES:
                feature.lost(self, lost, lease)
        return Renewed(lost, frozenset(left.keys() - kept))

    @retry_on_deadlock
    def release(self, held: Collection[LeaseId]) -> Released:
        """Give back messages (id, token) that were never started, without charge: they are due again at once.

        It waits for no lock of a row: what is locked is in the answer's `busy`. Raises django.db.Error.
        """
        skipped = self._release(held) if held else {}
        busy = frozenset(pair for pair, is_held in skipped.items() if is_held)
        if lost := skipped.keys() - busy:
            for feature in FEATURES:
                feature.released(self, lost)
        return Released(frozenset(skipped) - busy, busy)

    @abstractmethod
    def _release(self, held: Collection[LeaseId]) -> dict[LeaseId, bool]:
        """Those of these pairs that were not released, and whether they still hold their message."""

    def _renew_locked(self, left: dict[LeaseId, float], lease: timedelta, began: float) -> set[LeaseId]:
        """Those of these pairs whose leases were renewed beside their locked rows; `left` says how long they held."""
        alive = sorted(pair for pair, seconds in left.items() if seconds > 0)
        if not alive or self.database.in_transaction:  # before its commit, nobody would see it
            return set()
        if self._sweep_at[0] == float("inf"):
            self.sweep()  # what another process has left
        self._keep_locked(alive, lease)
        took = time.monotonic() - began
        self._sweep_at[0] = began + took + lease.total_seconds()
        if late := [pair for pair in alive if left[pair] <= took]:
            self._forget_locked(late)
        return set(alive).difference(late)

    def _sweep(self, moment: float) -> None:
        if moment >= self._sweep_at[0]:
            self._sweep_at[0] = float("inf")
            self.sweep()

    def sweep(self) -> None:
        """Delete what has run out beside the rows, whoever wrote it: also what a process left that was killed.

        Lease keepers do so from time to time. Raises django.db.Error.
        """
        self._forget_expired()

    @abstractmethod
    def _renew(self, held: Sequence[LeaseId], lease: timedelta) -> dict[LeaseId, float | None]:
        """Renew those whose rows nobody has locked. Of the others: the seconds that are left; None if it is lost."""

    @abstractmethod
    def _keep_locked(self, held: Collection[LeaseId], lease: timedelta) -> None:
        """Write these leases beside the rows."""

    @abstractmethod
    def _forget_locked(self, held: Collection[LeaseId]) -> None:
        """Undo that."""

    @abstractmethod
    def _forget_expired(self) -> None:
        """Delete what has run out there."""

    # Settling

    @retry_on_deadlock
    def settle_and_claim(self, transitions: Sequence[Transition], request: ClaimRequest) -> SettledAndClaimed:
        """`settle`, then `claim`, in one transaction: a locked row does not stop the claim; an error undoes both.

        On PostgreSQL it is one statement if each transition is a Finish; an error after it undoes nothing.
        """
        return self._settle_and_claim(transitions, request)

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
            settled = self.carry_out(transitions, worker)
            for feature, concerning in concerned(transitions):
                feature.told(self, concerning, settled)
            return settled

    def carry_out(self, transitions: Sequence[Transition], worker: str) -> Settled:
        """`settle`, within a transaction, and without what features say at its end (`Feature.told`)."""
        ended: set[int] = set()
        if finishes := _of(Finish, transitions):
            ended |= self._finish(finishes)
        if returns := _of(GiveBack, transitions):
            ended |= self._give_back(returns)
        if discards := _of(Discard, transitions):
            ended |= self._discard([discard.claimed for discard in discards])
        return self.followed(transitions, ended, worker)

    def followed(self, transitions: Sequence[Transition], ended: set[int], worker: str) -> Settled:
        """What follows when those of the transitions whose ids are `ended` were carried out, in their transaction."""
        settled = self._settle_rest([t for t in transitions if t.claimed.id not in ended], worker)
        if offering := with_follow_ups(transitions):
            self._offer_follow_ups(offering, settled)
        for feature, concerning in concerned(transitions):
            if feature.settled(self, concerning, settled):
                settled = settled._replace(offered=True)
        return settled

    def _offer_follow_ups(self, followed: Sequence[Finish | GiveBack], answer: Settled) -> None:
        """Within the transaction that settles them: what follows those that were carried out."""
        untouched = answer.untouched
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

    def finish_and_commit(self, finish: Finish) -> bool:
        """End one message, and commit the transaction of the caller, in one round trip.

        False: neither was done, as where it takes more than one statement; the transaction goes on. After an error it
        may have committed. The caller leaves its block of `atomic` at once.
        """
        del finish
        return False

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

    def take_away(self, taken: Sequence[TakenMessage], *, waits: bool = False) -> None:
        """Tell the features what is to be ended, or to wait again, while its attempt may run on."""
        if taken:
            for feature in FEATURES:
                feature.taken(self, taken, waits=waits)

    def take_away_all(self, messages: QuerySet[Message]) -> None:
        """The same of all messages of a query."""
        for feature in FEATURES:
            feature.taken_of(self, messages)

    def tell_released(self, attempts: Collection[LeaseId]) -> None:
        """Tell the features which attempts were released: their messages wait again."""
        for feature in FEATURES:
            feature.released(self, attempts, [id_ for id_, _ in attempts])

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

        Dead letters stay, and so does what apps have registered as needed (`store.retention`). Of a partitioned
        history: only what ended before the month of that moment, since whole months are dropped.
        """

    def partition_history(self, retention: timedelta | None) -> Iterator[PartitionChange]:
        """Make the history a table of partitions, one a month; a step each time that it is resumed.

        Then what `maintain_partitions` has to do. Workers go on meanwhile. It can be stopped and called again at any
        time. Raises CannotPartition; django.db.Error if a table is locked for 10 minutes.
        """
        del retention
        raise CannotPartition(f"The database {self.alias!r} is not PostgreSQL: its history can't be partitioned.")

    def maintain_partitions(self, retention: timedelta | None) -> PartitionChange | None:
        """Make one partition that is due, or drop one whose rows all ended longer ago than `retention` (None: that has
        no rows any more); returns which, or None if there was nothing to do, as where the history has no partitions.

        Waits at most half a second for a lock, and blocks others for about as long; may take 2 s more, for which nobody
        waits. Raises django.db.Error.
        """
        del retention
        return None

    def rows_to_unite(self) -> int | None:
        """How many rows of a history in partitions `unite_history` would copy; None: it is in none."""
        return None

    def unite_history(self) -> PartitionChange | None:
        """Make a history in partitions one table again. Ends of messages wait while its rows are copied.

        None: it is one. Raises CannotPartition; django.db.Error if it is locked for 10 minutes.
        """
        return None


def with_follow_ups(transitions: Sequence[Transition]) -> list[Finish | GiveBack]:
    """Those that offer messages."""
    return [one for one in transitions if not isinstance(one, Discard) and one.follow_ups]


def _of[T: Transition](kind: type[T], transitions: Sequence[Transition]) -> list[T]:
    return [transition for transition in transitions if isinstance(transition, kind)]
