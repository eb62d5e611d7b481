"""What operators ask of worker processes: read with the heartbeat, forgotten with the process."""

from __future__ import annotations

import pytest

from delayedq.models import Worker
from delayedq.store import worker_registry
from delayedq.store.registry import WorkerCommand, WorkerState
from tests.store.given import NOW, at


def state(name="host:1", age=5.0):
    return WorkerState(name, "host", 1, 2, "", 60.0, age)


def registry(store, moment=NOW):
    return worker_registry(store.alias).at(moment)


@pytest.mark.parametrize("request_", list(WorkerCommand))
def test_a_heartbeat_brings_what_was_asked_until_it_is_taken_back(store, request_):
    assert registry(store).heartbeat([state(), state("host:2")]) == {}
    assert registry(store).ask("host:1", request_, "ann")
    assert registry(store, at(10)).heartbeat([state(age=15.0), state("host:2", 15.0)]) == {"host:1": request_}
    assert Worker.objects.get(name="host:1").asked_by == "ann"
    assert registry(store).ask("host:1", None)
    assert registry(store, at(20)).heartbeat([state(age=25.0)]) == {}


def test_a_process_that_is_not_registered_is_asked_nothing(store):
    assert not registry(store).ask("host:1", WorkerCommand.STOP)


def test_the_next_process_of_the_same_name_is_not_asked_what_the_last_one_was(store):
    registry(store).heartbeat([state()])
    registry(store).ask("host:1", WorkerCommand.STOP, "ann")
    assert registry(store, at(60)).heartbeat([state(age=1.0)]) == {}
    assert Worker.objects.get().asked == ""


def test_a_heartbeat_that_was_held_up_keeps_what_was_asked(store):
    """The start, which is reckoned back from it, comes after the heartbeat before."""
    registry(store).heartbeat([state(age=0.1)])
    registry(store).ask("host:1", WorkerCommand.STOP)
    assert registry(store, at(10)).heartbeat([state(age=9.0)], first=False) == {"host:1": WorkerCommand.STOP}


def test_what_other_code_has_written_there_asks_nothing(store):
    registry(store).heartbeat([state()])
    Worker.objects.update(asked="dance")
    assert registry(store, at(10)).heartbeat([state(age=15.0)]) == {}
