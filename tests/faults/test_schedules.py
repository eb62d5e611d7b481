"""The schedules of the default seeds, on each database, and what they are to find.

`python -m tests.faults.schedules` tries others for as long as one likes.
"""

from __future__ import annotations

import pytest

from delayedq.limits import postgresql
from delayedq.store.sqlite import sql
from delayedq.store.sqlite.store import SQLiteStore
from tests.faults.met import MET
from tests.faults.scenarios import numbered, parts
from tests.faults.schedules import told
from tests.faults.shrinking import shrunk
from tests.faults.worlds import World

SEEDS = 200
#: What these seeds are to meet, on all databases; and on those that lock rows.
MET_BY_ALL = {
    "a statement waited for a lock",
    "a connection was lost",
    "the outcome of a commit was unknown",
    "an end was lost",
    "an end was superseded",
    "a renewal was lost",
    "an edit met a change",
    "a limit left messages waiting",
    "a limit refused a message",
    "a flow failed",
    "a flow succeeded",
    "a flow was cancelled",
}
MET_WITH_ROWS = {"a deadlock was tried again", "an end was busy"}


@pytest.fixture
def world(alias):
    MET.clear()
    made = World(alias)
    yield made
    made.close()


@pytest.mark.timeout(300)
def test_each_schedule_is_explained_and_rare_branches_are_met(world, alias):
    for seed in range(SEEDS):
        failure = world.run(seed)
        assert failure is None, told(shrunk(world, failure), world.database)
    wanted = MET_BY_ALL | (set() if alias == "default" else MET_WITH_ROWS)
    assert {what for what in wanted if not MET[what]} == set()


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_a_schedule_is_the_same_each_time(world):
    def traced(number):
        assert world.run(number) is None
        return world.trace

    for seed in range(20):
        assert traced(seed) == traced(seed)
        assert traced(numbered(seed, order=1)) == traced(numbered(seed, order=1))


def without(statement, condition, *, parameters=""):
    """A statement that asks for less, with as many parameters."""
    assert condition in statement
    return statement.replace(condition, parameters or "1 = 1")


#: Rules of the store, by what breaks them.
RULES = {
    "an end is fenced by the token": {
        name: without(getattr(sql, name), "lease_token = %s", parameters="lease_token IS NOT NULL AND %s IS NOT NULL")
        for name in ("RECORD", "DELETE")
    },
    "an end is fenced by the generation": {
        name: without(getattr(sql, name), "generation = %s", parameters="%s IS NOT NULL")
        for name in ("RECORD", "DELETE")
    },
    "who loses its lease is told": {"RENEW": without(sql.RENEW, "lease_token = %(lease_token)s")},
    "a claim leaves what is held": {"CLAIM": without(sql.CLAIM, "leased_until <= %(expired_by)s")},
}


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
@pytest.mark.parametrize("broken", RULES.values(), ids=RULES)
def test_a_broken_rule_is_found_and_the_schedule_that_shows_it_is_short(world, monkeypatch, broken):
    for name, statement in broken.items():
        monkeypatch.setattr(sql, name, statement)
    failure = first_failure(world)
    short = shrunk(world, failure)
    assert parts(short.number)[0] == parts(failure.number)[0]
    assert len(short.trace) <= min(len(failure.trace), 30)
    assert world.run(short.number) is not None
    assert f"--seed {short.number}" in told(short, world.database)


def first_failure(world):
    for seed in range(1_000):
        if failure := world.run(seed):
            return failure
    return pytest.fail("no schedule shows it")


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_an_end_that_is_not_undone_with_its_transaction_is_found(world, monkeypatch):
    """What is recorded is deleted in the same transaction: else a lost connection comes between the two."""
    monkeypatch.setattr(SQLiteStore, "settle", lambda store, transitions, worker: store.carry_out(transitions, worker))
    assert first_failure(world)


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_claims_that_count_what_runs_without_a_lock_are_found(world, monkeypatch):
    lock = without(postgresql.LOCK, "pg_try_advisory_xact_lock(4990113571238845)", parameters="true")
    monkeypatch.setattr(postgresql, "LOCK", lock)
    assert first_failure(world)
