"""A queue of the test's database, whose time moves only when the test moves it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delayedq import DelayedQueue
from tests.store.given import NOW


class Clock:
    def __init__(self):
        self.moment = NOW

    def __call__(self):
        return self.moment

    def move(self, seconds):
        self.moment += timedelta(seconds=seconds)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make(alias, clock):
    """Makes queues of the database and the clock of the test, with a lease of 60 s."""

    def make(name="contacts", *args, **options):
        return DelayedQueue(name, *args, **{"clock": clock, "lease": timedelta(seconds=60)} | options)

    return make


@pytest.fixture
def queue(make):
    return make()
