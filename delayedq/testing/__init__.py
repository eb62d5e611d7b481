"""Tests of code that uses delayedq: run what is due, move time, assert what is scheduled. See docs/testing.md.

from delayedq.testing import assert_scheduled, clock, run_due

class Reminders(TestCase):
    def test_a_reminder_is_sent(self):
        with clock("2026-03-08 06:55", "America/New_York") as now:
            remind.schedule_in(timedelta(hours=1), 7, key="a")
            assert_scheduled(remind, args=[7], key="a")
            now.advance(hours=1)
            (attempt,) = run_due()
        self.assertEqual(attempt.outcome, "succeeded")
"""

from __future__ import annotations

from delayedq.testing.assertions import assert_not_scheduled, assert_scheduled, scheduled
from delayedq.testing.backends import DummyBackend, ImmediateBackend
from delayedq.testing.replay import ReplayReport, replay
from delayedq.testing.running import AttemptReport, Clock, clock, run_due, run_until

__all__ = [
    "AttemptReport",
    "Clock",
    "DummyBackend",
    "ImmediateBackend",
    "ReplayReport",
    "assert_not_scheduled",
    "assert_scheduled",
    "clock",
    "replay",
    "run_due",
    "run_until",
    "scheduled",
]
