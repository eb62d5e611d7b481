"""A day of 50 people in virtual time, beside a handler that gets better: what the desk does and says, by closed forms.

Cases come at random, and a person needs a random time for each (M/M/50, if people decide all). Who is free takes the
next one. In each third of the day the handler is right more often; what it may decide follows from the comparisons.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush, heapreplace
from itertools import count, pairwise
from math import sqrt
from random import Random

import pytest
from django.db import models

from delayedq import desk
from delayedq.core.scaling import Traffic, chance_to_wait
from delayedq.desk import figures, trend
from delayedq.desk.agreement import WINDOW, Agreement, drawn
from delayedq.desk.models import DeskQueue, Item
from delayedq.desk.visits import measured
from delayedq.testing import clock, run_due
from tests.desk.given import ALL, person

pytestmark = pytest.mark.django_db
START = datetime(2026, 3, 2, 9, tzinfo=UTC)
PEOPLE, HOURS, PER_HOUR, MINUTES = 50, 5, 100, 45  # more than they manage without the handler
REQUIRED, BLIND = 0.9, 0.1
RIGHT = (0.5, 0.98, 1.0)


@desk.desk_task(queue_name="claims", mode="automatic", required=REQUIRED, blind=BLIND, hold=timedelta(days=1))
def claim(number, handler_is_right):
    """People say the number."""
    return number if handler_is_right else -1


def starts(arrivals, lengths, servers):
    """When each begins, if those who are free take what came first (Kiefer and Wolfowitz)."""
    free = [0.0] * servers
    for arrival, length in zip(arrivals, lengths, strict=True):
        start = max(arrival, free[0])
        heapreplace(free, start + length)
        yield start


class Day:
    """The events of the day, in their order, and what the desk is told of them."""

    def __init__(self):
        self.random, self.people = Random(22), [person(f"p{number}", *ALL) for number in range(PEOPLE)]
        self.events, self.numbers, self.free, self.lengths = [], count(), deque(self.people), []
        self.expected, self.automated, self.waiting, self.compared = [], 0, 0, []
        moment = 0
        while (moment := moment + round(self.random.expovariate(PER_HOUR / 3600)) + 1) < HOURS * 3600:
            self.at(moment, None, None)

    def at(self, second, who, item):
        heappush(self.events, (second, next(self.numbers), who, item))

    def run(self):
        with clock(START) as time:
            while self.events:
                second, _, who, item = heappop(self.events)
                time.move_to(START + timedelta(seconds=second))
                self.arrive(second) if who is None else self.decide(who, item)
                self.work(second)
            return time()

    def arrive(self, second):
        """A case comes; the brake lets the handler decide it as often as its last comparisons allow."""
        is_right = self.random.random() < RIGHT[3 * second // (HOURS * 3600)]
        last = self.compared[-WINDOW:]
        share = min(Agreement(sum(last), len(last)).allowed(REQUIRED), 1 - BLIND)
        number = int(claim.enqueue(second, is_right).id)
        run_due()
        self.expected.append(share)
        is_automated = drawn(number, "people") < share
        self.automated += is_automated
        self.waiting += not is_automated

    def work(self, second):
        while self.free and self.waiting:
            item, self.waiting = desk.take_next(self.free[0], "claims"), self.waiting - 1
            length = round(self.random.expovariate(1 / (60 * MINUTES))) + 1
            self.lengths.append(length)
            self.at(second + length, self.free.popleft(), item)

    def decide(self, who, item):
        number = Item.objects.get(pk=item.pk).proposal
        right = (item.opened_at - START) // timedelta(seconds=1)
        item.finish(right, by=who)
        self.compared.append(number == str(right))
        self.free.append(who)


@pytest.fixture(scope="module")
def closed_forms():
    """The recursion by which the day is judged has the waits that Erlang's formula says, over 200,000 cases."""
    random, moment, cases = Random(1), 0.0, 200_000
    traffic = Traffic(60 / 3600, 60 * MINUTES)
    arrivals = [moment := moment + random.expovariate(traffic.rate) for _ in range(cases)]
    lengths = [random.expovariate(1 / traffic.run_seconds) for _ in range(cases)]
    waits = [start - arrival for start, arrival in zip(starts(arrivals, lengths, PEOPLE), arrivals, strict=True)]
    assert sum(wait > 0 for wait in waits) / cases == pytest.approx(chance_to_wait(PEOPLE, traffic.load), rel=0.1)
    assert sum(waits) / cases == pytest.approx(traffic.mean_wait(PEOPLE), rel=0.15)


@pytest.mark.slow
@pytest.mark.usefixtures("closed_forms")
def test_the_figures_of_a_day_are_those_of_closed_forms():
    DeskQueue.objects.create(queue="claims", capacity=1)
    day = Day()
    end = day.run() + timedelta(seconds=1)
    total = len(day.expected)
    by_people = list(Item.objects.filter(is_automated=False).order_by("pk"))

    # Each waits as long as in a queue with 50 servers, to the second, and nobody ever has two.
    opened = [(item.opened_at - START).total_seconds() for item in by_people]
    taken = [(item.assigned_at - START).total_seconds() for item in by_people]
    assert taken == list(starts(opened, day.lengths, PEOPLE))
    assert sum(item.assigned_at > item.opened_at for item in by_people) > 10
    for who in day.people:
        mine = sorted((item.assigned_at, item.decided_at) for item in by_people if item.decided_by_id == who.pk)
        assert all(before[1] <= after[0] for before, after in pairwise(mine))

    # The handler decides what the interval allows, that is the expected number within four standard deviations,
    automated = total - len(by_people)
    assert automated == day.automated
    spread = sqrt(sum(share * (1 - share) for share in day.expected))
    assert abs(automated - sum(day.expected)) < 4 * spread
    # more from third to third, and no more than one in ten of all otherwise than people would.
    thirds = [Item.objects.filter(opened_at__gte=begin, opened_at__lt=begin + THIRD) for begin in BEGINS]
    shares = [items.filter(is_automated=True).count() / items.count() for items in thirds]
    assert 2 * shares[0] < shares[2]
    assert shares == sorted(shares)
    assert Item.objects.filter(is_automated=True, decision="-1").count() <= (1 - REQUIRED) * total

    assert_figures(day, end, total, automated)


def assert_figures(day, end, total, automated):
    """The pages say so."""
    kind, by_people = claim.module_path, total - automated
    (all_day,) = trend.by_task(Item.objects.all(), end, step=timedelta(hours=24), count=1)[kind]
    assert (all_day.done, all_day.automated, all_day.by_people) == (total, automated, by_people)
    assert (all_day.agreed, all_day.compared) == (sum(day.compared), len(day.compared))
    assert all_day.seconds == sum(day.lengths)
    mean = sum(day.lengths) / len(day.lengths)
    assert all_day.saved.total_seconds() == pytest.approx(automated * mean)
    assert abs(mean - 60 * MINUTES) < 4 * 60 * MINUTES / sqrt(len(day.lengths))
    last = day.compared[-WINDOW:]
    assert measured(kind) == Agreement(sum(last), len(last))
    (queue,) = figures.by_queue(Item.objects.all(), end)
    assert (queue.done, queue.opened.number, queue.open.number) == (total, total, 0)
    people = figures.by_person(Item.objects.all(), end)
    assert sum(one.done for one in people) == by_people
    assert Item.objects.aggregate(most=models.Max("assignment"))["most"] <= 3


THIRD = timedelta(hours=HOURS) / 3
BEGINS = [START, START + THIRD, START + 2 * THIRD]
