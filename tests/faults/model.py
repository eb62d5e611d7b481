"""A small model of lease, replacement and limit, of which every state is visited.

Two messages share a channel with room for one of them. The first has a key, and is replaced; two workers run both, and
die, freeze and lose their lease. An action of the model is a statement of the store, or a step of a worker:

- `claim`: `Store.claim` (CLAIM of each database), with `limits.claims.ChannelTurn` for the place
- `begin`: `worker.attempt.Attempt.start`, which asks `SharedLeases.is_current`
- `renew`: `Store.renew` by the lease keeper; `Store._renew_locked` beside a row that is locked (`LockedRenewal`);
  `limits.places_held` for the place
- `settle`: `Store.settle` (FINISH), which passes over a locked row; `Store._settle_rest` (REARM) if it was replaced
- `release`: `Store.settle` with a `GiveBack` that is not charged, by `worker.releases.Releases`
- `replace`, `commit`, `roll_back`: `Store.offer` (`store.offers._UPDATE`) in a transaction that stays open
- `tick`: time goes on by half a lease, for the database and for each host; frozen workers do nothing

Times are what is left of a lease, so states repeat and there are finitely many. `BROKEN` are rules of which one is
broken at a time: a model that finds nothing then would say nothing.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import NamedTuple

LEASE = 2
KEYED, OTHER = 0, 1
#: The token of a worker that has died, which nobody has any more.
ORPHAN = 9

BROKEN = (
    "a claim takes what is leased",
    "a claim takes no notice of the limit",
    "an attempt begins although its lease has run out",
    "an end is not fenced by its token",
    "an end is not fenced by its generation",
    "a replacement frees the lease",
    "a replacement keeps its generation",
    "nothing is renewed beside a locked row",
    "the place of a locked message is not renewed",
    "a lease does not run out",
)


class Row(NamedTuple):
    """A live message; `lease` and `beside` (a renewal beside the row) are what is left of them."""

    generation: int = 0
    version: int = 0
    token: int | None = None
    lease: int = 0
    beside: int = 0

    @property
    def held(self):
        return self.token is not None and max(self.lease, self.beside) > 0


class Attempt(NamedTuple):
    """What a worker has claimed; `lease` is what it believes to be left. `lapsed`: it ran out once."""

    message: int
    generation: int
    version: int
    lease: int = LEASE
    state: str = "claimed"
    lapsed: bool = False


class Worker(NamedTuple):
    attempt: Attempt | None = None
    frozen: bool = False


class State(NamedTuple):
    rows: tuple = (Row(), Row())
    #: The place of each message in the limit: who has it and what is left of it.
    places: tuple = (None, None)
    workers: tuple = (Worker(), Worker())
    #: Whether somebody's transaction has replaced the keyed message, and not ended.
    open: bool = False
    offers: int = 1
    crashes: int = 1
    freezes: int = 1
    #: The newest version of the keyed message that was committed.
    committed: int = 0
    #: For each message, the versions that have ended, in their order.
    ended: tuple = ((), ())
    #: What an action has done that no action may.
    wrong: str = ""

    @property
    def is_over(self):
        return self.rows == (None, None) and all(worker == Worker() for worker in self.workers)


def put(values, index, value):
    return (*values[:index], value, *values[index + 1 :])


class Model:
    """The actions under the rules, of which those in `broken` are broken."""

    def __init__(self, *broken):
        assert set(broken) <= set(BROKEN)
        self.broken = broken

    def actions(self, state):
        """All (name, state after it) that can happen; those that a fair run may not leave out for ever come first."""
        return chain(self.fair(state), self.faults(state))

    def fair(self, state):
        for number, worker in enumerate(state.workers):
            if worker.frozen:
                yield f"thaw {number}", self._with_worker(state, number, worker._replace(frozen=False))
            elif worker.attempt is None:
                for message in (KEYED, OTHER):
                    yield from self._claim(state, number, message)
            else:
                yield from self._work(state, number, worker.attempt)
        if state.open:
            yield "commit", self._commit(state)
        yield "tick", self._tick(state)

    def faults(self, state):
        for number, worker in enumerate(state.workers):
            if state.crashes and worker.attempt is not None:
                yield f"kill {number}", self._killed(state, number)
            if state.freezes and worker.attempt is not None and not worker.frozen:
                frozen = self._with_worker(state, number, worker._replace(frozen=True))
                yield f"freeze {number}", frozen._replace(freezes=state.freezes - 1)
        if state.open:
            yield "roll back", state._replace(open=False)
        elif state.offers and state.rows[KEYED] is not None:
            yield "replace", state._replace(open=True, offers=state.offers - 1)

    # What they do

    def _with_worker(self, state, number, worker):
        return state._replace(workers=put(state.workers, number, worker))

    def _locked(self, state, message):
        return state.open and message == KEYED

    def _claim(self, state, number, message):
        row = state.rows[message]
        if row is None or self._locked(state, message):
            return
        if row.held and "a claim takes what is leased" not in self.broken:
            return
        # What ran out is given away here, and no renewal brings it back.
        places = tuple(place if place and place[1] else None for place in state.places)
        if any(put(places, message, None)) and "a claim takes no notice of the limit" not in self.broken:
            return
        claimed = row._replace(token=number, lease=LEASE, beside=0)
        attempt = Attempt(message, row.generation, row.version)
        yield (
            f"claim {number} {message}",
            self._with_worker(state, number, Worker(attempt))._replace(
                rows=put(state.rows, message, claimed), places=put(places, message, (number, LEASE))
            ),
        )

    def _work(self, state, number, attempt):
        yield from self._renew(state, number, attempt)
        match attempt.state:
            case "claimed":
                if attempt.lease or "an attempt begins although its lease has run out" in self.broken:
                    yield f"begin {number}", self._begun(state, number, attempt)
                yield from self._settled(state, number, attempt, "release")
            case "running":
                yield from self._settled(state, number, attempt, "settle")

    def _begun(self, state, number, attempt):
        after = self._with_worker(state, number, Worker(attempt._replace(state="running")))
        row = state.rows[attempt.message]
        if row is None or (row.token != number and row.held):
            return after._replace(wrong="an attempt began that others hold or have ended")
        return after

    def _renew(self, state, number, attempt):
        message, row = attempt.message, state.rows[attempt.message]
        if row is None or row.token != number:
            return
        locked, place = self._locked(state, message), state.places[message]
        if locked and "nothing is renewed beside a locked row" in self.broken:
            kept = False
        else:
            row = row._replace(**{"beside" if locked else "lease": LEASE})
            kept = not (locked and "the place of a locked message is not renewed" in self.broken)
        if kept and place and place[0] == number:
            place = (number, LEASE)
        after = self._with_worker(state, number, Worker(attempt._replace(lease=LEASE)))
        yield (
            f"renew {number}",
            after._replace(rows=put(state.rows, message, row), places=put(state.places, message, place)),
        )

    def _settled(self, state, number, attempt, name):
        message, row = attempt.message, state.rows[attempt.message]
        if row is not None and self._locked(state, message):
            return  # busy: again later
        after = self._with_worker(state, number, Worker())
        mine = row is not None and (row.token == number or "an end is not fenced by its token" in self.broken)
        if not mine:
            yield f"{name} {number} (lost)", after
            return
        free = row._replace(token=None, lease=0, beside=0)
        fenced = "an end is not fenced by its generation" not in self.broken
        if name == "release" or (fenced and row.generation != attempt.generation):
            rows, ended = put(state.rows, message, free), state.ended
        else:
            rows = put(state.rows, message, None)
            ended = put(state.ended, message, (*state.ended[message], attempt.version))
        yield f"{name} {number}", after._replace(rows=rows, ended=ended, places=put(state.places, message, None))

    def _commit(self, state):
        row = state.rows[KEYED]
        row = row._replace(version=row.version + 1)
        if "a replacement keeps its generation" not in self.broken:
            row = row._replace(generation=row.generation + 1)
        if "a replacement frees the lease" in self.broken:
            row = row._replace(token=None, lease=0, beside=0)
        return state._replace(open=False, rows=put(state.rows, KEYED, row), committed=row.version)

    def _killed(self, state, number):
        rows = tuple(row._replace(token=ORPHAN) if row and row.token == number else row for row in state.rows)
        places = tuple((ORPHAN, place[1]) if place and place[0] == number else place for place in state.places)
        after = self._with_worker(state, number, Worker())
        return after._replace(rows=rows, places=places, crashes=state.crashes - 1)

    def _tick(self, state):
        stays = "a lease does not run out" in self.broken
        rows = tuple(
            row._replace(lease=row.lease if stays else less(row.lease), beside=less(row.beside)) if row else None
            for row in state.rows
        )
        places = tuple((place[0], less(place[1])) if place else None for place in state.places)
        return state._replace(rows=rows, places=places, workers=tuple(map(later, state.workers)))


def less(left):
    return max(left - 1, 0)


def later(worker):
    attempt = worker.attempt
    if attempt is None:
        return worker
    lease = less(attempt.lease)
    return worker._replace(attempt=attempt._replace(lease=lease, lapsed=attempt.lapsed or not lease))


# What must hold


def wrong(state):
    """What is wrong in a state; "" if nothing is."""
    return state.wrong or _overlap(state) or _loss(KEYED, state) or _loss(OTHER, state)


def _overlap(state):
    running = [
        (number, worker.attempt)
        for number, worker in enumerate(state.workers)
        if worker.attempt and worker.attempt.state == "running" and worker.attempt.lease
    ]
    for number, attempt in running:
        row = state.rows[attempt.message]
        if row is None or row.token != number:
            return "overlap: an attempt lost its message while its lease held"
    return "more attempts run than the limit allows" if sum(not one.lapsed for _, one in running) > 1 else ""


def _loss(message, state):
    row, ended = state.rows[message], state.ended[message]
    if len(ended) > 1:
        return "a message ended twice"
    if row is not None:
        return ""
    if not ended:
        return "a message is lost"
    return "a replacement is lost" if message == KEYED and ended[0] < state.committed else ""


class Found(NamedTuple):
    """How many states there are, what is wrong in one of them, and the actions that lead there."""

    states: int
    wrong: str = ""
    trace: tuple = ()


def explore(model):
    """Visit each state, the nearest first, until one is wrong; then look for one from which no fair run ends."""
    first = State()
    came = {first: None}
    left = deque([first])
    before = {}
    while left:
        state = left.popleft()
        if problem := wrong(state):
            return Found(len(came), problem, _trace(came, state))
        for name, after in model.fair(state):
            before.setdefault(after, []).append(state)
            _note(came, left, state, name, after)
        for name, after in model.faults(state):
            _note(came, left, state, name, after)
    ends = {state for state in came if state.is_over}
    left = deque(ends)
    while left:
        for state in before.get(left.popleft(), ()):
            if state not in ends:
                ends.add(state)
                left.append(state)
    stuck = next((state for state in came if state not in ends), None)
    return Found(len(came)) if stuck is None else Found(len(came), "it never ends", _trace(came, stuck))


def _note(came, left, state, name, after):
    if after not in came:
        came[after] = name, state
        left.append(after)


def _trace(came, state):
    names = []
    while came[state] is not None:
        name, state = came[state]
        names.append(name)
    return tuple(reversed(names))
