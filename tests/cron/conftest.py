from __future__ import annotations

import pytest

from tests.cron.given import Clock


@pytest.fixture
def clock():
    """For services and queues that take a clock."""
    return Clock()
