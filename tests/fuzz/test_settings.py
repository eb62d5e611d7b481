"""Whatever stands in the settings, the system checks tell what is wrong with it, and nothing else raises."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from django.core.checks import CheckMessage
from django.core.checks.registry import registry
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from hypothesis import example, given
from hypothesis import strategies as st

from delayedq import Limit
from delayedq.conf import Settings, parse
from delayedq.cron.definitions import KEYS, read
from delayedq.tasks.options import read_options, read_queues
from tests.fuzz.effort import refused, texts, tried

CHECKS = [check for check in registry.registered_checks if check.__module__.startswith("delayedq")]
NAIVE = datetime(9999, 12, 31, 23, 59)  # noqa: DTZ001  as a project may write it
NAMES = [field.name for field in fields(Settings)]

atoms = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 2**31, 10**30, float("nan"), float("inf"), Decimal("NaN"), b"\xff", object, print])
    | st.sampled_from([timedelta(0), timedelta(microseconds=1), timedelta.max, timedelta.min, timedelta(days=36_501)])
    | st.sampled_from([date.min, NAIVE, NAIVE.replace(tzinfo=UTC), timedelta(seconds=1)])
    | st.sampled_from(["os.system", "..", ".a", "a.", "a..b", "delayedq.no", "delayedq.conf.Settings", "\x00.\x00"])
    | st.sampled_from(["s3://", "file://", "sc://a", "env:", "file:", "spark://a:b", "postgresql://", "host="])
    | texts
)
limits = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(["concurrency", "rate", "size", "on_full", "name", "weight", "x"], atoms)
)
schedules = st.fixed_dictionaries(
    {"task": st.sampled_from(["tests.app.tasks.nothing", "tests.app.tasks.remind"]) | atoms},
    optional={
        **dict.fromkeys(KEYS[3:], atoms | st.lists(atoms, max_size=2)),
        "cron": st.sampled_from(["* * * * *", "0 9 * * mon-fri", "0 0 29 2 *"]) | atoms,
        "every": st.just(timedelta(hours=1)) | atoms,
        "timezone": st.sampled_from(["Europe/London", "America", "posixrules", "../x"]) | atoms,
    },
)
hashable = texts | st.integers() | st.none() | st.tuples(texts)
given_values = (
    atoms
    | st.lists(atoms, max_size=3)
    | st.dictionaries(hashable, atoms | limits | schedules | st.just(Limit(concurrency=1)), max_size=3)
)
settings_dicts = st.dictionaries(st.sampled_from(NAMES) | hashable, given_values, max_size=3) | atoms


def told(found):
    """What the checks have said."""
    return [message for one in found for message in one]


@tried(150)
@example({"REDACT": ".."})
@example({"REDACT": ".a"})
@example({"METADATA_FROM": ["a..b"]})
@example({"STATUS_PERMISSION": "..", "AROUND_ATTEMPTS": ["\x00."]})
@given(settings_dicts)
def test_what_is_set_is_taken_or_a_check_names_it(value):
    with override_settings(DELAYEDQ=value):
        messages = told(check(app_configs=None, databases=None) for check in CHECKS)
        assert all(isinstance(message, CheckMessage) and str(message.msg).strip() for message in messages)
        told_of = "\n".join(message.msg for message in messages if message.id == "delayedq.E001")
        if not told_of:
            parse(value)
        with refused(ImproperlyConfigured, "DELAYEDQ", told_of):
            parse(value)


@tried(20)
@pytest.mark.parametrize("name", NAMES)
@given(given_values)
def test_an_error_names_the_setting(name, value):
    with refused(ImproperlyConfigured, f"DELAYEDQ[{name!r}]"):
        parse({name: value})


@tried(200)
@example("s", {"task": "tests.app.tasks.nothing", "every": timedelta(hours=1), "jitter": timedelta.max})
@example("s", {"task": "tests.app.tasks.nothing", "every": timedelta(hours=1), "starting_deadline": timedelta.max})
@given(texts, schedules)
def test_a_schedule_is_refused_with_its_path_or_places_its_ticks(name, value):
    with refused(ImproperlyConfigured, "DELAYEDQ['CRON']"):
        definition = read(name, value)
        for moment in (datetime(2026, 3, 8, tzinfo=UTC), datetime(9998, 12, 31, tzinfo=UTC)):
            if (nominal := definition.schedule.next_after(moment)) is not None:
                assert definition.tick(nominal).offer.scheduled_at >= nominal


@tried(150)
@given(
    st.dictionaries(st.sampled_from(["DATABASE", "MAX_ATTEMPTS", "BACKOFF", "TIMEOUT"]) | texts, atoms, max_size=4)
    | atoms,
    st.lists(atoms, max_size=3) | atoms,
)
def test_what_a_backend_is_given_is_taken_or_named(options, queues):
    _, problems = read_options("default", options)
    _, wrong = read_queues("default", queues)
    assert all(problem.startswith("TASKS['default']") for problem in [*problems, *wrong])
