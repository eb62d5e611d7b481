"""`manage.py delayedq channels`: the list, pauses, and limits that are set live."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from delayedq import Limit, Rate, limits
from delayedq.limits import rules_for
from delayedq.operations import channel_list
from tests.app import tasks

DELIVER = tasks.deliver.module_path


@pytest.fixture(autouse=True)
def _filled(store):
    tasks.deliver.enqueue_many([(("acme",), {}), (("acme",), {}), (("other",), {})])
    store.claim_channels(rules_for(lambda queue: True), 9, timedelta(minutes=1), "w:1")


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
    monkeypatch.setattr(channel_list, "PAGE", 1)
    assert run("list").splitlines()[-1] == "There are more: name one by --channel, or see the admin."


def test_a_channel_is_paused_and_resumed(store):
    assert run("pause", DELIVER, "--channel", "acme") == f"channel acme of {DELIVER} is paused.\n"
    assert run("pause", DELIVER, "--channel", "acme") == f"channel acme of {DELIVER} was already paused.\n"
    assert "channel acme: 1 waiting, 1 running; paused" in run("list")
    assert run("resume", DELIVER, "--channel", "acme") == f"channel acme of {DELIVER} is resumed.\n"
    assert run("resume", DELIVER, "--channel", "acme") == f"channel acme of {DELIVER} is not paused.\n"


def test_a_limit_is_set_and_cleared(store):
    said = run("set", "webhooks", "--concurrency", "9", "--rate", "5", "--per", "10s", "--burst", "1")
    assert said == "webhooks: 9 at once, 5 in 10 s.\n"
    rate = Rate(5, per=timedelta(seconds=10), burst=1)
    assert limits.live(store) == {("webhooks", ""): Limit(concurrency=9, rate=rate)}
    assert "webhooks: 9 at once, 5 in 10 s, 2 running (set live)" in run("list")
    assert run("clear", "webhooks") == "webhooks has its limit from the code again.\n"
    assert run("clear", "webhooks") == "webhooks has no limit that was set live.\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("pause", "nowhere"), "'nowhere' has no channels"),
        (("set", "webhooks", "--rate", "5"), "--rate and --per go together"),
        (("set", "webhooks", "--concurrency", "0"), "concurrency of a Limit is a whole number of at least 1"),
        (("set", "webhooks", "--size", "5"), "A size can be set live only where the code defines one"),
    ],
)
def test_what_is_wrong_is_named_and_changes_nothing(store, arguments, said):
    with pytest.raises(CommandError, match=said):
        run(*arguments)
    assert limits.live(store) == {}
