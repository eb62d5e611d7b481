"""Exactly once: the effects of a message and its end commit together, or neither does (B16, B18)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta

import pytest
from django.db import Error, OperationalError, connections, transaction
from django.db.transaction import TransactionManagementError

from delayedq.core.backoff import Constant
from delayedq.exceptions import LeaseLost, QueueClosed
from delayedq.queue import Envelope
from delayedq.store.protocol import Finish
from tests.app.models import Mark
from tests.queue.given import Boom, boom, mark_and_boom
from tests.store.given import NOW, at, history, outcomes, together
from tests.worker.attempts import PATIENCE


@pytest.fixture
def queue(queue):
    queue.offer_or_update("a", 1, NOW)
    return queue


def effects():
    return list(Mark.objects.values_list("name", flat=True))


def test_the_effects_and_the_end_commit_together(queue):
    with queue.transaction() as envelope:
        Mark.objects.create(name=f"{envelope.key}{envelope.payload}")
        assert together(effects, queue.count) == [[], 0]
    assert (effects(), outcomes()) == (["a1"], ["succeeded"])


def test_nothing_due_is_a_body_without_an_envelope(queue):
    queue.drop_message("a")
    with queue.transaction() as envelope:
        assert envelope is None


def test_an_error_undoes_the_effects_and_keeps_the_message(queue):
    with pytest.raises(Boom), queue.transaction():
        mark_and_boom()

    assert (effects(), outcomes()) == ([], [])
    again = queue.try_poll()
    assert (again.payload, again.attempt) == (1, 2)
    again.acknowledge()
    assert json.loads(history().errors)[0]["exception"] == "tests.queue.given.Boom"


@pytest.mark.parametrize("backoff", [timedelta(seconds=5), Constant(timedelta(seconds=5))])
def test_after_an_error_the_message_waits_for_its_backoff(queue, clock, backoff):
    with pytest.raises(Boom), queue.transaction(backoff=backoff):
        boom()
    clock.move(4.999)
    assert queue.try_poll() is None
    clock.move(0.001)
    assert queue.try_poll().attempt == 2


def test_what_is_no_backoff_takes_no_message(queue):
    with pytest.raises(TypeError, match="backoff"), queue.transaction(backoff=5):
        pass
    assert queue.try_poll().attempt == 1


@pytest.mark.parametrize("delay", [timedelta(seconds=-1), 5])
def test_a_backoff_that_is_no_delay_shows_before_the_body_runs_and_keeps_the_message(queue, delay):
    with pytest.raises((TypeError, ValueError)), queue.transaction(backoff=lambda attempt: delay):
        Mark.objects.create(name="never")
    assert effects() == []
    assert queue.try_poll().attempt == 2


def test_a_backoff_that_fails_keeps_the_message(queue):
    with pytest.raises(Boom), queue.transaction(backoff=lambda attempt: boom()):
        Mark.objects.create(name="never")
    assert effects() == []
    assert queue.try_poll().attempt == 2


def test_after_its_last_attempt_the_message_is_a_dead_letter(make):
    queue = make(max_attempts=1)
    queue.offer_or_update("a", 1, NOW)
    with pytest.raises(Boom), queue.transaction():
        mark_and_boom()
    assert (effects(), outcomes(), queue.try_poll()) == ([], ["failed"], None)


def test_a_statement_that_failed_undoes_the_effects_also_if_its_error_was_swallowed(queue, alias):
    def swallow():
        Mark.objects.create(name="half")
        with suppress(Error), transaction.atomic(using=alias, savepoint=False):
            Mark(id=Mark.objects.get().id, name="twin").save(force_insert=True)

    with pytest.raises(Error), queue.transaction():
        swallow()
    assert effects() == []
    assert queue.try_poll().attempt == 2


def test_a_transaction_that_breaks_after_the_end_of_its_message_was_written_says_so(queue, alias):
    def acknowledge_and_break():
        with queue.transaction() as envelope:
            Mark.objects.create(name="half")
            envelope.acknowledge()
            transaction.set_rollback(True, using=alias)

    with pytest.raises(TransactionManagementError, match="failed; it is rolled back"):
        acknowledge_and_break()
    assert effects() == []
    assert queue.try_poll().attempt == 2


def test_an_end_that_is_undone_with_a_savepoint_is_written_again(queue, alias):
    with queue.transaction() as envelope:
        Mark.objects.create(name="whole")
        with suppress(Boom), transaction.atomic(using=alias):
            envelope.defer(NOW)
            boom()
    assert (effects(), outcomes(), queue.contains_message("a")) == (["whole"], ["succeeded"], False)


def test_what_fails_after_the_commit_undoes_nothing(queue, alias):
    with pytest.raises(Boom), queue.transaction() as envelope:
        transaction.on_commit(lambda: mark_and_boom("after"), using=alias)
    assert (envelope.answer, outcomes(), effects()) == ("acknowledged", ["succeeded"], ["after"])


def test_a_lost_lease_undoes_the_effects(queue, clock):
    late = queue.try_poll()
    clock.move(61)
    holder = queue.try_poll()

    with pytest.raises(LeaseLost), late.transaction():
        Mark.objects.create(name="half")
    assert effects() == []
    assert holder.acknowledge() == "acknowledged"


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"], indirect=True)
def test_a_lease_that_is_extended_in_time_holds_though_that_is_not_committed(queue, clock):
    with queue.transaction() as envelope:
        clock.move(59)
        assert envelope.extend(timedelta(seconds=60))
        clock.move(59)
        assert together(queue.try_poll) == [None]
    assert outcomes() == ["succeeded"]


def test_a_message_that_is_replaced_meanwhile_commits_and_is_delivered_once_more(queue):
    with queue.transaction():
        Mark.objects.create(name="first")
        queue.offer_or_update("a", 2, NOW)
    with queue.transaction() as envelope:
        Mark.objects.create(name=f"then {envelope.payload}")
    assert effects() == ["first", "then 2"]
    assert queue.try_poll() is None


def test_a_message_can_be_deferred_together_with_the_effects_of_a_step(queue, clock):
    with queue.transaction() as envelope:
        Mark.objects.create(name="step 1")
        envelope.defer(at(5), state=1)
    clock.move(5)
    with queue.transaction() as envelope:
        Mark.objects.create(name=f"step {envelope.state + 1}")
    assert effects() == ["step 1", "step 2"]
    assert queue.try_poll() is None


def test_a_deferral_is_undone_with_the_rest(queue, clock):
    def defer_and_fail():
        with queue.transaction() as envelope:
            envelope.defer(at(5), state=1)
            boom()

    with pytest.raises(Boom):
        defer_and_fail()
    again = queue.try_poll()
    assert (again.attempt, again.state) == (2, None)


def test_a_queue_that_is_closed_meanwhile_undoes_the_effects(queue, make):
    def mark_and_close():
        Mark.objects.create(name="half")
        queue.close()

    with pytest.raises(QueueClosed), queue.transaction():
        mark_and_close()
    assert effects() == []
    assert make().contains_message("a")


def test_within_a_transaction_it_is_refused_and_takes_nothing(queue, alias):
    with transaction.atomic(using=alias):
        with pytest.raises(RuntimeError, match="durable"), queue.transaction():
            pass
        assert queue.try_poll().attempt == 1


# A failure at each step


def fail_at_the_end(self, *args):
    raise OperationalError("the server went away")


def test_an_end_that_can_not_be_written_undoes_the_effects(queue, store, monkeypatch):
    def fail(transitions, *args):
        if isinstance(transitions[0], Finish):
            raise OperationalError("the server went away")
        return type(store).settle(store, transitions, *args)

    monkeypatch.setattr(store, "settle", fail)
    with pytest.raises(OperationalError), queue.transaction():
        Mark.objects.create(name="half")
    assert effects() == []
    assert queue.try_poll().attempt == 2


def test_a_commit_that_fails_undoes_the_effects(queue, alias, monkeypatch):
    commit = type(connections[alias]).commit

    def fail(self):
        monkeypatch.setattr(type(connections[alias]), "commit", commit)
        raise OperationalError("the server went away")

    def mark_and_cut_off():
        Mark.objects.create(name="half")
        monkeypatch.setattr(type(connections[alias]), "commit", fail)

    with pytest.raises(OperationalError), queue.transaction():
        mark_and_cut_off()
    assert effects() == []
    assert queue.try_poll().attempt == 2


def test_a_message_that_can_not_even_be_given_back_comes_back_when_its_lease_ends(queue, clock, monkeypatch):
    def cut_off_and_fail():
        with queue.transaction():
            broken.setattr(Envelope, "_settle", fail_at_the_end)
            boom()

    with monkeypatch.context() as broken, pytest.raises(Boom):
        cut_off_and_fail()
    assert queue.try_poll() is None
    clock.move(61)
    assert queue.try_poll().attempt == 2


DIE = """
import os, signal, sys
import django; django.setup()
from datetime import timedelta
from django.db import transaction
from delayedq import DelayedQueue
from tests.app.models import Mark

def die():
    print("dying", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

step, queue = sys.argv[1], DelayedQueue("contacts", lease=timedelta(seconds=60))
with queue.transaction() as envelope:
    if step == "before the effect":
        die()
    Mark.objects.create(name="effect")
    if step == "after the effect":
        die()
    if step == "after the end":
        envelope.acknowledge()
        die()
if step == "after the commit":
    die()
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", ["before the effect", "after the effect", "after the end", "after the commit"])
def test_a_process_that_is_killed_leaves_both_or_neither(make, environment, step):
    queue = make(clock=None)
    queue.offer_or_update("a", 1)
    died = subprocess.run(
        [sys.executable, "-c", DIE, step],
        env=environment,
        check=False,
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
    )

    assert (died.returncode, died.stdout) == (-signal.SIGKILL, "dying\n")
    assert queue.try_poll() is None, "the lease of the dead process holds"
    if step == "after the commit":
        assert (effects(), outcomes()) == (["effect"], ["succeeded"])
    else:
        assert effects() == []
        assert deliver_after_the_lease(make) == ["effect"]


def deliver_after_the_lease(make):
    """On a clock that is an hour ahead."""
    late = make(clock=lambda: make(clock=None).leases.store.now() + timedelta(hours=1))
    with late.transaction() as envelope:
        assert envelope.attempt == 2
        Mark.objects.create(name="effect")
    assert late.try_poll() is None
    return effects()
