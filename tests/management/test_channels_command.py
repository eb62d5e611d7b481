"""`manage.py delayedq channels`: the list, pauses, and limits that are set live."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from delayedq import Limit, Rate, limits
from delayedq.limits import command, rules_for
from delayedq.limits import operator as channels
from delayedq.limits.channels import Channels
from delayedq.limits.rules import HEAD
from delayedq.models import ChannelMessage, Message
from tests.app import tasks

DELIVER = tasks.deliver.module_path


@pytest.fixture(autouse=True)
def _filled(store):
    tasks.deliver.enqueue_many([(("acme",), {}), (("acme",), {}), (("other",), {})])
    Channels.of(store).claim(rules_for(lambda queue: True), 9, timedelta(minutes=1), "w:1")


def run(*arguments):
    out = StringIO()
    call_command("delayedq", "channels", *arguments, stdout=out)
    return out.getvalue()


def test_the_list_shows_channels_and_limits(store):
    said = run("list").splitlines()
    assert "the-press: 3 at once, 0 running" in said
    assert f"{DELIVER} in webhooks, channel acme: 1 waiting, 1 running; 1 at once" in said
    assert run("list", "--channel", "other").splitlines()[-1].startswith(f"{DELIVER} in webhooks, channel other: 0 w")
    assert run("list", "--channel", "none").splitlines()[-1] == "No channel none has messages."


def test_a_long_list_says_that_there_are_more(store, monkeypatch):
    monkeypatch.setattr(channels, "PAGE", 1)
    assert run("list").splitlines()[-1] == "There are more: name one by --channel, or see the admin."


def test_limits_of_channels_are_listed_up_to_a_bound_or_for_one_channel(store, monkeypatch):
    monkeypatch.setattr(command, "MOST_LISTED", 2)
    for name in ("acme", "other", "third"):
        limits.set(DELIVER, channel=name, concurrency=3, store=store)
    said = run("list").splitlines()
    assert f"channel other of {DELIVER}: 3 at once (set live)" in said
    assert said[-1] == "There are more: name one by --channel, or see the admin."
    third = run("list", "--channel", "third")
    assert [line for line in third.splitlines() if line.startswith("channel ")] == [
        f"channel third of {DELIVER}: 3 at once (set live)"
    ]


def test_a_channel_is_paused_and_resumed(store):
    assert run("pause", DELIVER, "--channel", "acme") == f"channel acme of {DELIVER} is paused.\n"
    assert run("pause", DELIVER, "--channel", "acme") == f"channel acme of {DELIVER} was already paused.\n"
    assert "channel acme: 1 waiting, 1 running; paused" in run("list")
    assert run("resume", DELIVER, "--channel", "acme") == f"channel acme of {DELIVER} is resumed.\n"
    assert run("resume", DELIVER, "--channel", "acme") == f"channel acme of {DELIVER} is not paused.\n"


def test_a_channel_that_nobody_knows_is_paused_only_if_it_is_said_to_be_new(store):
    with pytest.raises(CommandError, match=rf"'{DELIVER}' has no channel 'acne'. Did you mean 'acme'\? .* add --new"):
        run("pause", DELIVER, "--channel", "acne")
    with pytest.raises(CommandError, match=rf"'{DELIVER}s' has no channels: .* Did you mean '{DELIVER}'\?"):
        run("pause", f"{DELIVER}s", "--channel", "acme")
    assert limits.live(store) == {}
    run("pause", DELIVER, "--channel", "acne", "--new")
    assert run("pause", DELIVER, "--channel", "acne") == f"channel acne of {DELIVER} was already paused.\n"


def test_a_limit_is_set_and_cleared(store):
    said = run("set", "webhooks", "--concurrency", "9", "--rate", "5", "--per", "10s", "--burst", "1")
    assert said == "webhooks: 9 at once, 5 in 10 s.\n"
    rate = Rate(5, per=timedelta(seconds=10), burst=1)
    assert limits.live(store) == {("webhooks", ""): Limit(concurrency=9, rate=rate)}
    assert "webhooks: 9 at once, 5 in 10 s, 2 running (set live)" in run("list")
    assert run("clear", "webhooks") == "webhooks has its limit from the code again.\n"
    assert run("clear", "webhooks") == "webhooks has no limit that was set live.\n"


def test_a_weight_and_a_share_of_a_channel_are_set_and_leave_the_rest_of_its_limit(store):
    said = run("set", DELIVER, "--channel", "acme", "--weight", "2", "--share", "1")
    assert said == f"channel acme of {DELIVER}: 1 at once, share 1, weight 2.\n"
    assert limits.live(store) == {(DELIVER, "acme"): Limit(concurrency=1, share=1, weight=2)}


def test_a_rate_is_set_in_windows_and_without_retries(store):
    said = run("set", "webhooks", "--rate", "100", "--per", "1h", "--window", "--first-only")
    assert said == "webhooks: 100 in each window of 1 h.\n"
    rate = Rate(100, per=timedelta(hours=1), window=True, retries=False)
    assert limits.live(store) == {("webhooks", ""): Limit(rate=rate)}


def test_what_blocks_a_channel_is_listed_and_skipped(store):
    first, _ = tasks.notify.enqueue_many([(("acme", 1), {}), (("acme", 2), {})])
    Channels.of(store).claim(rules_for(lambda queue: True), 9, timedelta(minutes=1), "w:1")
    (one,) = Message.objects.filter(kind=tasks.notify.module_path, lease_token__isnull=False)
    Message.objects.filter(pk=one.pk).update(leased_until=None, lease_token=None, scheduled_at=in_an_hour())
    ChannelMessage.objects.filter(message_id=one.pk).update(lease_token=0, urgency=HEAD, due_at=in_an_hour())
    (said,) = [line for line in run("list").splitlines() if "notify in" in line and "acme" in line]
    assert f"1 waiting, 0 running; 1 at once, in order, blocked by message {first.id} until " in said
    path = tasks.notify.module_path
    assert run("skip", path, "--channel", "acme") == f"channel acme of {path} is not blocked any more.\n"
    assert run("skip", path, "--channel", "acme") == f"channel acme of {path} is blocked by no message.\n"
    assert "blocked by" not in run("list")


def in_an_hour():
    return timezone.now() + timedelta(hours=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("pause", "nowhere"), "'nowhere' has no channels"),
        (("set", "webhooks", "--rate", "5"), "--rate and --per go together"),
        (("set", "webhooks", "--concurrency", "0"), "concurrency of a Limit is a whole number of at least 1"),
        (("set", "webhooks", "--weight", "2"), "name one of 'webhooks' by channel="),
        (("set", DELIVER, "--channel", "acme", "--weight", "0"), "weight of a Limit is from"),
        (("set", "webhooks", "--size", "5"), "A size can be set live only where the code defines one"),
    ],
)
def test_what_is_wrong_is_named_and_changes_nothing(store, arguments, said):
    with pytest.raises(CommandError, match=said):
        run(*arguments)
    assert limits.live(store) == {}
