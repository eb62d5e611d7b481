"""Many schedules of the database made at once, in the caller's transaction: all or none."""

from __future__ import annotations

import pytest

from delayedq import schedules
from delayedq.exceptions import InvalidSchedule
from delayedq.models import CronSchedule, Message
from tests.app.tasks import mark
from tests.cron.given import placed
from tests.cron.test_cost import Counting
from tests.store.given import together, undone
from tests.test_schedules import HOURLY, NOW, beat, hour


@pytest.fixture
def now(store, monkeypatch):
    """A clock that a test sets."""
    moment = [NOW]
    monkeypatch.setattr(type(store), "now", lambda self: moment[0])
    return moment


def test_many_are_created_with_their_ticks(store, now):
    given = [{"name": f"digest {number}", "task": mark, **HOURLY, "args": [str(number)]} for number in range(1_100)]
    assert schedules.create_many(given) == 1_100

    assert placed() == [hour(16)] * 1_100
    assert schedules.get("digest 7") == {"task": mark.module_path, **HOURLY, "args": ["7"]}
    now[0] = hour(16)
    beat(store)
    assert placed("digest 7") == [hour(16), hour(17)]


def test_many_cost_few_statements(store, now, connection):
    given = [{"name": f"digest {number}", "task": mark, **HOURLY} for number in range(400)]
    assert Counting(connection).during(lambda: schedules.create_many(given)) <= 20


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"name": "taken"}, "There is a schedule 'taken' already"),
        ({"name": "coded"}, "There is a schedule 'coded' already"),
        ({"name": "digest 0"}, "The name 'digest 0' is given 2 times"),
        ({"cron": "61 * * * *"}, r"Schedule 'wrong'\['cron'\]"),
        ({"enabled": "no"}, "It is True or False, not 'no'"),
    ],
)
def test_of_many_all_or_none_are_created(store, now, settings, wrong, problem):
    settings.DELAYEDQ = {"CRON": {"coded": {"task": mark.module_path, **HOURLY}}}
    schedules.create("taken", mark, **HOURLY)
    given = [{"name": f"digest {number}", "task": mark, **HOURLY} for number in range(600)]
    with pytest.raises(InvalidSchedule, match=problem):
        schedules.create_many([*given, {"name": "wrong", "task": mark, **HOURLY, **wrong}])
    assert (CronSchedule.objects.count(), Message.objects.count()) == (1, 1)


@pytest.mark.parametrize("wrong", [{"name": "x"}, {"task": mark}, "x", None])
def test_each_of_many_has_a_name_and_a_task(store, wrong):
    with pytest.raises(InvalidSchedule, match="is a dict with 'name', 'task'"):
        schedules.create_many([wrong])


def test_some_of_many_may_be_disabled(store, now):
    schedules.create_many(
        [{"name": "on", "task": mark, **HOURLY}, {"name": "off", "task": mark, "enabled": False, **HOURLY}]
    )
    assert (placed("on"), placed("off")) == ([hour(16)], [])
    schedules.enable("off")
    assert placed("off") == [hour(16)]


def test_they_never_were_if_the_callers_transaction_rolls_back(store, now, alias):
    with undone(alias):
        schedules.create_many([{"name": "report", "task": mark, **HOURLY}])
    assert (CronSchedule.objects.count(), Message.objects.count()) == (0, 0)
    assert schedules.create_many([]) == 0


def test_of_two_who_create_the_same_at_once_one_is_refused(store):
    def create():
        try:
            schedules.create_many([{"name": name, "task": mark, **HOURLY} for name in ("one", "two")])
        except InvalidSchedule:
            return False
        return True

    assert sorted(together(create, create)) == [False, True]
    assert Message.objects.count() == 2
