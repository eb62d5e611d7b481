"""What remains of a worker that was killed."""

from __future__ import annotations

import os

from delayedq.worker.ledger import Entry, Ledger


def seen(ledger):
    return {(entry.id, entry.token, entry.started) for entry in ledger.entries()}


def test_what_is_held_is_seen_until_it_is_dropped():
    ledger = Ledger(8)
    first, second = ledger.hold(1, 11), ledger.hold(2, 22)
    ledger.start(second)
    assert seen(ledger) == {(1, 11, False), (2, 22, True)}
    ledger.drop(second)
    assert seen(ledger) == {(1, 11, False)}
    ledger.drop(first)
    assert seen(ledger) == set()


def test_a_slot_is_used_again_and_begins_anew():
    ledger = Ledger(1)
    for number in range(5):
        slot = ledger.hold(number, number * 10)
        assert seen(ledger) == {(number, number * 10, False)}
        ledger.start(slot)
        ledger.drop(slot)


def test_all_slots_can_be_held_and_the_largest_numbers_fit():
    ledger = Ledger(100)
    for number in range(100):
        ledger.hold(2**63 - 1 - number, 2**63 - 1 - number)
    assert len(seen(ledger)) == 100


def test_a_lost_lease_is_known_by_its_token():
    ledger = Ledger(8)
    slot, other = ledger.hold(1, 11), ledger.hold(2, 22)
    assert not ledger.is_lost(slot, 11)
    (entry,) = (entry for entry in ledger.entries() if entry.id == 1)
    ledger.report_lost(entry)
    assert ledger.is_lost(slot, 11)
    assert not ledger.is_lost(other, 22)


def test_a_report_that_comes_too_late_does_not_meet_the_next_message_in_the_slot():
    ledger = Ledger(1)
    slot = ledger.hold(1, 11)
    (late,) = ledger.entries()
    ledger.drop(slot)
    assert ledger.hold(2, 22) == slot
    ledger.report_lost(late)
    assert not ledger.is_lost(slot, 22)


def test_a_report_about_one_attempt_does_not_meet_the_next_attempt_of_the_message():
    ledger = Ledger(1)
    slot = ledger.hold(1, 11)
    ledger.report_lost(Entry(slot, 1, 11, started=True))
    ledger.drop(slot)
    ledger.hold(1, 12)
    assert not ledger.is_lost(slot, 12)


def test_another_process_sees_it_and_can_answer():
    ledger = Ledger(8)
    slot = ledger.hold(7, 77)
    pid = os.fork()
    if pid == 0:
        (entry,) = ledger.entries()
        ledger.report_lost(entry)
        os._exit(0 if entry == (slot, 7, 77, False) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert ledger.is_lost(slot, 77)


def test_what_a_killed_process_held_is_still_there_until_it_is_cleared():
    ledger = Ledger(8)
    pid = os.fork()
    if pid == 0:
        ledger.start(ledger.hold(7, 77))
        ledger.hold(8, 77)
        os._exit(9)
    os.waitpid(pid, 0)
    assert seen(ledger) == {(7, 77, True), (8, 77, False)}
    ledger.clear()
    assert seen(ledger) == set()
    assert len({ledger.hold(number, 1) for number in range(8)}) == 8
