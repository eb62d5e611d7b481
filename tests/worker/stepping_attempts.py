"""For the tests of steps: messages whose task calls what a test wants, and attempts of them."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count

from delayedq.store.protocol import ClaimRequest, Lane
from delayedq.worker.attempt import Attempt
from delayedq.worker.executor import execute
from delayedq.worker.shared_leases import SharedLeases
from tests.app import tasks
from tests.app.models import Mark
from tests.worker.attempts import LEASE, WORKER

NOW = datetime(2026, 3, 8, 6, 55, tzinfo=UTC)

_names = (f"steps {number}" for number in count(1))


def marks():
    return sorted(Mark.objects.values_list("name", flat=True))


def play(body, *, task=tasks.play, enqueue=True, **options):
    """The name under which the task calls the body; by default a message of it is stored."""
    name = next(_names)
    tasks.bodies[name] = body
    if enqueue:
        task.using(**options).enqueue(name)
    return name


def claim_at(store, now):
    (claimed,) = store.at(now).claim(ClaimRequest([Lane("default", 0)], 1, LEASE, WORKER))
    return claimed


def attempt_at(store, body, claimed=None):
    """An attempt whose task calls the body: of a message keyed "a" that is stored now, or of this one."""
    name = play(body, enqueue=False)
    if claimed is None:
        store.at(NOW).offer(tasks.play.offer((name,), {}, when=NOW, key="a"))
        claimed = claim_at(store, NOW)
    claimed = claimed._replace(payload=tasks.play.offer((name,), {}, when=None).payload)
    leases = SharedLeases(1)
    return Attempt(claimed, tasks.play, WORKER, leases, leases.hold(claimed.id, claimed.token))


def run(attempt):
    return execute(attempt)
