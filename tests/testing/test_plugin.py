"""The pytest plugin: its fixtures, in a project of pytest's own, as users have them."""

from __future__ import annotations

import time

import pytest

from delayedq import pytest_plugin
from delayedq.models import Message
from tests.app import tasks


@pytest.mark.django_db
def test_the_fixtures_run_what_is_due(run_due, delayedq_clock):
    tasks.remind.schedule_at(delayedq_clock(), 7)
    delayedq_clock.advance(hours=1)
    assert [attempt.args for attempt in run_due()] == [[7]]


def run_it():
    result = tasks.remind.enqueue(7)
    deadline = time.monotonic() + 20
    while Message.objects.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    result.refresh()
    assert result.return_value == "7 at None"


@pytest.mark.django_db(transaction=True)
def test_a_worker_runs_what_is_committed(worker):
    run_it()


def test_a_worker_runs_what_is_committed_on_each_database(alias):
    """The fixture itself, without that of pytest-django, which knows the databases of the settings only."""
    running = pytest_plugin.served_by_a_worker()
    next(running)
    try:
        run_it()
    finally:
        assert list(running) == []
