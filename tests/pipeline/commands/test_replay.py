"""`run_pipeline replay`: what of the lake is sent again, when, and how often."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from django.core.management import CommandError, call_command

from delayedq.models import Message
from delayedq.pipeline.commands import replay as replaying
from delayedq.pipeline.commands.archive import Archiving
from delayedq.pipeline.models import Load, ReplayedMessage
from delayedq.store.protocol import Offer
from tests.pipeline.given import DAY, NOW, finished

ONE_DATABASE = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
YESTERDAY = (NOW - DAY).date()


@pytest.fixture
def replay(spark, store, address, tmp_path, capsys):
    """A lake with a week of history, one message an hour, every fifth failed; `replay` sends of it."""
    lake = str(tmp_path / "lake")
    for number in range(7 * 24):
        outcome = "succeeded" if number % 5 else "failed"
        finished(number + 1, NOW - 7 * DAY + timedelta(hours=number), outcome=outcome, key=f"k{number}").save()
    list(Archiving(spark, store, address, lake, here=address).run(NOW))

    def archive():
        list(Archiving(spark, store, address, lake, here=address).run(NOW))

    def run(*arguments):
        capsys.readouterr()
        call_command("run_pipeline", "replay", "--lake", lake, "--since", str(YESTERDAY), *map(str, arguments))
        return capsys.readouterr().out

    run.archive = archive
    return run


@ONE_DATABASE
def test_failed_messages_of_a_day_are_counted_and_sent_once_when_told_to(replay):
    assert "tests.app.tasks.remind failed" in replay()
    assert Message.objects.count() == 0

    replay("--send", "--replay-id", "again")
    sent = Message.objects.order_by("id")
    # From noon to noon seven times, so that day is hours 132 to 155: 135, 140, 145, 150 and 155 failed.
    assert {message.key for message in sent} == {f"replay:again:{hour + 1}" for hour in (135, 140, 145, 150, 155)}
    assert {message.payload for message in sent} == {f'{{"args":[{hour + 1}]}}' for hour in (135, 140, 145, 150, 155)}
    assert {message.attempt for message in sent} == {0}

    Message.objects.all().delete()
    assert "has nothing to send" in replay("--send", "--replay-id", "again")
    assert Message.objects.count() == 0


@ONE_DATABASE
def test_a_replay_is_completed_when_more_of_its_day_is_archived_and_what_is_not_yet_is_sent_too(replay):
    assert "5 messages were sent" in replay("--send", "--replay-id", "again")
    when = NOW - DAY + timedelta(minutes=1)
    finished(501, when, outcome="failed").save()
    replay.archive()
    finished(502, when, outcome="failed").save()
    # What it sent fails again: that is not sent by the same replay.
    finished(503, when, outcome="failed", key="replay:again:136").save()

    told = replay("--replay-id", "again")
    for line in ("1  of them are not archived yet", "5  others were sent before", "--send sends 2 messages"):
        assert line in told
    assert "2 messages were sent" in replay("--send", "--replay-id", "again")

    assert Message.objects.count() == 7
    assert {"replay:again:501", "replay:again:502"} < set(Message.objects.values_list("key", flat=True))


@ONE_DATABASE
def test_a_dry_run_says_whose_key_is_live_again_and_whose_task_is_unknown(replay, store):
    store.offer(Offer("default", "tests.app.tasks.remind", "{}", key="k135"))
    finished(501, NOW - DAY + timedelta(minutes=1), outcome="failed", kind="app.tasks.gone").save()

    told = replay()
    assert "1  of them have a key that is live again" in told
    assert "1  others are of tasks that are not registered here, and are left out: app.tasks.gone" in told

    assert "5 messages were sent" in replay("--send")
    assert not Message.objects.filter(kind="app.tasks.gone").exists()


@ONE_DATABASE
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--task", "tests.app.tasks.remid"], "tests.app.tasks.remid: no such task"),
        (["--until", str(YESTERDAY - DAY)], "not later than --since"),
        (["--replay-id", "x" * 175], "1 to 173 characters"),
        (["--replay-id", ""], None),
    ],
    ids=["task", "window", "long", "empty"],
)
def test_what_can_not_be_right_is_refused_and_not_recorded(replay, wrong, said):
    if said is None:  # as if it were not given
        assert "dry run" in replay(*wrong)
    else:
        with pytest.raises(CommandError, match=said):
            replay("--send", *wrong)
    assert (Message.objects.count(), Load.objects.count(), ReplayedMessage.objects.count()) == (0, 0, 0)


@ONE_DATABASE
def test_a_replay_of_nothing_is_not_recorded(replay):
    assert "has nothing to send" in replay("--send", "--state", "cancelled")
    assert not Load.objects.exists()


@ONE_DATABASE
def test_two_runs_of_a_replay_at_once_send_each_message_once_and_tell_who_sent_it(replay, monkeypatch):
    real, others = replaying.offer, ["once"]

    def offer(*arguments, **options):
        while others:
            others.pop()
            assert "5 messages were sent" in replay("--send", "--replay-id", "again")
        return real(*arguments, **options)

    monkeypatch.setattr(replaying, "offer", offer)
    told = replay("--send", "--replay-id", "again")

    assert "0 messages were sent" in told
    assert "5 others were sent by another run" in told
    assert Message.objects.count() == 5


@ONE_DATABASE
def test_a_trace_keeps_the_rhythm_at_another_speed(replay, store):
    before = store.now()
    replay("--send", "--speed", "60")

    times = list(Message.objects.order_by("scheduled_at").values_list("scheduled_at", flat=True))
    assert len(times) == 24
    assert before <= times[0] <= store.now()
    assert {later - first for first, later in pairwise(times)} == {timedelta(minutes=1)}


@ONE_DATABASE
def test_only_the_chosen_tasks_are_sent(replay):
    replay("--send", "--task", "tests.app.tasks.nothing")

    assert Message.objects.count() == 0


@ONE_DATABASE
def test_without_a_lake_the_database_is_replayed(spark, store, tmp_path, capsys):
    finished(1, NOW - DAY, outcome="failed").save()
    for lake in ([], ["--lake", str(tmp_path / "none")]):
        call_command("run_pipeline", "replay", "--since", str(YESTERDAY), *lake)
        assert "--send sends 1 messages" in capsys.readouterr().out


@ONE_DATABASE
def test_what_has_channels_or_limits_is_left_out_and_told(replay, store, settings):
    settings.DELAYEDQ = {"LIMITS": {"contacts": {"concurrency": 1}}}
    for number, kind in enumerate(("tests.app.tasks.deliver", "contacts|json"), 501):
        finished(number, NOW - DAY + timedelta(minutes=1), outcome="failed", kind=kind).save()

    told = replay("--send")
    assert "2  others have channels or limits, which a replay would pass by" in told
    assert "contacts|json, tests.app.tasks.deliver" in told
    assert not Message.objects.filter(kind__in=["contacts|json", "tests.app.tasks.deliver"]).exists()
