"""`DELAYEDQ["CRON"]`: what it may hold, and how `manage.py check` finds what is wrong, without a database."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import SystemCheckError

from delayedq.cron.definitions import definitions, read
from delayedq.cron.expressions import Cron, Every
from tests.cron.given import DAILY, HOURLY

TASK = "tests.app.tasks.mark"
GOOD = {"task": TASK, "cron": "30 2 * * *", "args": ["x"]}


def cron_errors():
    return [message.msg for message in run_checks() if message.id == "delayedq.E004"]


def test_the_defaults(settings):
    settings.DELAYEDQ = {"CRON": {"report": GOOD}}
    (definition,) = definitions().values()

    assert isinstance(definition.schedule, Cron)
    assert definition.schedule.zone.key == settings.TIME_ZONE
    assert (definition.misfire, definition.starting_deadline, definition.enabled) == ("once", None, True)
    assert (definition.offer.queue, definition.offer.priority) == ("default", 0)


def test_a_period(settings):
    settings.DELAYEDQ = {"CRON": {"sweep": {"task": TASK, "every": timedelta(minutes=15), "args": ["x"]}}}

    assert definitions()["sweep"].schedule == Every(timedelta(minutes=15))


def test_what_was_read_is_not_read_again_until_the_settings_change(settings):
    """10,000 schedules take seconds: the check, the supervisor and its workers share them."""
    settings.DELAYEDQ = {"CRON": {"report": GOOD}}
    first = definitions()["report"]
    assert not cron_errors()
    assert definitions()["report"] is first
    settings.TIME_ZONE = "Asia/Kathmandu"
    assert definitions()["report"].schedule.zone.key == "Asia/Kathmandu"
    settings.DELAYEDQ = {"CRON": {"report": {**GOOD, "timezone": "UTC"}}}
    assert definitions()["report"].schedule.zone.key == "UTC"


def test_the_hash_is_that_of_what_makes_the_messages():
    one = read("a", DAILY)
    assert read("b", {**DAILY, "misfire": "all", "starting_deadline": timedelta(1), "enabled": False}).config_hash == (
        one.config_hash
    )
    assert len({one.config_hash, read("a", HOURLY).config_hash, read("a", {**DAILY, "priority": 1}).config_hash}) == 3


def test_a_hashed_minute_follows_the_name():
    def minutes(name):
        return read(name, {**GOOD, "cron": "H 2 * * *"}).schedule

    assert minutes("a") == minutes("a")
    assert len({minutes(name) for name in "abcdefgh"}) > 1


BAD = [
    ({"task": "nowhere.at_all"}, "['task']: No task is registered as 'nowhere.at_all'"),
    ({"task": None}, "['task']"),
    ({"task": ["x"]}, "['task']"),
    ({"cron": ""}, "['cron']"),
    ({"cron": None}, "['cron']"),
    ({"cron": "61 * * * *"}, "['cron']"),
    ({"cron": "0 0 30 2 *"}, "['cron']"),
    ({"cron": "0 0 * *"}, "['cron']"),
    ({"cron": "0 0 1 1 * 0 2030"}, "['cron']"),
    ({"timezone": "Europe/Nowhere"}, "['timezone']"),
    ({"timezone": ""}, "['timezone']"),
    ({"timezone": 2}, "['timezone']"),
    ({"args": "abc"}, "['args']: It is a list"),
    ({"args": ["x"] * 9}, "['args']: mark: too many positional arguments"),
    ({"args": [], "kwargs": {}}, "['args']: mark: missing a required argument: 'name'"),
    ({"kwargs": ["x"]}, "['kwargs']: It is a dict"),
    ({"kwargs": {"value": 1j}}, "['kwargs']"),
    ({"kwargs": {"other": 1}}, "['kwargs']: mark: got an unexpected keyword argument 'other'"),
    ({"queue_name": "nope"}, "['queue_name']"),
    ({"priority": 1000}, "['priority']"),
    ({"misfire": "never"}, "['misfire']: It is one of 'once', 'skip', 'all', not 'never'."),
    ({"misfire": "onec"}, "not 'onec'. Did you mean 'once'?"),
    ({"overlap": True}, "['overlap']: It is one of 'allow', 'skip', 'wait', not True."),
    ({"priority": True}, "['priority']: It is a whole number from -100 to 100, not True."),
    ({"priority": 1.0}, "['priority']: It is a whole number from -100 to 100, not 1.0."),
    ({"priority": "high"}, "['priority']: It is a whole number from -100 to 100, not 'high'."),
    ({"queue_name": "defualt"}, "is one of default, not 'defualt'. Did you mean 'default'?"),
    ({"jitter": 5}, "['jitter']: It is a timedelta over zero"),
    ({"max_runs": 0}, "['max_runs']: It is a whole number from 1 to"),
    ({"start": "2026"}, "['start']: The start of a schedule is an aware datetime in whole seconds"),
    ({"task": "tests.app.tasks.marc"}, "Did you mean 'tests.app.tasks.mark'?"),
    ({"cron": "*/90 * * * *"}, "a step of 90 is larger than its range"),
    ({"anchor": None}, "'anchor' is what 'every' counts from"),
    ({"starting_deadline": timedelta()}, "['starting_deadline']: It is a timedelta over zero"),
    ({"starting_deadline": 60}, "['starting_deadline']"),
    ({"enabled": "no"}, "['enabled']: It is True or False"),
    ({"crn": "* * * * *"}, "'crn' is unknown; known are task, cron, every"),
    ({"every": timedelta(1)}, "either 'cron' or 'every'"),
]


@pytest.mark.parametrize(("change", "problem"), BAD, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_what_is_wrong_is_told_with_its_path(settings, change, problem):
    settings.TASKS = {"default": {"BACKEND": "delayedq.backend.DelayedQBackend", "QUEUES": ["default"]}}
    settings.DELAYEDQ = {"CRON": {"good": GOOD, "bad one": {**GOOD, **change}}}

    (error,) = cron_errors()
    assert error.startswith("DELAYEDQ['CRON']['bad one']")
    assert problem in error
    with pytest.raises(SystemCheckError, match="bad one"):
        call_command("check")


@pytest.mark.parametrize("every", [timedelta(), timedelta(seconds=-1), 60, "1h", None], ids=str)
def test_a_wrong_period_is_told_with_its_path(settings, every):
    settings.DELAYEDQ = {"CRON": {"sweep": {"task": TASK, "every": every, "args": ["x"]}}}

    (error,) = cron_errors()
    assert error.startswith("DELAYEDQ['CRON']['sweep']['every']: ")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("", GOOD),
        ("  ", GOOD),
        (7, GOOD),
        ("x" * 200, GOOD),
        ("nul\0", GOOD),
        ("a", "daily"),
        ("a", None),
        ("a", {}),
        ("a", {"cron": "* * * * *"}),
        ("a", {"task": TASK, "every": timedelta(1), "args": ["x"], "timezone": "UTC"}),
    ],
    ids=repr,
)
def test_a_wrong_name_or_shape_is_told(settings, name, given):
    settings.DELAYEDQ = {"CRON": {name: given}}

    (error,) = cron_errors()
    assert error.startswith(f"DELAYEDQ['CRON'][{name!r}]: ")
    with pytest.raises(ImproperlyConfigured):
        definitions()


@pytest.mark.parametrize("cron", [[], "x", None])
def test_cron_itself_must_be_a_dict(settings, cron):
    settings.DELAYEDQ = {"CRON": cron}

    assert [message.id for message in run_checks() if message.id.startswith("delayedq.E")] == ["delayedq.E001"]


@pytest.mark.parametrize(
    ("expression", "warned"),
    [
        ("0 0 12 * * *", True),
        ("*/5 * * * * *", True),
        ("* * * * * *", False),
        ("0 0 12 * * 0", False),
        ("0 12 * * *", False),
        ("0 12 * * * */10", False),
    ],
)
def test_six_fields_that_look_like_those_of_quartz_are_warned_of(settings, expression, warned):
    settings.DELAYEDQ = {"CRON": {"noon": {**GOOD, "cron": expression}}}

    found = [message for message in run_checks() if message.id == "delayedq.W008"]
    assert bool(found) == warned
    assert not warned or "The second is the last field here" in found[0].hint
