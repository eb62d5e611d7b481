"""A transaction that re-schedules a running message and stays open for ten leases: no second attempt runs beside it."""

from __future__ import annotations

import signal
import time

import pytest
from django.db import transaction
from django.utils import timezone

from delayedq.models import FinishedMessage, Message
from tests.app import chores
from tests.worker.conftest import eventually

pytestmark = pytest.mark.slow

LEASE = 1.5


def test_a_replacement_never_runs_beside_the_run_it_replaces(workers, alias, tmp_path):
    log = tmp_path / "log"
    log.touch()
    chores.log_in_file.schedule_at(timezone.now(), str(log), 12 * LEASE, key="long")
    both = [workers("--lease", str(LEASE), "--threads", "1", poll=0.1) for _ in range(2)]
    eventually(lambda: log.read_text().startswith("began"))
    with transaction.atomic(using=alias):
        chores.log_in_file.schedule_at(timezone.now(), str(log), 0.0, key="long")
        time.sleep(10 * LEASE)
    eventually(lambda: FinishedMessage.objects.count() == 2 and not Message.objects.exists())
    for one in both:
        one.send(signal.SIGTERM)
        code, output = one.finish()
        assert code == 0, output
    assert [line.split()[0] for line in log.read_text().splitlines()] == ["began", "ended"] * 2
    ended = FinishedMessage.objects.order_by("finished_at").values_list("outcome", "attempts")
    assert list(ended) == [("superseded", 1), ("succeeded", 1)]
