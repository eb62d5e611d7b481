"""Tasks with channels and limits: their options, the channels of their calls, and docs/limits.md."""

from __future__ import annotations

import re
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

import delayedq
from delayedq import Limit, Rate, limits, task
from delayedq.compat import InvalidTask
from delayedq.conf import get_settings
from delayedq.exceptions import InvalidLimit, InvalidMessage
from delayedq.limits.channels import Channels
from delayedq.limits.declared import lines_up, rules_of
from delayedq.limits.rules import channel_of
from delayedq.models import Message
from tests.app import tasks
from tests.app.models import Mark

pytestmark = pytest.mark.usefixtures("registry")
DOCS = Path(delayedq.__file__).parent.parent / "docs"
PAGES = (DOCS / "limits.md", DOCS / "limits-reference.md")
SECOND = timedelta(seconds=1)


def channels():
    return [channel_of(metadata) for metadata in Message.objects.order_by("id").values_list("metadata", flat=True)]


def send(customer, url=None):
    """The function of the tasks that are defined here."""


def defined(**options):
    return task(**options)(send)


# The channel of a call


def test_an_argument_names_the_channel_however_it_is_passed(store):
    tasks.deliver.enqueue("acme")
    tasks.deliver.enqueue(customer=7)
    tasks.deliver.using(channel="special").enqueue("acme")
    tasks.deliver.enqueue_many([(("b",), {}), ((None,), {})])

    assert channels() == ["acme", "7", "special", "b", ""]


def test_a_model_instance_is_named_by_its_primary_key(store, alias):
    mark = Mark.objects.using(alias).create(name="a")
    assert defined(channel="customer").offer([mark], {}, when=None).channel == str(mark.pk)


def test_a_function_of_the_arguments_names_it(store):
    by_tier = defined(channel=lambda customer, url=None: f"tier {customer % 3}")
    assert by_tier.offer([7], {}, when=None).channel == "tier 1"


def test_a_default_names_it_too():
    assert defined(channel="url").offer([7], {}, when=None).channel == ""


@pytest.mark.parametrize("customer", ["x" * 201, "a\0b"])
def test_a_channel_that_can_not_be_stored_is_refused_at_the_call(store, customer):
    with pytest.raises(InvalidMessage, match="channel"):
        tasks.deliver.using(channel=None).schedule_in(SECOND, customer)
    assert Message.objects.count() == 0


def test_a_function_that_fails_is_an_error_at_the_call(store):
    with pytest.raises(InvalidMessage, match="its channel can't be found: ZeroDivisionError"):
        defined(channel=lambda customer, url=None: 1 // customer).offer([0], {}, when=None)


def test_what_the_task_gave_as_metadata_comes_back(store):
    result = tasks.deliver.using(metadata={"a": 1}).enqueue("acme")
    assert result.task.metadata == {"a": 1}
    stored = tasks.deliver.as_stored(Message.objects.get())
    assert (stored.metadata, stored.channel_name, stored.priority) == ({"a": 1}, "acme", 0)


def test_a_task_without_limits_has_no_channel(store):
    tasks.remind.enqueue(7)
    assert channels() == [None]
    assert not lines_up(tasks.remind)


def test_any_task_can_be_given_a_channel_for_a_call(store):
    tasks.remind.using(channel="acme").enqueue(7)
    assert channels() == ["acme"]


# What is refused


@pytest.mark.parametrize("channel", ["nobody", 7, ["customer"]])
def test_an_argument_that_the_function_lacks_is_refused(channel):
    with pytest.raises(InvalidTask, match=r"name of an argument \(customer, url\) or a function of them"):
        defined(channel=channel)


@pytest.mark.parametrize("limit", [2, [Limit(), 2], "limit"])
def test_what_is_no_limit_is_refused(limit):
    with pytest.raises(InvalidTask, match="limit is a Limit, or a list of them"):
        defined(limit=limit)


def test_metadata_that_look_like_a_channel_are_refused():
    with pytest.raises(InvalidTask, match="reserved for delayedq"):
        defined(metadata={"delayedq.channel": "acme"})


def test_two_limits_of_its_own_are_refused():
    with pytest.raises(InvalidTask, match="at most one Limit without a name"):
        defined(limit=[Limit(concurrency=1), Limit(concurrency=2)])


@pytest.mark.parametrize("terms", [{"weight": 2}, {"share": 1}, {"order": "strict"}])
def test_what_only_channels_have_needs_channels(terms):
    with pytest.raises(InvalidTask, match="the task has none"):
        defined(limit=Limit(**terms))
    assert defined(limit=Limit(**terms), channel="customer").limit == Limit(**terms)


def test_two_definitions_of_one_shared_limit_that_differ_are_refused():
    with pytest.raises(InvalidTask, match="the shared limit 'the-press' is defined differently by report"):
        defined(limit=Limit(name="the-press", concurrency=4))
    defined(limit=Limit(name="the-press", concurrency=3))


@pytest.mark.parametrize(
    "given", [{"mail": {"concurrency": 0}}, {"mail": {"sizes": 1}}, {"mail": {"weight": 2}}, {"mail": 7}, [], 7]
)
def test_wrong_limits_in_the_settings_are_named(settings, given):
    settings.DELAYEDQ = {"LIMITS": given}
    with pytest.raises(ImproperlyConfigured, match=r"DELAYEDQ\['LIMITS'\]"):
        get_settings()


# Which limits hold


def test_a_limit_is_of_the_channel_if_there_is_one_else_of_the_task():
    own = Limit(concurrency=1)
    in_channels = defined(limit=own, channel="customer")
    path, none = in_channels.module_path, Limit()
    assert rules_of(in_channels, "mail") == ((("mail", none), (path, none)), own)
    assert rules_of(defined(limit=own), "mail") == (((path, own), ("mail", none)), None)


def test_settings_name_queues_and_tasks(settings):
    settings.DELAYEDQ = {"LIMITS": {"mail": {"concurrency": 9}, tasks.remind.module_path: Limit(concurrency=1)}}

    assert rules_of(tasks.remind, "mail").scopes == (
        ("mail", Limit(concurrency=9)),
        (tasks.remind.module_path, Limit(concurrency=1)),
    )
    assert lines_up(tasks.remind)
    assert tasks.remind.offer([7], {}, when=None).channel == ""
    assert tasks.echo.offer([7], {}, when=None).channel is None


def test_only_what_has_channels_can_be_limited_live(store):
    with pytest.raises(InvalidLimit, match=r"'nowhere' has no channels.*known are"):
        limits.set("nowhere", concurrency=1)
    for scope in ("x" * 200 + "|json", "a\0|json", 7, None):
        with pytest.raises(InvalidLimit, match="has no channels"):
            limits.set(scope, concurrency=1)
    with pytest.raises(InvalidLimit, match="'the-press' is a limit that channels share"):
        limits.set("the-press", channel="acme", concurrency=1)
    limits.set("webhooks", concurrency=1)
    limits.set(tasks.deliver.module_path, channel="acme", rate=Rate(1, SECOND))
    assert len(limits.live()) == 2


def test_a_weight_in_a_queue_of_several_tasks_leaves_the_limit_of_each_as_the_code_has_it(store):
    limits.set("webhooks", channel="acme", weight=3)
    tasks.deliver.enqueue_many([(("acme",), {})] * 4)
    tasks.write_down.enqueue_many([(("acme", "nowhere"), {})] * 4)
    claimed = Channels.of(store).claim(limits.rules_for(lambda queue: True), 99, timedelta(minutes=1), "w:1").claimed

    assert Counter(one.kind for one in claimed) == {tasks.deliver.module_path: 1, tasks.write_down.module_path: 2}
    assert limits.holding("webhooks", "acme") == Limit(weight=3)


def test_a_size_is_set_live_only_where_all_tasks_of_a_queue_have_one(store):
    with pytest.raises(InvalidLimit, match="it defines none for all channels of 'webhooks'"):
        limits.set("webhooks", channel="acme", size=1)
    limits.set(tasks.post.module_path, channel="acme", size=1)
    assert limits.live() == {(tasks.post.module_path, "acme"): Limit(size=1)}


# The page


def test_the_examples_of_the_page_run_from_top_to_bottom(store, settings):
    examples = re.findall(
        r"^```python\n(.*?)^```$", "\n".join(page.read_text() for page in PAGES), re.DOTALL | re.MULTILINE
    )
    assert len(examples) >= 6
    space = {"__name__": "shop.tasks"}
    exec("\n".join(re.sub(r"\.\.\.$", "pass", example) for example in examples), space)

    settings.DELAYEDQ = space["DELAYEDQ"]
    assert set(get_settings().LIMITS) == {"webhooks", "shop.tasks.report"}
    assert set(limits.live()) == {("shop.tasks.deliver", "7"), ("shop.tasks.deliver", "9")}
    assert space["send"].limit[0].name == "the-api"
    assert space["on_reading"](7, 21.5) == "OK"
    space["add"]("acme", {"mail": "ann@example.com"})
    assert space["contacts"].try_poll().payload == {"mail": "ann@example.com"}
