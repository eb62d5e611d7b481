"""Bare queues and tasks share a table: no worker takes a bare message, and no task goes into a bare queue."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from delayedq.compat import InvalidTask
from tests.app.tasks import remind
from tests.store.given import NOW
from tests.worker.test_poller import watching


def test_a_worker_of_all_queues_sees_no_bare_one(queue, store):
    queue.offer_or_update("a", 1, NOW)
    remind.enqueue(7)
    with watching(store) as watch:
        assert watch.planned() == ["default0"]


def test_a_worker_is_not_told_to_serve_a_bare_queue():
    with pytest.raises(CommandError, match="bare queue"):
        call_command("run_workers", "--queues", "mail,contacts|json")


def test_a_task_has_no_bare_queue():
    with pytest.raises(InvalidTask, match="queue"):
        remind.using(queue_name="contacts|json")
