"""Plans: how many threads, from the work that arrived."""

from __future__ import annotations

import pytest

from delayedq.core.scaling import Traffic
from delayedq.pipeline.report.facts import DAY, HOUR, Window
from delayedq.pipeline.report.tables import ALL, Target, curve, plans

TARGET = Target(seconds=1, share=0.95)


def hour(begins, attempts, *, run=1.0, queue="mail", dispersion=1.0):
    """One hour of exponential run times."""
    work = attempts * run
    squares = attempts * 2 * run**2
    return {
        "period": begins * float(HOUR),
        "queue": queue,
        "messages": attempts,
        "attempts": attempts,
        "work": work,
        "squares": squares,
        "dispersion": dispersion,
    }


def plan_of(*rows, hours=None):
    hours = hours or max(2, len(rows))
    return plans(rows, Window(0.0, hours * float(HOUR), HOUR), TARGET)


def test_one_hour_needs_what_erlang_says():
    [plan] = plan_of(hour(0, 7_200), hours=2)

    assert plan.threads == plan.peak_threads == Traffic(2, 1).threads_for(1, 0.95)
    assert plan.mean_load * 2 == plan.peak.traffic.load == pytest.approx(2)


def test_the_plan_covers_nineteen_hours_of_twenty_and_names_the_other():
    [plan] = plan_of(*(hour(n, 360) for n in range(19)), hour(19, 36_000))

    assert plan.threads == Traffic(0.1, 1).threads_for(1, 0.95)
    assert plan.peak_threads == Traffic(10, 1).threads_for(1, 0.95)
    assert plan.peak.begins == 19 * HOUR


def test_hours_without_work_lower_the_mean_load():
    [plan] = plan_of(hour(0, 3_600), hours=4)

    assert plan.mean_load == pytest.approx(0.25)


def test_half_a_period_has_half_the_time():
    [plan] = plans([hour(0, 1_000)], Window(0.0, 1_000.0, 5), TARGET)

    assert plan.peak.traffic.rate == pytest.approx(1_000 / 300)
    assert Window(0.0, 700.0, 5).length(600.0) == 150


def test_bursts_and_irregular_run_times_need_more():
    [calm], [bursty] = plan_of(hour(0, 7_200)), plan_of(hour(0, 7_200, dispersion=20))

    assert bursty.threads > calm.threads


def test_the_dispersion_of_a_handful_of_messages_says_nothing():
    [few] = plan_of(hour(0, 20, dispersion=0.0))

    assert few.peak.traffic.arrival_variability == 1


def test_all_queues_together_need_less_than_the_sum_of_each_alone():
    together, *alone = plan_of(hour(0, 7_200, queue="mail"), hour(0, 7_200, queue="web"))

    assert [together.queue, *(plan.queue for plan in alone)] == [ALL, "mail", "web"]
    assert together.peak.traffic.load == pytest.approx(4)
    assert alone[0].threads < together.threads < sum(plan.threads for plan in alone)


def test_chance_is_read_from_the_days_if_there_are_three():
    days = [hour(24 * day + n, 36_000 if day == 4 else 360) for day in range(9) for n in range(24)]
    [plan] = plan_of(*days)
    [short] = plan_of(*days[:48])

    assert plan.low <= plan.threads <= plan.high
    assert plan.low < plan.high
    assert (short.low, short.high) == (None, None)
    assert plan_of(*days) == [plan]


def test_the_same_every_day_leaves_nothing_to_chance():
    [plan] = plan_of(*(hour(n, 3_600) for n in range(5 * DAY // HOUR)))

    assert plan.low == plan.threads == plan.high


def test_the_curve_falls_and_crosses_the_target_at_the_answer():
    traffic = Traffic(10, 1)
    needed = traffic.threads_for(TARGET.seconds, TARGET.share)
    points = dict(curve(traffic, TARGET, needed))

    assert list(points.values()) == sorted(points.values(), reverse=True)
    assert points[needed] <= TARGET.seconds < points[needed - 1]
