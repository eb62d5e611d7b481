"""Attempts as spans on one scale."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from delayedq.admin.spans import LEAST, WIDTH, spans_of
from delayedq.operations.timeline import Attempt

NOW = datetime(2026, 5, 20, 9, tzinfo=UTC)


def at(seconds):
    return NOW + timedelta(seconds=seconds)


def test_spans_share_one_scale_and_tell_waits_and_runs():
    one, two = spans_of([Attempt(1, at(10), at(30), "failed"), Attempt(2, at(90), at(100), "succeeded")], due=at(0))
    assert (one.waits_from, one.left, one.width) == (0, 100, 200)
    assert (two.waits_from, two.left, two.width) == (300, 900, 100)
    assert (one.waited, one.ran, two.waited, two.ran) == ("10 s", "20 s", "1 min", "10 s")


def test_a_short_attempt_among_long_waits_is_still_seen_and_inside_the_picture():
    rows = spans_of([Attempt(1, at(0), at(0.01), "failed"), Attempt(2, at(86_400), at(86_400.01), "failed")], due=at(0))
    assert all(row.width >= LEAST and row.left + row.width <= WIDTH for row in rows)


def test_an_attempt_before_the_due_time_waited_for_nothing():
    (row,) = spans_of([Attempt(1, at(0), at(1), "running")], due=at(3600))
    assert (row.left, row.width, row.waited) == (0, WIDTH, "0 ms")


def test_what_took_no_time_at_all_and_nothing():
    assert spans_of([], due=NOW) == []
    assert spans_of([Attempt(1, NOW, NOW, "succeeded")], due=NOW)[0].width == LEAST
