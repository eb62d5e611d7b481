"""A paused queue: workers that run already claim nothing from it any more, and everything else goes on."""

from __future__ import annotations

import signal
from datetime import timedelta

from delayedq.models import FinishedMessage, Message
from delayedq.operations.pauses import pause, resume
from delayedq.store.protocol import ClaimRequest
from delayedq.worker import poller
from tests.app import chores, tasks
from tests.store.given import message, together
from tests.worker.attempts import PATIENCE
from tests.worker.conftest import eventually
from tests.worker.test_poller import NEVER, watching


def offer(store, *queues):
    store.offer_many([message(queue=queue, scheduled_at=None) for queue in queues])


# What the poller makes of it


def test_a_pause_is_heard_without_any_poll(store):
    offer(store, "a", "b")
    with watching(store) as watch:
        assert watch.planned() == ["a0", "b0"]
        together(lambda: pause("a"))
        watch.until(lambda: watch.planned() == ["b0"])


def test_the_end_of_a_pause_is_heard_without_any_poll(store):
    offer(store, "a", "b")
    pause("a")
    with watching(store) as watch:
        assert watch.planned() == ["b0"]
        together(lambda: resume("a"))
        watch.until(lambda: watch.planned() == ["a0", "b0"])


def test_a_message_that_is_offered_to_a_paused_queue_makes_no_lane_due(store):
    pause("a")
    with watching(store) as watch:
        together(lambda: offer(store, "a"))
        together(lambda: offer(store, "b"))
        watch.until(lambda: watch.planned() == ["b0"])
        assert "a" not in {lane.queue for lane in watch.lanes.known()}


class Deaf:
    """A listener whose notifications are lost."""

    interval = 0.05
    proved = True
    heard_waiting = heard_stopped = False

    def begin_proof(self):
        """It is not noticed either."""

    def heard(self):
        return False

    def close(self):
        """It has no connection."""


def test_a_pause_that_nobody_heard_is_obeyed_all_the_same(store, monkeypatch):
    """Also where scans rest for long: over a million dead rows a scan takes a second."""
    monkeypatch.setattr(poller, "BUSY_INTERVAL", NEVER)
    offer(store, "a", "b")
    monkeypatch.setattr(store, "listener", Deaf)
    with watching(store) as watch:
        scans = watch.lanes.scans
        together(lambda: pause("a"))
        assert watch.planned() == ["a0", "b0"]
        claimed = store.claim(ClaimRequest(watch.lanes.plan(), 9, timedelta(minutes=1), "worker"))
        assert [one.queue for one in claimed] == ["b"]
        watch.lanes.advance(watch.lanes.plan(), claimed, 9)
        watch.woken.clear()
        watch.poller.ask()
        assert watch.woken.wait(PATIENCE)
        assert watch.lanes.due_in() is None  # and nobody tries in vain
        assert watch.lanes.scans == scans


def test_after_the_end_of_a_pause_nobody_hesitates(store):
    """What was claimed in vain was not locked."""
    offer(store, "a")
    with watching(store) as watch:
        for _ in range(5):
            watch.lanes.advance(watch.lanes.plan(), [], 1)
            watch.lanes.hint()
        together(lambda: pause("a"))
        watch.until(lambda: watch.lanes.due_in() is None)
        together(lambda: resume("a"))
        watch.until(lambda: watch.planned() == ["a0"])
        scans = watch.lanes.scans
        watch.until(lambda: watch.lanes.scans > scans)
        assert watch.planned() == ["a0"]


# What workers do


def test_draining_leaves_a_paused_queue_alone(store, drain):
    tasks.remind.using(queue_name="a").enqueue(1)
    tasks.remind.using(queue_name="b").enqueue(2)
    pause("a")
    drain()
    assert Message.objects.get().queue == "a"
    assert FinishedMessage.objects.get().queue == "b"
    resume("a")
    drain()
    assert not Message.objects.exists()


def test_a_worker_that_runs_obeys_a_pause_and_its_end(store, workers):
    """It would poll once an hour, long after this test has given up."""
    running = workers(poll=NEVER)
    remind_in("a")
    eventually(lambda: ended_in("a") == 1)

    pause("a")
    remind_in("b")  # nobody sees this lane without a scan
    eventually(lambda: ended_in("b") == 1)
    for number in range(20):
        remind_in("a", number)
    remind_in("c")
    eventually(lambda: ended_in("c") == 1)
    assert Message.objects.filter(queue="a", attempt=0, lease_token=None).count() == 20

    resume("a")
    eventually(lambda: ended_in("a") == 21)
    running.send(signal.SIGTERM)
    assert running.finish()[0] == 0


def test_what_runs_when_its_queue_is_paused_is_finished(store, workers):
    workers(poll=NEVER)
    chores.nap.using(queue_name="a").enqueue("napping", 1.0)
    eventually(lambda: Message.objects.leased().exists())
    pause("a")
    eventually(lambda: FinishedMessage.objects.succeeded().filter(queue="a").exists())


def remind_in(queue, number=0):
    tasks.remind.using(queue_name=queue).enqueue(number)


def ended_in(queue):
    return FinishedMessage.objects.filter(queue=queue).count()
