"""Of the audit, only lines of what a promoted standby had not got are left out."""

from __future__ import annotations

import time
from threading import Thread

import psycopg

from delayedq.torture.audit import Event
from tests.faults.postgresql_faults import Server
from tests.faults.standby import Lost, Seen, State
from tests.server import postgresql_socket, standby_socket

PROMOTED = 100


def state(steps=(), **messages):
    seen = {int(name[1:]): Seen(*one) for name, one in messages.items()}
    versions = {one.uid.partition("#")[0]: int(one.uid.partition("#")[2]) for one in seen.values() if "#" in one.uid}
    return State(seen, frozenset(steps), versions, frozenset(one.uid for one in seen.values()))


def began(id_, token, attempt, uid, at=1):
    return Event(at, 7, "began", (id_, token, attempt, "plain", uid, None, 1))


def left(primary, standby, *events):
    """Which of these lines are judged."""
    return Lost(primary, standby, PROMOTED).leave_out(events)


def test_a_message_that_it_had_not_got_is_left_out_with_its_runs():
    stored = Event(1, 9, "stored", (["a", 1], ["b", 2]))
    ran = Event(2, 7, "ended", (2, 20, 1, "returned"))
    kept = left(state(m1=("a", 0, None), m2=("b", 1, 20)), state(m1=("a", 0, None)), stored, began(2, 20, 1, "b"), ran)
    assert kept == [stored._replace(about=(["a", 1],))]


def test_a_claim_that_it_had_not_got_is_left_out_and_those_that_it_had_are_not():
    known, later, lost = began(1, 10, 1, "a"), began(1, 12, 2, "a", at=101), began(1, 11, 2, "a", at=99)
    assert left(state(m1=("a", 2, 11)), state(m1=("a", 1, 10)), known, lost, later) == [known, later]


def test_a_claim_that_it_had_not_got_is_left_out_also_when_it_begins_after_the_failover():
    assert left(state(m1=("a", 1, 10)), state(m1=("a", 0, None)), began(1, 10, 1, "a", at=101)) == []


def test_what_neither_server_has_is_judged():
    stored = Event(1, 9, "stored", (["a", 1],))
    assert left(state(), state(), stored) == [stored]


def test_a_version_of_a_key_that_it_had_not_got_is_left_out():
    offered = Event(1, 9, "offered", ({"k": 2, "l": 1},))
    primary, standby = state(m1=("k#2", 0, None), m2=("l#1", 0, None)), state(m1=("k#1", 0, None), m2=("l#1", 0, None))
    assert left(primary, standby, offered) == [offered._replace(about=({"l": 1},))]


def test_a_step_that_it_had_not_got_is_left_out():
    had, lost = Event(1, 7, "step", (1, "a", 0, 5)), Event(2, 7, "step", (1, "a", 1, 5))
    steps = [(1, "step 0")]
    assert left(state([*steps, (1, "step 1")], m1=("a", 1, 5)), state(steps, m1=("a", 1, 5)), had, lost) == [had]


def test_what_an_attempt_wrote_is_left_out_with_it_and_what_another_one_of_its_process_wrote_is_not():
    def lines(token, attempt, at):
        return [
            Event(at, 7, "tick", (1, "2026-01-01T00:00:00+00:00", token)),
            Event(at, 7, "collected", ("c", ["a"], 1, token)),
            began(1, token, attempt, "c", at),
            Event(at, 7, "step", (1, "c", 0, token)),
            Event(at, 7, "ended", (1, token, attempt, "returned")),
        ]

    lost, again = lines(10, 1, PROMOTED - 1), lines(11, 1, PROMOTED + 1)
    ended, waits = state(m1=("c", None, None)), state(m1=("c", 0, None))
    assert left(ended, waits, *lost, *again) == again
    assert left(state(m1=("c", 1, 10)), waits, *lines(10, 1, PROMOTED + 1), *again) == again


def test_a_standby_writes_nothing_before_the_moment_that_counts_as_its_promotion(postgresql):
    """What it wrote in the tenth of a second until `pg_ctl` noticed that was taken for what the primary had lost."""
    written = []
    with postgresql_socket() as socket, standby_socket(socket) as other:
        server, standby = Server(socket), Server(other)
        thread = Thread(target=write_soon, args=(standby, written))
        thread.start()
        server.kill()
        (server.data / "postmaster.pid").unlink()
        promoted = standby.promote()
        thread.join()
    assert written[0] > promoted


def write_soon(standby, written):
    """When it was asked for what it wrote first."""
    with standby.connection() as connection:
        while not written:
            asked = time.monotonic_ns()
            try:
                connection.execute("CREATE TABLE written (id int)")
            except psycopg.errors.ReadOnlySqlTransaction:
                time.sleep(0.001)
            else:
                written.append(asked)
