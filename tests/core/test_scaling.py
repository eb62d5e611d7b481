"""When an elastic fleet grows and shrinks: the pure decision, and days of flights in virtual time."""

from __future__ import annotations

import heapq
import random
from bisect import bisect_right
from functools import cache
from math import ceil

import pytest

from delayedq.core.scaling import Demand, Scale, Scaling, scaled, threads_needed
from tests.pipeline.nycflights import rows

TO_EIGHT = Scaling(lowest=1, highest=8, target=30.0, threads=1, patience=60.0)
DEFAULT = Scaling(lowest=1, highest=8, target=30.0, threads=1)
#: Seconds between two decisions, and those that a new process needs until it claims.
EVERY, START = 2.0, 3.0


@pytest.mark.parametrize(
    ("demand", "threads"),
    [
        (Demand(), 0),
        (Demand(due=1), 1),
        (Demand(running=3), 1),
        (Demand(arrivals=0.1, run_seconds=1.0), 1),
        (Demand(due=600, run_seconds=1.0), 20),  # 600 s of work in 30 s
        (Demand(due=600, run_seconds=1.0, oldest_due=15.0), 40),  # 15 s of the target are left
        (Demand(due=600, run_seconds=1.0, oldest_due=500.0), 80),  # late: in a quarter of the target
        (Demand(arrivals=5.0, run_seconds=2.0), 11),  # more than the load of 10
    ],
)
def test_threads_are_enough_for_what_comes_and_what_waits(demand, threads):
    assert threads_needed(demand, 30.0) == threads


def test_a_fleet_grows_at_once_and_shrinks_after_its_patience():
    busy, quiet = Demand(due=150, run_seconds=1.0), Demand()
    scale = scaled(Scale(1), busy, TO_EIGHT, 0.0)
    assert scale.processes == 5

    for moment in (2.0, 30.0, 59.0):
        scale = scaled(scale, quiet, TO_EIGHT, moment)
        assert scale.processes == 5
    assert scaled(scale, quiet, TO_EIGHT, 61.0).processes == 1


def test_a_second_burst_begins_the_patience_anew():
    scale = scaled(Scale(1), Demand(due=150, run_seconds=1.0), TO_EIGHT, 0.0)
    scale = scaled(scale, Demand(due=90, run_seconds=1.0), TO_EIGHT, 50.0)
    scale = scaled(scale, Demand(), TO_EIGHT, 65.0)

    assert scale.processes == 3
    assert scaled(scale, Demand(), TO_EIGHT, 111.0).processes == 1


def test_a_fleet_that_is_late_grows_though_nothing_is_known_of_its_messages():
    scale, late = Scale(1), Demand(due=5, oldest_due=40.0)
    found = []
    for step in range(4):
        scale = scaled(scale, late, TO_EIGHT, EVERY * step)
        found.append(scale.processes)

    assert found == [2, 4, 8, 8]


def test_what_is_remembered_stays_small():
    scale, chance = Scale(1), random.Random(7)
    for step in range(5_000):
        demand = Demand(due=chance.randrange(300), run_seconds=1.0)
        scale = scaled(scale, demand, TO_EIGHT, 0.1 * step)
        assert 1 <= scale.processes <= 8
        assert len(scale.wanted) <= 8


@pytest.mark.parametrize(("lowest", "highest", "target"), [(0, 1, 30), (3, 2, 30), (1, 2, 0)])
def test_bounds_that_make_no_sense_are_refused(lowest, highest, target):
    with pytest.raises(ValueError, match=r"process|latency is above 0 s"):
        Scaling(lowest=lowest, highest=highest, target=target, threads=1)


class Day:
    """Workers in virtual time: one thread per process, messages in the order in which they fall due."""

    def __init__(self, due, run_seconds, scaling, seed=1):
        self.arrivals, self.scaling = sorted(due), scaling
        chance = random.Random(seed)
        self.runs = [chance.expovariate(1 / run_seconds) for _ in due]
        self.waits, self.sizes = [], []

    def run(self):
        scale, came, begun, running, ended = Scale(self.scaling.lowest), 0, 0, [], []
        starting = []  #: when processes that were asked for are there
        now, processes = self.arrivals[0], scale.processes
        while begun < len(self.arrivals) or running:
            while came < len(self.arrivals) and self.arrivals[came] <= now:
                came += 1
            while running and running[0] <= now:
                heapq.heappop(running)
            while begun < came and len(running) < processes:
                at = max(now, self.arrivals[begun])
                self.waits.append(at - self.arrivals[begun])
                heapq.heappush(running, at + self.runs[begun])
                ended.append((at + self.runs[begun], self.runs[begun]))
                begun += 1
            scale = scaled(scale, self.seen(now, came, begun, running, ended), self.scaling, now)
            starting = [at for at in starting if at > now][: max(0, scale.processes - processes)]
            starting += [now + START] * (scale.processes - processes - len(starting))
            now += EVERY
            processes = min(scale.processes, scale.processes - sum(at > now for at in starting))
            self.sizes.append(scale.processes)
        return self

    def seen(self, now, came, begun, running, ended):
        recent = [run for at, run in ended[-50:] if at <= now]
        return Demand(
            oldest_due=now - self.arrivals[begun] if begun < came else 0.0,
            due=came - begun,
            arrivals=(came - bisect_right(self.arrivals, now - 60, 0, came)) / 60,
            run_seconds=sum(recent) / len(recent) if recent else 0.0,
            running=len(running),
        )

    def late(self, seconds):
        return sum(wait > seconds for wait in self.waits) / len(self.waits)

    @property
    def changes(self):
        return sum(one != other for one, other in zip(self.sizes, self.sizes[1:], strict=False))


def departures(month, day):
    """Seconds of the day at which the flights of a day were to leave."""
    return flights()[str(month), str(day)]


@cache
def flights():
    """The instants by month and day."""
    by_day = {}
    for row in rows():
        moment = float(row["hour"]) * 3600 + float(row["minute"]) * 60
        by_day.setdefault((row["month"], row["day"]), []).append(moment)
    return by_day


#: A quiet day, an average one, the day before Thanksgiving and a day of storms.
@pytest.mark.slow
@pytest.mark.parametrize(("month", "day"), [(1, 19), (4, 10), (11, 27), (7, 22)])
def test_on_recorded_days_messages_start_in_time_with_fewer_processes(month, day):
    """The flights of one minute fall due together, as messages do that people schedule."""
    due = departures(month, day)
    elastic = Day(due, 20.0, DEFAULT).run()
    two = Day(due, 20.0, Scaling(lowest=2, highest=2, target=30.0, threads=1)).run()
    mean = sum(elastic.sizes) / len(elastic.sizes)

    assert len(elastic.waits) == len(due) > 600
    assert elastic.late(30) <= 0.02
    assert two.late(30) >= 0.1
    assert mean < ceil(0.5 * TO_EIGHT.highest)
    assert elastic.changes < len(elastic.sizes) / 100  # it does not flap


def test_without_patience_it_would_flap():
    due = departures(4, 10)
    hasty = Scaling(lowest=1, highest=8, target=30.0, threads=1, patience=0.0)

    assert Day(due, 20.0, hasty).run().changes > 2 * Day(due, 20.0, DEFAULT).run().changes
