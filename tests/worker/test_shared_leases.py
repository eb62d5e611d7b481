"""What remains of a worker that was killed."""

from __future__ import annotations

import os
import signal

from delayedq.store.sqlite import database
from delayedq.worker import shared_leases
from delayedq.worker.shared_leases import ClaimTimes, Entry, SharedLeases
from tests.worker.conftest import eventually


def seen(leases):
    return {(entry.id, entry.token, entry.started) for entry in leases.entries()}


def test_what_is_held_is_seen_until_it_is_dropped():
    leases = SharedLeases(8)
    first, second = leases.hold(1, 11), leases.hold(2, 22)
    leases.start(second)
    assert seen(leases) == {(1, 11, False), (2, 22, True)}
    leases.drop(second)
    assert seen(leases) == {(1, 11, False)}
    leases.drop(first)
    assert seen(leases) == set()


def test_without_a_keeper_expired_leases_may_be_claimed_and_else_while_it_says_so():
    leases = SharedLeases(1)
    assert leases.may_claim_expired()
    leases.let_claim_expired(0)
    assert not leases.may_claim_expired()
    leases.let_claim_expired(60)
    assert leases.may_claim_expired()


def test_a_slot_is_used_again_and_begins_anew():
    leases = SharedLeases(1)
    for number in range(5):
        slot = leases.hold(number, number * 10)
        assert seen(leases) == {(number, number * 10, False)}
        leases.start(slot)
        leases.drop(slot)


def test_all_slots_can_be_held_and_the_largest_numbers_fit():
    leases = SharedLeases(100)
    for number in range(100):
        leases.hold(2**63 - 1 - number, 2**63 - 1 - number)
    assert len(seen(leases)) == 100


def test_a_lost_lease_is_known_by_its_token():
    leases = SharedLeases(8)
    slot, other = leases.hold(1, 11), leases.hold(2, 22)
    assert not leases.is_lost(slot, 11)
    (entry,) = (entry for entry in leases.entries() if entry.id == 1)
    leases.report_lost(entry)
    assert leases.is_lost(slot, 11)
    assert not leases.is_lost(other, 22)


def test_a_report_that_comes_too_late_does_not_meet_the_next_message_in_the_slot():
    leases = SharedLeases(1)
    slot = leases.hold(1, 11)
    (late,) = leases.entries()
    leases.drop(slot)
    assert leases.hold(2, 22) == slot
    leases.report_lost(late)
    assert not leases.is_lost(slot, 22)


def test_a_report_about_one_attempt_does_not_meet_the_next_attempt_of_the_message():
    leases = SharedLeases(1)
    slot = leases.hold(1, 11)
    leases.report_lost(Entry(slot, 1, 11, started=True))
    leases.drop(slot)
    leases.hold(1, 12)
    assert not leases.is_lost(slot, 12)


def test_another_process_sees_it_and_can_answer():
    leases = SharedLeases(8)
    slot = leases.hold(7, 77)
    pid = os.fork()
    if pid == 0:
        (entry,) = leases.entries()
        leases.report_lost(entry)
        os._exit(0 if entry == (slot, 7, 77, False) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert leases.is_lost(slot, 77)


def test_what_a_killed_process_held_is_still_there_until_it_is_cleared():
    leases = SharedLeases(8)
    pid = os.fork()
    if pid == 0:
        leases.start(leases.hold(7, 77))
        leases.hold(8, 77)
        os._exit(9)
    os.waitpid(pid, 0)
    assert seen(leases) == {(7, 77, True), (8, 77, False)}
    leases.clear()
    assert seen(leases) == set()
    assert len({leases.hold(number, 1) for number in range(8)}) == 8


def test_a_zombie_is_not_alive(asleep):
    leases = SharedLeases(1)
    assert not leases.is_alive()
    leases.register(asleep)
    assert leases.is_alive()
    os.kill(asleep, signal.SIGKILL)
    eventually(lambda: not leases.is_alive())
    os.kill(asleep, 0)  # it is there still, as nobody has waited for it


def test_another_process_that_was_given_the_id_of_a_dead_one_is_not_alive(monkeypatch):
    leases = SharedLeases(1)
    leases.register(os.getpid())
    assert leases.is_alive()
    mine = database.find(os.getpid())
    monkeypatch.setattr(shared_leases, "find", lambda _: mine._replace(started_at=mine.started_at + 1))
    assert not leases.is_alive()


def test_a_claim_is_remembered_until_all_of_it_is_entered():
    leases = SharedLeases(1)
    leases.remember_claim(11)
    leases.remember_claim(22)
    assert leases.claims() == [11, 22]
    leases.forget_claim(11)
    assert leases.claims() == [22]


def test_a_claim_that_was_given_up_is_left_to_the_keeper():
    leases = SharedLeases(1)
    for token in (11, 22):
        leases.remember_claim(token)
    leases.give_up_claim(11)
    leases.farewell()
    assert leases.claims() == [11]
    assert leases.take_given_up() == [11]
    assert leases.take_given_up() == leases.claims() == []


def test_the_next_process_knows_nothing_of_the_claims_of_the_last():
    leases = SharedLeases(1)
    for token in range(1, 9):
        leases.remember_claim(token)
        leases.give_up_claim(token)
    leases.remember_claim(9)
    leases.clear()
    assert leases.claims() == []


def test_what_was_claimed_is_current_until_its_lease_is_over_unless_it_was_renewed(monkeypatch):
    leases, claim = SharedLeases(1), ClaimTimes(sent_at=100.0, lease=10.0)

    def is_current(moment):
        monkeypatch.setattr(shared_leases, "lease_clock", lambda: moment)
        return leases.is_current(claim)

    assert [is_current(moment) for moment in (102.0, 109.9, 110.0, 200.0)] == [True, True, False, False]
    leases.renewed(101.0)  # it was not entered, so not renewed
    assert not is_current(110.0)
    claim.entered_at = 102.0
    assert not is_current(110.0)
    leases.renewed(108.0)
    assert [is_current(moment) for moment in (110.0, 117.9, 118.0)] == [True, True, False]
