"""The page of channels and limits: what is shown, at which cost, and who may pause and limit."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import urlencode

import pytest
from django.contrib.admin.models import LogEntry
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from delayedq import Limit, Rate, limits
from delayedq.limits import operator as channels
from delayedq.limits import rules_for
from delayedq.limits.channels import Channels
from delayedq.limits.setting import definitions
from delayedq.models import Channel, ChannelGroup
from tests.admin.given import text_of
from tests.app import tasks
from tests.store.given import retry

QUEUES = "/admin/delayedq/pausedqueue/"
LIST = f"{QUEUES}channels/"
DELIVER, REPORT = tasks.deliver.module_path, tasks.report.module_path
ACME = f"?scope={DELIVER}&channel=acme"
PAUSE, RESUME = f"{QUEUES}pause-channel/{ACME}", f"{QUEUES}resume-channel/{ACME}"
SKIP = f"{QUEUES}skip-head/{ACME}"
SET, CLEAR = f"{QUEUES}limit/{ACME}", f"{QUEUES}clear-limit/{ACME}"


def claim(store):
    return Channels.of(store).claim(rules_for(lambda queue: True), 9, timedelta(minutes=1), "w:1").claimed


def fill(store, *customers):
    tasks.deliver.enqueue_many([((one,), {}) for one in customers])
    return claim(store)


def shown(client, query=""):
    return {row.name: row for row in client.get(LIST + query).context["channels"]}


# What is shown


def test_a_channel_shows_what_waits_and_runs_and_its_limit(store, operator):
    fill(store, "acme", "acme", "acme", "other")
    found = shown(operator)
    acme = found["acme"]
    assert (acme.queue, acme.kind, acme.waiting, acme.running) == ("webhooks", DELIVER, "2", "1")
    assert (acme.state, acme.terms) == ("full", "1 at once")
    assert found["other"].waiting == "0"


def test_the_next_release_is_shown(store, operator):
    limits.set(DELIVER, channel="acme", rate=Rate(1, per=timedelta(hours=1)), store=store)
    fill(store, "acme", "acme")
    page = operator.get(LIST)
    assert shown(operator)["acme"].state == "full"
    assert "1 in 1 h" in text_of(page)
    assert "in 60 min" in text_of(page) or "in 1 h" in text_of(page)


def test_limits_of_queues_tasks_and_several_tasks_are_shown(store, operator, settings):
    settings.DELAYEDQ = {"LIMITS": {"webhooks": {"concurrency": 7, "size": 100}}}
    fill(store, "acme")
    found = {row.name: row for row in operator.get(LIST).context["limits"]}
    assert (found["webhooks"].terms, found["webhooks"].running) == ("7 at once, size 100", "1")
    assert found["the-press"].terms == "3 at once"
    assert found[REPORT].terms == "2 in 1 h"


def test_a_channel_is_found_by_its_name_queue_and_task(store, operator):
    fill(store, "acme", "other", "third")
    assert set(shown(operator, "?q=acme")) == {"acme"}
    assert set(shown(operator, "?queue=webhooks&kind=" + DELIVER)) == {"acme", "other", "third"}
    assert shown(operator, "?queue=mail") == {}
    page = operator.get(LIST + "?q=a%00b")
    assert "nothing is selected" in text_of(page)
    assert not page.context["channels"]


def test_pages_show_each_channel_once(store, operator, monkeypatch):
    monkeypatch.setattr(channels, "PAGE", 3)
    fill(store, *"abcdefgh")
    names, query = [], "?"
    for _ in range(3):
        page = operator.get(LIST + query)
        names += [row.name for row in page.context["channels"]]
        query = f"?after={page.context['next']}"
    assert sorted(names) == list("abcdefgh")
    assert not page.context["next"]
    assert len(operator.get(LIST + "?after=x").context["channels"]) == 3


@pytest.fixture
def many_limits(store, monkeypatch):
    """Seven limits of channels of two scopes, three on a page."""
    monkeypatch.setattr(channels, "PAGE", 3)
    for number, name in enumerate("abcdefg"):
        limits.set(DELIVER if number % 2 else "webhooks", channel=name, concurrency=2, store=store)


def test_limits_of_channels_come_in_pages_behind_those_that_channels_share(store, operator, many_limits):
    fill(store, *"abcdefgh")
    pages, after = [], ""
    while after or not pages:
        page = operator.get(LIST, {"limits_after": after} if after else {})
        pages.append([row.name for row in page.context["limits"]])
        assert len(page.context["channels"]) == 3
        after = page.context["limit_pages"]["next"]
    shared = len(pages[0]) - 3
    names = [f"channel {name} of {DELIVER}" for name in "bdf"] + [f"channel {name} of webhooks" for name in "aceg"]
    assert [name for page in pages for name in page][shared:] == names
    assert [len(page) for page in pages[1:]] == [3, 1]
    assert "the-press" in pages[0][:shared]


def test_a_page_of_limits_and_one_of_channels_are_turned_by_themselves(store, operator, many_limits):
    fill(store, *"abcdefgh")
    first = operator.get(LIST)
    limits_after, after = first.context["limit_pages"]["next"], first.context["next"]
    page = operator.get(LIST, {"limits_after": limits_after, "after": after})
    html = page.content.decode()
    assert f"?{urlencode({'after': after})}&amp;limits_after=" in html
    assert f"?{urlencode({'limits_after': limits_after})}&amp;after=" in html
    assert page.context["channels"] != first.context["channels"]
    for text in ("x", "[1, 2]", '["a"]', '["a\\u0000", "b"]', "7", "{}"):
        assert len(operator.get(LIST, {"limits_after": text}).context["limits"]) == 3


def test_a_search_for_a_channel_finds_its_limits(store, operator, many_limits):
    names = [row.name for row in operator.get(LIST, {"q": "b"}).context["limits"]]
    assert [name for name in names if name.startswith("channel ")] == [f"channel b of {DELIVER}"]


def test_more_groups_than_are_looked_at_are_said(store, operator, monkeypatch):
    fill(store, "a")
    text = "not all limits and channels are listed"
    assert text not in text_of(operator.get(LIST))
    monkeypatch.setattr(channels, "MOST_LISTED", 0)
    assert text in text_of(operator.get(LIST))


def test_the_page_costs_the_same_however_many_channels_there_are(store, operator, connection):
    fill(store, *map(str, range(30)))

    def cost():
        with CaptureQueriesContext(connection) as captured:
            operator.get(LIST)
        return len(captured)

    before = cost()
    group = ChannelGroup.objects.get()
    Channel.objects.bulk_create(
        Channel(id=number, group_id=group.pk, name=f"more {number}", turn=number, ready_at=timezone.now())
        for number in range(1, 2_000)
    )
    assert cost() == before
    assert len(operator.get(LIST).context["channels"]) == channels.PAGE


def test_many_waiting_messages_are_counted_up_to_a_bound(store, operator, monkeypatch):
    monkeypatch.setattr(channels, "MOST_COUNTED", 1)
    monkeypatch.setattr("delayedq.limits.admin.MOST_COUNTED", 1)
    fill(store, *["acme"] * 4)
    assert shown(operator)["acme"].waiting == "over 1"


def test_hostile_names_are_escaped(store, operator):
    fill(store, "<script>alert(1)</script>\u202e")
    page = operator.get(LIST).content.decode()
    assert "<script>alert" not in page
    assert "\\u202e" in page


def test_the_list_of_queues_links_to_it(operator):
    assert 'href="/admin/delayedq/pausedqueue/channels/"' in operator.get(f"{QUEUES}").content.decode()


# Pauses


def test_a_channel_is_paused_and_resumed(store, operator):
    fill(store, "acme", "acme")
    assert "Pause channel acme" in text_of(operator.get(PAUSE))
    assert not limits.live(store)
    operator.post(PAUSE)
    assert shown(operator)["acme"].state == "paused"
    assert "paused by ann" in text_of(operator.get(LIST))
    operator.post(RESUME)
    assert not limits.live(store)
    assert [entry.change_message for entry in LogEntry.objects.order_by("pk")] == [
        f"Paused: channel acme of {DELIVER}.",
        f"Resumed: channel acme of {DELIVER}.",
    ]
    assert "Not paused: " in text_of(operator.post(RESUME, follow=True))


def test_what_has_no_channels_is_refused(store, operator):
    page = operator.post(f"{QUEUES}pause-channel/?scope=nowhere", follow=True)
    assert "'nowhere' has no channels" in text_of(page)
    assert operator.get(f"{QUEUES}pause-channel/?scope=a%00b").status_code == 404
    assert operator.get(f"{QUEUES}limit/").status_code == 404


# Limits


def test_a_limit_is_set_and_cleared(store, operator):
    assert 'value="1"' in operator.get(SET).content.decode()
    page = operator.post(SET, {"concurrency": "5", "count": "2", "per": "60", "burst": "1"}, follow=True)
    assert "is set: 5 at once, 2 in 1 min." in text_of(page)
    rate = Rate(2, per=timedelta(minutes=1), burst=1)
    assert limits.live(store) == {(DELIVER, "acme"): Limit(concurrency=5, rate=rate)}
    assert "will hold again" in text_of(operator.get(CLEAR))
    assert "is cleared; it was: 5 at once, 2 in 1 min." in text_of(operator.post(CLEAR, follow=True))
    assert not limits.live(store)
    assert LogEntry.objects.count() == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"concurrency": "0"}, "greater than or equal to 1"),
        ({"concurrency": "-1"}, "greater than or equal to 1"),
        ({"concurrency": "1.5"}, "Enter a whole number"),
        ({"concurrency": "nan"}, "Enter a whole number"),
        ({"concurrency": "True"}, "Enter a whole number"),
        ({"concurrency": "3000000000"}, "at most 2,147,483,647"),
        ({"count": "0", "per": "60"}, "greater than or equal to 1"),
        ({"count": "1", "per": "0"}, "per of a Rate is a timedelta over zero"),
        ({"count": "1", "per": "-60"}, "per of a Rate is a timedelta over zero"),
        ({"count": "1", "per": "60", "burst": "0"}, "greater than or equal to 1"),
        ({"size": "0"}, "greater than or equal to 1"),
        ({"share": "0"}, "greater than or equal to 1"),
        ({"weight": "0"}, "weight of a Limit is from"),
        ({"weight": "nan"}, "Enter a number"),
        ({"weight": "inf"}, "Enter a number"),
        ({"count": "2"}, "per of a Rate is a timedelta over zero"),
        ({"per": "60"}, "The count of a Rate is a whole number"),
        ({"per": "soon", "count": "1"}, "This is no duration"),
        ({"size": "9"}, "A size can be set live only where the code defines one"),
    ],
)
def test_a_wrong_limit_is_named_and_changes_nothing(store, operator, given, said):
    assert said in text_of(operator.post(SET, given))
    assert not limits.live(store)


def test_a_weight_and_a_share_are_set_for_a_channel_and_not_for_a_queue(store, operator):
    page = operator.post(SET, {"concurrency": "5", "weight": "2", "share": "3"}, follow=True)
    assert "is set: 5 at once, share 3, weight 2." in text_of(page)
    assert limits.live(store) == {(DELIVER, "acme"): Limit(concurrency=5, weight=2, share=3)}
    assert 'name="weight"' in operator.get(SET).content.decode()
    assert 'name="weight"' not in operator.get(f"{QUEUES}limit/?scope=webhooks").content.decode()


def test_a_weight_alone_leaves_what_each_task_of_a_queue_says(store, operator):
    given = {"weight": "2"}
    page = operator.post(f"{QUEUES}limit/?scope=webhooks&channel=acme", given, follow=True)
    assert "is set: weight 2." in text_of(page)
    assert definitions(store) == {("webhooks", "acme"): given | {"weight": 2.0}}


def test_a_limit_that_is_emptied_is_none(store, operator):
    operator.post(SET, {"concurrency": "5", "weight": "1"})
    operator.post(SET, {"concurrency": "", "weight": "1"}, follow=True)

    assert limits.live(store)[DELIVER, "acme"] == Limit()


def test_a_rate_is_set_in_windows(store, operator):
    given = {"count": "5", "per": "60", "window": "on", "first_only": "on", "weight": "1"}
    assert "is set: 5 in each window of 1 min." in text_of(operator.post(SET, given, follow=True))
    rate = Rate(5, per=timedelta(minutes=1), window=True, retries=False)
    assert limits.live(store) == {(DELIVER, "acme"): Limit(rate=rate)}
    assert operator.get(SET).content.decode().count(" checked") == 2


# A strict order


def test_a_channel_that_a_message_blocks_is_shown_and_the_message_skipped(store, operator):
    tasks.notify.enqueue_many([(("acme", 1), {}), (("acme", 2), {})])
    (first,) = claim(store)
    store.settle([retry(first, delay=3_600.0)], "w:1")
    assert claim(store) == []
    row = shown(operator)["acme"]
    assert (row.state, row.remark, row.waiting) == ("blocked", f"by message {first.id}", "1")
    (skip,) = [url for label, url in row.actions if label == "Skip"]
    assert "Skip the head of channel acme" in text_of(operator.get(skip))
    assert "Not blocked any more: " in text_of(operator.post(skip, follow=True))
    assert "No message blocks channel acme" in text_of(operator.post(skip, follow=True))
    (second,) = claim(store)
    assert second.id != first.id


# Permissions


def test_each_change_needs_its_permission(store, member):
    fill(store, "acme")
    looker = member("view_pausedqueue")
    assert not shown(looker)["acme"].actions
    pauser, limiter = (
        member("view_pausedqueue", "pause_queue", name="c"),
        member("view_pausedqueue", "set_limit", name="d"),
    )
    for client, allowed in ((looker, ()), (pauser, (PAUSE, RESUME, SKIP)), (limiter, (SET, CLEAR))):
        for url in (PAUSE, RESUME, SKIP, SET, CLEAR):
            assert client.get(url).status_code == (200 if url in allowed else 403)
            if url not in allowed:
                assert client.post(url).status_code == 403
    assert member(name="e").get(LIST).status_code == 403
    assert not limits.live(store)
