"""What is refused of channels and limits: where they are defined, at the call, live, and by `manage.py check`.

Each refusal names what was given, and stores nothing.
"""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from delayedq import Limit, Rate, limits, task
from delayedq.checks import check_limits, check_settings
from delayedq.compat import InvalidTask
from delayedq.conf import get_settings
from delayedq.exceptions import InvalidLimit, InvalidMessage
from delayedq.limits.declared import rules_of
from delayedq.models import ChannelMessage, ChannelNotice, LimitState, Message
from delayedq.tasks import registered
from tests.app import tasks

pytestmark = pytest.mark.usefixtures("registry")
SECOND = timedelta(seconds=1)
LONG, NUL = "x" * 201, "a\0b"
#: No number of messages.
NUMBERS = [0, -1, 1.5, 1.0, True, "2", 2**31, math.nan, math.inf]


def send(customer, url=None):
    """The function of the tasks that are defined here."""


def other(customer):
    """That of another task."""


def nothing_is_stored():
    return not any(model.objects.exists() for model in (Message, ChannelMessage, ChannelNotice, LimitState))


# Where they are defined


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("what", ["concurrency", "size", "share"])
def test_a_number_that_is_none(what, number):
    said = rf"{what} of a Limit is a whole number of at least 1 and at most 2,147,483,647, not .*; None is no "
    with pytest.raises(ValueError, match=said):
        Limit(**{what: number})


def test_a_concurrency_of_zero_says_how_nothing_starts():
    with pytest.raises(ValueError, match=r"delayedq\.limits\.pause\(\) lets nothing start"):
        Limit(concurrency=0)


@pytest.mark.parametrize(
    "terms",
    [
        *[(number, SECOND) for number in NUMBERS],
        *[(1, per) for per in (timedelta(), -SECOND, 1, 0.5, True, math.nan, None)],
        *[(1, SECOND, number) for number in NUMBERS],
    ],
)
def test_a_rate_that_is_none(terms):
    with pytest.raises(ValueError, match="a Rate"):
        Rate(*terms)


@pytest.mark.parametrize("name", [LONG, NUL, "", " ", 7])
def test_a_name_of_a_shared_limit_that_is_none(name):
    with pytest.raises(ValueError, match="the name of a shared Limit is a text of 1 to 200 characters, not"):
        Limit(name=name, concurrency=1)


@pytest.mark.parametrize("name", [LONG, NUL, 7])
def test_a_weight_of_a_channel_that_there_can_not_be(name):
    with pytest.raises(ValueError, match="a channel is a text of at most 200 characters"):
        Limit(weight={name: 2})


def test_an_argument_that_the_function_lacks_registers_no_task():
    before = dict(registered)
    with pytest.raises(InvalidTask, match=r"\(customer, url\) or a function of them, not 'nobody'"):
        task(channel="nobody")(send)
    assert registered == before


def test_a_function_that_can_not_be_asked_at_once():
    async def ask(customer, url=None):
        return "acme"

    with pytest.raises(InvalidTask, match="channel is a sync function"):
        task(channel=ask)(send)


def test_one_task_that_defines_a_shared_limit_twice():
    with pytest.raises(InvalidTask, match="limit has two Limits with the name 'the-mill'"):
        task(limit=[Limit(name="the-mill", concurrency=1), Limit(name="the-mill", size=1)])(send)


@pytest.mark.parametrize("second", [{"concurrency": 3}, {"rate": Rate(5, 2 * SECOND)}, {"size": 1}, {}])
def test_two_definitions_of_one_shared_limit_that_differ(second):
    task(limit=Limit(name="the-mill", rate=Rate(5, SECOND)))(send)
    with pytest.raises(InvalidTask, match=r"the shared limit 'the-mill' is defined differently by send: Limit\("):
        task(limit=Limit(name="the-mill", **second))(other)
    assert [one.func for one in registered.values() if "the-mill" in repr(one.limit)] == [send]


# At the call


@pytest.mark.parametrize("name", [LONG, NUL, 7])
def test_a_channel_that_is_none(store, name):
    with pytest.raises((InvalidMessage, InvalidTask), match="channel"):
        tasks.deliver.using(channel=name).enqueue("acme")
    assert nothing_is_stored()


@pytest.mark.parametrize("name", [LONG, NUL])
@pytest.mark.parametrize(
    "call",
    [
        tasks.deliver.enqueue,
        lambda name: tasks.deliver.schedule_in(SECOND, name, key="k"),
        lambda name: tasks.deliver.enqueue_many([(("acme",), {}), ((name,), {})]),
        lambda name: tasks.deliver.enqueue_bulk([(("acme",), {}), ((name,), {})]),
    ],
    ids=["enqueue", "schedule_in", "enqueue_many", "enqueue_bulk"],
)
def test_an_argument_that_makes_no_channel(store, call, name):
    with pytest.raises(InvalidMessage, match="a channel is a text of at most 200 characters"):
        call(name)
    assert nothing_is_stored()


def test_a_call_without_the_argument_that_names_its_channel(store):
    with pytest.raises(Exception, match="customer"):
        tasks.deliver.enqueue()
    assert nothing_is_stored()


class Customer:
    pk = None


def fails(customer, url=None):
    raise LookupError(customer)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (fails, "its channel can't be found: LookupError: acme"),
        (lambda: "acme", "its channel can't be found: TypeError"),
        (lambda customer, url=None: None, "its channel can't be made from None: it takes a text, a number"),
        (lambda customer, url=None: object(), "its channel can't be made from <object object at"),
        (lambda customer, url=None: {customer}, r"its channel can't be made from \{'acme'\}"),
        (lambda customer, url=None: Customer(), "or a saved model instance"),
        (lambda customer, url=None: LONG, "a channel is a text of at most 200 characters"),
        (lambda customer, url=None: NUL, "a channel is a text of at most 200 characters, not 'a"),
    ],
)
def test_a_function_that_makes_no_channel(store, function, said):
    with pytest.raises(InvalidMessage, match=said):
        task(channel=function)(send).enqueue("acme")
    assert nothing_is_stored()


@pytest.mark.parametrize("value", [["acme"], {"id": 7}])
def test_an_argument_that_is_no_name(store, value):
    with pytest.raises(InvalidMessage, match="its channel can't be made from"):
        tasks.deliver.enqueue(value)
    assert nothing_is_stored()


# Live


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *[
            ({what: number}, f"{what} of a Limit is a whole number")
            for what in ("concurrency", "size")
            for number in NUMBERS[::3]
        ],
        ({"rate": 5}, r"rate of a Limit is a Rate, such as Rate\(5, per=timedelta\(minutes=1\)\), not 5"),
        ({"weight": 2}, "name one of 'webhooks' by channel="),
    ],
)
def test_a_live_limit_that_is_none(store, given, said):
    with pytest.raises(InvalidLimit, match=said):
        limits.set("webhooks", **given)
    assert nothing_is_stored()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *[({"share": number}, "share of a Limit is a whole number") for number in NUMBERS[::3]],
        *[({"weight": number}, "weight of a Limit is from") for number in (0, -1, True, "2", math.nan, math.inf)],
        ({"weight": {"acme": 2}}, "weight of one channel is a number"),
        ({"concurrency": 0}, "concurrency of a Limit is a whole number"),
    ],
)
def test_a_live_limit_of_a_channel_with_wrong_terms(store, given, said):
    with pytest.raises(InvalidLimit, match=said):
        limits.set("webhooks", channel="acme", **given)
    assert nothing_is_stored()


@pytest.mark.parametrize("verb", [limits.set, limits.pause, limits.resume, limits.clear])
@pytest.mark.parametrize("name", [LONG, NUL])
def test_a_live_limit_of_a_channel_that_is_none(store, verb, name):
    terms = {"concurrency": 1} if verb is limits.set else {}
    with pytest.raises(InvalidMessage, match="a channel is a text"):
        verb("webhooks", channel=name, **terms)
    assert nothing_is_stored()


# In the settings


@pytest.mark.parametrize(
    ("name", "terms"),
    [
        *[("webhooks", {what: number}) for what in ("concurrency", "size") for number in NUMBERS],
        ("webhooks", {"rate": 5}),
        ("webhooks", {"weight": 2}),
        ("webhooks", {"sizes": 1}),
        ("webhooks", {"size": 1, "on_full": "wait"}),
        ("webhooks", 7),
        ("webhooks", Limit(name="other", concurrency=1)),
        (LONG, {"concurrency": 1}),
        (NUL, {"concurrency": 1}),
        ("", {"concurrency": 1}),
        (7, {"concurrency": 1}),
    ],
)
def test_a_wrong_definition_in_the_settings_is_an_error_of_the_check(settings, name, terms):
    settings.DELAYEDQ = {"LIMITS": {name: terms}}
    (error,) = check_settings()
    assert error.id == "delayedq.E001"
    assert error.msg.startswith(f"DELAYEDQ['LIMITS'][{name!r}]: ")


@pytest.mark.parametrize("terms", [None, 7, "x", []], ids=repr)
def test_terms_in_the_settings_that_are_no_limit_say_what_one_is(settings, terms):
    settings.DELAYEDQ = {"LIMITS": {"webhooks": terms}}
    (error,) = check_settings()
    assert f"['webhooks']: a limit is a Limit, or a dict of its terms, not {terms!r}; it has conc" in error.msg


def test_right_definitions_in_the_settings_are_none(settings):
    named = Limit(name="the-press", concurrency=1)
    settings.DELAYEDQ = {"LIMITS": {"webhooks": {"concurrency": 1}, "the-press": named, "a.b": Limit(size=2)}}
    assert check_settings() == []


def test_the_settings_say_more_than_the_definition_of_a_shared_limit(settings):
    settings.DELAYEDQ = {"LIMITS": {"the-press": {"concurrency": 9}}}
    assert dict(rules_of(tasks.report, "mail").scopes)["the-press"] == get_settings().LIMITS["the-press"]


@pytest.mark.parametrize("name", ["crushers", f"{__name__}.other"])
def test_a_shared_limit_with_the_name_of_a_queue_or_a_task_is_told_by_the_check(name):
    task(limit=[Limit(name="the-mill", concurrency=1), Limit(name=name, concurrency=2)])(send)
    assert check_limits() == []

    task(queue_name="crushers")(other)
    (warning,) = check_limits()
    assert warning.id == "delayedq.W013"
    assert f"send: the shared limit {name!r} has the name of " in warning.msg
