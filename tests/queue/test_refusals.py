"""Wrong arguments of polls: a named error at the call, and nothing is claimed."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from delayedq.exceptions import InvalidQueue
from tests.store.given import NOW


@pytest.fixture
def queue(queue):
    queue.offer_or_update("a", 1, NOW)
    yield queue
    assert queue.try_poll().attempt == 1


@pytest.mark.parametrize("timeout", [5, 0, "a minute", True, 1.5])
def test_what_is_no_timeout_is_refused(queue, timeout):
    with pytest.raises(InvalidQueue, match="timeout of a poll is a timedelta"):
        queue.poll(timeout=timeout)
    with pytest.raises(InvalidQueue, match="timeout of a poll is a timedelta"):
        asyncio.run(queue.apoll(timeout=timeout))


@pytest.mark.parametrize("limit", [None, "3", True, 1.5, 2**63, timedelta(1)])
def test_what_is_no_limit_is_refused(queue, limit):
    with pytest.raises(InvalidQueue, match="limit of a poll is a whole number"):
        queue.try_poll_many(limit)


def test_the_largest_limit_and_the_longest_timeout_are_allowed(queue):
    queue.poll(timeout=timedelta.max).release()
    assert queue.poll(timeout=timedelta.min).attempt == 1
    assert len(queue.try_poll_many(2**63 - 1)) == 0
    queue.offer_or_update("b", 1, NOW)
    assert queue.try_poll_many(2**63 - 1).payload == [1]
    queue.drop_message("a")
    queue.offer_or_update("a", 1, NOW)
