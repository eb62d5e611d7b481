"""How often the poller scans, by a clock that only its scans and its sleep move."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from delayedq.worker import poller
from delayedq.worker.lanes import Lanes
from delayedq.worker.outage import Outage
from delayedq.worker.poller import Poller


class World:
    """A clock, and a store whose scans take as long as it is told; `scanned` is what they took in all."""

    alias = "default"

    def __init__(self):
        self.moment = self.began = 1_000.0
        self.scanned = self.takes = 0.0
        self.scans = self.looks = 0

    def monotonic(self):
        return self.moment

    def scan(self, queues):
        self.moment += self.takes
        self.scanned += self.takes
        self.scans += 1
        return []

    def scan_ahead(self, known, queues):
        """It takes a millisecond."""
        self.moment += 0.001
        self.looks += 1
        return []

    @property
    def database(self):
        """Nothing waits in channels."""
        return SimpleNamespace(rows=lambda statement: [(False, False, None)])

    @property
    def share(self):
        """Of the time, what scans took."""
        return self.scanned / (self.moment - self.began)


@pytest.fixture
def world(monkeypatch):
    world = World()
    monkeypatch.setattr(poller, "time", SimpleNamespace(monotonic=world.monotonic))
    return world


@pytest.fixture
def watching(world):
    """A poller that scans every millisecond if it may; its thread runs only to end."""
    watching = Poller(world, Lanes(), None, 0.001, lambda: None, Outage("test"))
    yield watching
    watching._stopping = True
    watching.start()
    watching.stop()


def rounds(world, watching, durations, *, asked=False):
    """It scans as soon as it may, and each scan takes another of these times."""
    for world.takes in durations:
        if asked:
            watching.ask_to_scan()
        world.moment = max(world.moment, watching._next_scan_at)
        watching._scan_or_peek()
    world.moment = watching._next_scan_at


@pytest.mark.parametrize("takes", [0.000_1, 0.01, 1.0, 60.0])
def test_periodic_scans_take_at_most_a_twentieth_of_the_time(world, watching, takes):
    rounds(world, watching, [takes] * 50)

    assert world.scanned == pytest.approx(50 * takes)
    assert world.share <= 0.05


def test_scans_that_take_longer_and_longer_do_so_too(world, watching):
    rounds(world, watching, [0.01 * 1.2**number for number in range(50)])

    assert world.share <= 0.05


def test_where_scans_are_long_offers_of_others_ask_for_no_more_of_them(world, watching):
    for _ in range(1000):
        world.takes = 0.1
        watching._plan_to_look(world.moment)
        world.moment = max(world.moment, min(watching._next_scan_at, watching._next_look_at))
        watching._scan_or_peek()

    assert world.scans > 1
    assert world.looks > 10 * world.scans
    assert world.share <= 0.05


def test_scans_that_are_requested_all_the_time_take_at_most_a_sixth(world, watching):
    rounds(world, watching, [0.1] * 50, asked=True)

    assert 0.05 < world.share <= 1 / 6
