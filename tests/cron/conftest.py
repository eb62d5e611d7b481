from __future__ import annotations

import pytest

from delayedq.cron.service import CronService
from tests.cron.given import KIND, Clock, make_offer
from tests.worker.conftest import drain, options  # noqa: F401  fixtures


@pytest.fixture
def clock():
    """For services and queues that take a clock."""
    return Clock()


@pytest.fixture
def cron(store, clock):
    return CronService(store, KIND, make_offer, clock)
