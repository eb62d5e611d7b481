"""Random tasks of steps, whose worker dies before or after any of its statements, in virtual time.

Whatever dies when: each step's row is there exactly once, sleeps last as long as they should, and the task ends.
DELAYEDQ_TEST_EXAMPLES=1000 tries as many others, at random.
"""

from __future__ import annotations

import os
from collections import Counter
from datetime import timedelta

from django.db import connections
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delayedq import current_message
from delayedq.core.lifecycle import AskedSnooze, Returned
from delayedq.models import FinishedMessage, Message, RecordedStep
from delayedq.store.protocol import ClaimRequest, Lane
from delayedq.testing import clock
from delayedq.worker.attempt import Attempt
from delayedq.worker.executor import execute
from delayedq.worker.shared_leases import SharedLeases
from delayedq.worker.transitions import decision, transition
from tests.app import tasks
from tests.app.models import Mark
from tests.worker.attempts import LEASE, WORKER
from tests.worker.stepping_attempts import NOW, play

EXAMPLES = os.environ.get("DELAYEDQ_TEST_EXAMPLES")
SETTINGS = settings(
    max_examples=int(EXAMPLES or 25),
    derandomize=EXAMPLES is None,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
DAY = timedelta(days=1)
#: What a task does, one after the other; and before or after which statements its worker dies, attempt by attempt.
SCRIPTS = st.lists(st.sampled_from(["step", "rows", "enqueue", "sleep"]), min_size=1, max_size=5)
DEATHS = st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=6)


class Died(BaseException):
    """The worker was killed."""


class Killer:
    """Passes statements on, until the one before or after which its worker dies: then no other."""

    def __init__(self, number, *, after):
        self._left, self._after, self.dead = number, after, False

    def __call__(self, execute, sql, parameters, many, context):
        if self.dead:
            raise Died
        self._left -= 1
        if self._left >= 0:
            return execute(sql, parameters, many, context)
        self.dead = True
        if self._after:
            execute(sql, parameters, many, context)
        raise Died


def body_of(script):
    def body():
        message = current_message()
        for number, what in enumerate(script):
            name = f"{number} {what}"
            if what == "sleep":
                message.sleep(DAY)
                continue
            assert message.step(what, _does(what), name) == name

    return body


def _does(what):
    def does(name):
        if what == "enqueue":
            tasks.nothing.schedule_at(NOW + 1000 * DAY, name)
        for _ in range(2 if what == "rows" else 1):
            Mark.objects.create(name=name)
        return name

    return does


def _run(store, attempt, killer):
    with connections[store.alias].execute_wrapper(killer):
        return execute(attempt)


def test_whatever_dies_when_each_step_is_done_exactly_once(store):
    @SETTINGS
    @given(SCRIPTS, DEATHS)
    def any_task(script, deaths):
        for model in (Message, FinishedMessage, RecordedStep, Mark):
            model.objects.all().delete()
        with clock(NOW) as frozen:
            play(body_of(script), max_attempts=100)
            _play_out(store, frozen, list(deaths))
        wanted = Counter({f"{n} {what}": 1 + (what == "rows") for n, what in enumerate(script) if what != "sleep"})
        assert Counter(Mark.objects.values_list("name", flat=True)) == wanted
        assert RecordedStep.objects.count() == len(script)
        assert Message.objects.count() == script.count("enqueue")
        ended = FinishedMessage.objects.get()
        assert (ended.outcome, ended.finished_at >= NOW + DAY * script.count("sleep")) == ("succeeded", True)

    any_task()


def _play_out(store, frozen, deaths):
    """Claim and run it, as often as it takes; the lease of a worker that died has to run out."""
    mine = Message.objects.filter(kind=tasks.play.module_path)
    while live := mine.first():
        frozen.move_to(max(frozen(), live.scheduled_at))
        (claimed,) = store.claim(ClaimRequest([Lane("default", 0)], 1, LEASE, WORKER))
        leases = SharedLeases(1)
        attempt = Attempt(claimed, tasks.play, WORKER, leases, leases.hold(claimed.id, claimed.token))
        number, after = deaths.pop(0) if deaths else (10_000, False)
        killer = Killer(number, after=after)
        ended = _run(store, attempt, killer)
        if killer.dead:
            frozen.advance(2 * LEASE)
            continue
        assert isinstance(ended.outcome, Returned | AskedSnooze), ended
        store.settle([transition(ended, decision(ended), ended.finished)], WORKER)
