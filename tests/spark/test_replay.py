"""`run_pipeline replay`: what of the lake is sent again, when, and how often."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from django.core.management import CommandError, call_command

from delayedq.models import Message
from delayedq.pipeline.archiving import Archiving
from tests.spark.given import DAY, NOW, finished

ONE_DATABASE = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
YESTERDAY = (NOW - DAY).date()


@pytest.fixture
def replay(spark, store, address, tmp_path, capsys):
    """A lake with a week of history, one message an hour, every fifth failed; `replay` sends of it."""
    lake = str(tmp_path / "lake")
    for number in range(7 * 24):
        outcome = "succeeded" if number % 5 else "failed"
        finished(number + 1, NOW - 7 * DAY + timedelta(hours=number), outcome=outcome, key=f"k{number}").save()
    list(Archiving(spark, store, address, lake).run(NOW))

    def run(*arguments):
        call_command("run_pipeline", "replay", "--lake", lake, "--since", str(YESTERDAY), *map(str, arguments))
        return capsys.readouterr().out

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
    assert "Nothing to do" in replay("--send", "--replay-id", "again")
    assert Message.objects.count() == 0


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
def test_without_a_lake_there_is_nothing_to_replay(spark, store, tmp_path):
    for lake, problem in (([], "DELAYEDQ"), (["--lake", str(tmp_path / "none")], "There is no lake at")):
        with pytest.raises(CommandError, match=problem):
            call_command("run_pipeline", "replay", "--since", str(YESTERDAY), *lake)
