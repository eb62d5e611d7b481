"""A real month through the whole pipeline: loaded, run, archived, reported, and a day of it sent again.

March 2013 has the day on which clocks are put forward; DELAYEDQ_TEST_YEAR=1 takes the whole year. Counts are those of
plain Python over the same file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date

import pytest
from django.core.management import call_command

from delayedq.models import FinishedMessage, Message
from delayedq.pipeline.spark.lake import Lake
from tests.pipeline import nycflights

MONTHS = range(1, 13) if os.environ.get("DELAYEDQ_TEST_YEAR") == "1" else {3}

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_flights_go_through_all_of_the_pipeline(spark, store, environment, tmp_path, capsys):
    flights = nycflights.rows(MONTHS)
    expected = nycflights.expected(flights)
    assert (len(flights), len(expected)) in {(28_834, 27_973), (336_776, 328_521)}
    source, lake = tmp_path / "flights.csv", ("--lake", str(tmp_path / "lake"))
    nycflights.write(source, flights)

    # Loaded: each flight once, at its instant, and the cancelled ones are refused.
    for _ in range(2):
        call_command("run_pipeline", "load", str(source), *nycflights.LOAD)
    assert dict(Message.objects.values_list("key", "scheduled_at")) == expected
    refused = source.with_name("flights.csv.rejects.jsonl").read_text().splitlines()
    assert {json.loads(line)["reason"] for line in refused} == {"departure: is empty"}
    assert len(refused) == len(flights) - len(expected)

    # Run: all of them succeed.
    drain = [sys.executable, "manage.py", "run_workers", "--drain", "--no-cron"]
    subprocess.run(drain, env=environment, check=True, capture_output=True)
    assert not Message.objects.exists()
    ended = dict(FinishedMessage.objects.succeeded().values_list("key", "scheduled_at_initially"))
    assert ended == expected

    # Archived: none is lost, and none is there twice.
    call_command("run_pipeline", "archive", *lake, "--older-than", "0s")
    assert not FinishedMessage.objects.exists()
    history = Lake(spark, lake[1]).history()
    assert sorted(row.key for row in history.select("key").collect()) == sorted(expected)

    # Reported.
    call_command("run_pipeline", "report", *lake, "--output", str(tmp_path / "report"))
    assert (tmp_path / "report" / "report.html").is_file()

    # Sent again: what ended today.
    days = [row.day for row in history.select("day").distinct().collect()]
    since, until = ("--since", str(min(days))), ("--until", str(date(9999, 1, 1)))
    for _ in range(2):
        call_command("run_pipeline", "replay", *lake, *since, *until, "--state", "succeeded", "--send")
    assert Message.objects.count() == len(expected)
    assert Message.objects.filter(key__startswith="replay:").count() == len(expected)
