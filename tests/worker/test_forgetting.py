"""What outlives its message is removed page by page, and a long round goes on where it stopped."""

from __future__ import annotations

import time
from datetime import timedelta
from functools import partial

import pytest
from django.db import OperationalError
from django.utils import timezone

from delayedq import chain
from delayedq.flows.sweeping import forget_flows
from delayedq.models import FinishedMessage, Flow, FlowMember, MessageProgress, RecordedStep
from delayedq.steps.store import forget_steps
from delayedq.store import sweeps
from delayedq.store.progress import forget_progress
from delayedq.store.sweeps import Swept
from delayedq.testing import run_due
from delayedq.worker.keeper import SweepRounds
from tests.app import tasks
from tests.flows.given import fails, run

DAY = timedelta(days=1)
GONE = 10**12


@pytest.fixture
def ended():
    """The ids of three messages in the history."""
    made = [int(tasks.remind.enqueue(number).id) for number in range(3)]
    run_due()
    return made


def step(message_id):
    moment = timezone.now() - DAY
    RecordedStep.objects.create(message_id=message_id, generation=0, name="a", result="1", recorded_at=moment)


def progress(message_id):
    moment = timezone.now() - DAY
    MessageProgress.objects.create(message_id=message_id, done=1, began_at=moment, written_at=moment)


@pytest.mark.parametrize(("forget", "make"), [(forget_steps, step), (forget_progress, progress)])
def test_a_look_reads_one_page_and_the_next_goes_on_after_it(store, ended, forget, make):
    for id_ in [*ended, GONE, GONE + 1]:
        make(id_)
    looks, after = [], None
    while not looks or after is not None:
        page = forget(store, after, limit=2)
        looks.append(page.removed)
        after = page.reached
    assert looks == [0, 1, 1]
    assert forget(store, None, limit=9) == (0, None)
    FinishedMessage.objects.all().delete()
    assert forget(store, None, limit=9) == (3, None)


def test_flows_that_stay_do_not_hold_up_those_behind_them(store):
    bad = [chain(fails(f"bad {number}")).enqueue() for number in range(2)]
    run()
    good = chain(tasks.nothing.s()).enqueue()
    run()
    first = forget_flows(store, -DAY, limit=2)
    assert first == (0, first.reached)
    assert forget_flows(store, -DAY, first.reached, limit=2) == (1, None)
    assert set(Flow.objects.values_list("id", flat=True)) == {flow.id for flow in bad}
    assert not Flow.objects.filter(id=good.id).exists()


def test_a_page_of_flows_may_end_among_those_that_ended_at_one_moment(store):
    flows = [chain(fails(f"bad {number}")).enqueue() for number in range(2)]
    flows += [chain(tasks.nothing.s()).enqueue() for _ in range(2)]
    run()
    Flow.objects.update(ended_at=timezone.now())
    pages, after = [], None
    while not pages or after is not None:
        page = forget_flows(store, -DAY, after, limit=1)
        pages.append(page.removed)
        after = page.reached
    assert pages == [0, 0, 1, 1, 0]
    assert set(Flow.objects.values_list("id", flat=True)) == {flow.id for flow in flows[:2]}


def test_many_members_are_deleted_in_parts(store, monkeypatch):
    monkeypatch.setattr("delayedq.flows.sweeping.CHUNK", 2)
    chain(*(tasks.nothing.si() for _ in range(5))).enqueue()
    run()
    assert forget_flows(store, -DAY) == (1, None)
    assert not FlowMember.objects.exists()


def test_a_round_goes_on_where_it_stopped_and_then_begins_anew(store, monkeypatch):
    looked = []

    def look(name, count, _, after):
        at = after or 0
        looked.append((name, at))
        return Swept(at, at + 1 if at + 1 < count else None)

    of_app = partial(look, "b", 1)
    monkeypatch.setattr(sweeps, "_SWEEPS", [])
    sweeps.register_sweep(partial(look, "a", 3))
    for _ in range(2):
        sweeps.register_sweep(of_app)
    rounds = SweepRounds(store)
    over = time.monotonic() - 1
    assert [rounds.go_on(over) for _ in range(4)] == [False, True, True, False]  # what it removed is pressing
    assert looked == [("a", 0), ("a", 1), ("a", 2), ("b", 0)]
    assert rounds.go_on(over + 3_600) is False
    assert looked[4:] == looked[:4]


def test_what_fails_holds_up_nothing_else(store, monkeypatch, caplog):
    looked = []

    def fails(_, after):
        looked.append("fails")
        raise OperationalError("no such table")

    def has_a_defect(_, after):
        looked.append("has a defect")
        raise ValueError("of an app")

    def works(_, after):
        looked.append("works")
        return Swept(0, None)

    monkeypatch.setattr(sweeps, "_SWEEPS", [fails, has_a_defect, works])
    rounds = SweepRounds(store)
    for _ in range(2):
        with pytest.raises(OperationalError):
            rounds.go_on(time.monotonic() + 3_600)
        assert rounds.go_on(time.monotonic() + 3_600) is False
    assert looked == ["fails", "has a defect", "works"] * 2
    assert [one.message for one in caplog.records] == [
        f"A sweep over rows of an app has failed: {name}." for name in [has_a_defect.__qualname__] * 2
    ]


def test_a_round_forgets_all_of_it(store, settings, ended):
    settings.DELAYEDQ = {"RETENTION": timedelta(microseconds=1)}
    chain(tasks.nothing.s()).enqueue()
    run()
    for make in (step, progress):
        make(GONE)
    assert SweepRounds(store).go_on(time.monotonic() + 3_600) is False
    left = [model.objects.count() for model in (Flow, FlowMember, RecordedStep, MessageProgress)]
    assert left == [0, 0, 0, 0]
