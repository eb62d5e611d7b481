"""How many jobs of Spark each step is: each costs a plan, and tasks to wait for."""

from __future__ import annotations

import pytest
from django.core.management import call_command

from delayedq.models import FinishedMessage, Message
from delayedq.pipeline.commands.view import viewed
from delayedq.pipeline.opening import Pipeline
from delayedq.pipeline.report.facts import COLUMNS
from delayedq.pipeline.report.tables import measure, span
from tests.pipeline.archives import ONE_STORE
from tests.pipeline.given import NOW, history
from tests.pipeline.jobs import jobs


@ONE_STORE
@pytest.mark.parametrize("reads", ["the command", "Spark"])
def test_an_archive_is_one_job_for_each_time_that_it_reads_or_writes_rows(archiving, spark, address, reads):
    """Written; read back; the table, read again; deleted. Three of these have a shuffle if Spark reads."""
    history(20)
    before = jobs(spark)

    [done] = archiving(here=address if reads == "the command" else None).run(NOW)

    assert done.deleted == 20
    assert jobs(spark) - before == {"the command": 4, "Spark": 7}[reads]


@ONE_STORE
def test_the_jobs_of_a_load(spark, store, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("flight_id\n" + "".join(f"{n}\n" for n in range(20)))
    before = jobs(spark)

    call_command("run_pipeline", "load", str(file), "--task", "tests.app.tasks.remind")

    assert Message.objects.count() == 20
    assert jobs(spark) - before == 7


@ONE_STORE
def test_a_report_of_a_small_queue_and_its_small_lake_is_one_job_after_that_for_its_span(
    archiving, spark, store, address, lake
):
    history(20)
    list(archiving(here=address).run(NOW))
    history(20, first=30)
    assert FinishedMessage.objects.count() == 20
    with viewed(Pipeline(spark, store, address, address, print, lake.path), columns=COLUMNS) as view:
        before = jobs(spark)
        since, until = span(view.messages)
        assert jobs(spark) - before == 1
        figures = measure(view.messages, since, until)

    assert jobs(spark) - before == 2
    assert figures.ended() == {"succeeded": 40}
