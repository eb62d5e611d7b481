"""Flows and recorded steps in the lake: each end of a flow, and each step of a message that was archived, once."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from delayedq import Flow, chain, current_message, task
from delayedq.core.masking import MASKED
from delayedq.exceptions import LakeUnusable
from delayedq.models import FinishedMessage, FlowStep, Message, RecordedStep
from delayedq.models import Flow as Row
from delayedq.pipeline.books import source_of
from delayedq.pipeline.commands.archive import SideRows
from delayedq.pipeline.lake.side_table import Flows, RecordedSteps
from delayedq.pipeline.models import ArchiveBatch
from delayedq.pipeline.spark import archive
from delayedq.steps.store import forget_steps
from delayedq.store import operator_store
from delayedq.store.operator import Revival
from delayedq.testing import clock
from tests.app import tasks
from tests.flows.given import call, does, fails, run
from tests.pipeline.archives import ONE_DATABASE, ONE_STORE, Killed
from tests.pipeline.given import DAY, NOW

done = []


@task(max_attempts=1)
def order(amount):
    message = current_message()
    message.step("charge", done.append, amount)
    message.step("ünd", str, amount)
    if amount == 13 and len(done) < 3:
        raise OSError("no carrier")


@task(max_attempts=1, sensitive=True)
def secret(amount):
    current_message().step("charge", str, amount)


@pytest.fixture
def sides(store, lake):
    """The rows of one of the tables of this database, without those of its batch."""

    def rows(side, ids):
        own = ("schema_version", "source", "batch")
        found = side(lake.path).rows(source_of(store.alias), ids)
        assert all(row["schema_version"] == 2 for row in found)
        assert all(ArchiveBatch.objects.filter(number=row["batch"]).exists() for row in found)
        return [{name: value for name, value in row.items() if name not in own} for row in found]

    return rows


def a_flow(ending):
    """Two steps side by side; after one of them has failed, one that runs nevertheless and one that is skipped."""
    flow = Flow("Überblick", policy="continue", deadline=10 * DAY)
    one, other = flow.add("one", call("one")), flow.add("other", ending)
    flow.add("both", tasks.nothing.si(), after=[one, other])
    flow.add("end", tasks.nothing.si(), after=["both"], when="ended")
    return flow.enqueue()


def given_ends():
    """A flow that has failed, and three orders that have recorded steps; the cells of both."""
    done.clear()
    with clock(NOW - DAY):
        flow = a_flow(fails("bad"))
        orders = [int(order.enqueue(amount).id) for amount in (7, 13, 8)]
        run()
    cells = Row.objects.values("id", "name", "policy", "created_at", "deadline_at", "stopped_at", "ended_at").get()
    steps = list(RecordedStep.objects.values("message_id", "generation", "name", "result", "recorded_at"))
    return flow, orders, cells, [{**row, "kind": order.module_path} for row in steps]


def by_name(rows):
    return sorted(rows, key=lambda row: (row["message_id"], row["name"]))


def test_both_are_in_the_lake_cell_by_cell(archiving, lake, sides, store, spark):
    flow, orders, cells, steps = given_ends()

    list(archiving(here=None).run(NOW))

    [archived] = sides(Flows, [flow.id])
    graph = json.loads(archived.pop("steps"))
    assert archived == {**cells, "state": "failed"}
    assert [(step["number"], step["name"], step["state"], step["after"], step["when"]) for step in graph] == [
        (0, "one", "succeeded", [], "succeeded"),
        (1, "other", "failed", [], "succeeded"),
        (2, "both", "skipped", [0, 1], "succeeded"),
        (3, "end", "succeeded", [2], "ended"),
    ]
    kept = FlowStep.objects.order_by("id").values_list("kind", "is_group", "size", "ended_at")
    assert [(step["kind"], step["is_group"], step["size"]) for step in graph] == [row[:3] for row in kept]
    assert [step["ended_at"] for step in graph] == [None if at is None else at.isoformat() for *_, at in kept]
    assert len(steps) == 6
    assert by_name(sides(RecordedSteps, orders)) == by_name(steps)
    assert spark.read.parquet(f"{lake.path}/_steps").count() == 6
    assert flow.state == "failed"  # it stays as long as RETENTION says
    assert not FinishedMessage.objects.exists()
    assert forget_steps(store, limit=100).removed == 6


@ONE_DATABASE
@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_archive_that_is_killed_as_it_deletes_adds_nothing_twice(archiving, sides, monkeypatch, moment):
    flow, orders, *_ = given_ends()
    real = archive.delete

    def then_die(*given):
        if moment == "after":
            real(*given)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(archive, "delete", then_die)
        with pytest.raises(Killed):
            list(archiving(here=None).run(NOW))

    list(archiving(here=None).run(NOW))
    assert len(sides(Flows, [flow.id])) == 1
    assert len(sides(RecordedSteps, orders)) == 6
    assert not FinishedMessage.objects.exists()


@ONE_STORE
def test_nothing_is_deleted_unless_they_are_read_back(archiving, monkeypatch):
    given_ends()
    count = FinishedMessage.objects.count()
    with monkeypatch.context() as patch:
        patch.setattr(RecordedSteps, "_append", lambda *_: True)
        with pytest.raises(LakeUnusable, match="are not there"):
            list(archiving().run(NOW))
        assert FinishedMessage.objects.count() == count
    list(archiving().run(NOW))
    assert not FinishedMessage.objects.exists()


@ONE_STORE
def test_a_flow_goes_with_the_first_batch_after_its_end(archiving, sides):
    with clock(NOW - 3 * DAY):
        ended = chain(tasks.nothing.si()).enqueue()
        run()
        going = chain(tasks.nothing.si(), tasks.nothing.si()).enqueue()
        run(limit=1)
    list(archiving().run(NOW - 2 * DAY))
    assert [row["id"] for row in sides(Flows, [ended.id, going.id])] == [ended.id]
    with clock(NOW - DAY):
        run()
    list(archiving().run(NOW))
    assert {row["id"]: row["state"] for row in sides(Flows, [ended.id, going.id])} == {
        ended.id: "succeeded",
        going.id: "succeeded",
    }


@ONE_STORE
def test_each_end_of_a_flow_that_is_retried_has_a_row(archiving, lake, sides):
    with clock(NOW - 2 * DAY):
        flow = chain(fails("sometimes")).enqueue()
        run()
    list(archiving().run(NOW - DAY))
    call_command("run_pipeline", "restore", "--since", str(NOW - 3 * DAY), "--lake", lake.path)
    does("sometimes", lambda: 7)
    with clock(NOW - DAY):
        assert flow.retry() == 1
        run()
    list(archiving().run(NOW))
    found = sorted(sides(Flows, [flow.id]), key=lambda row: row["ended_at"])
    assert [row["state"] for row in found] == ["failed", "succeeded"]


@ONE_DATABASE
def test_a_batch_reads_no_flows_that_an_earlier_one_has_copied(archiving, monkeypatch):
    read = []
    rows_of = SideRows._flow_rows
    monkeypatch.setattr(SideRows, "_flow_rows", lambda self, page: read.append(len(page)) or rows_of(self, page))
    ended = {}
    for days in (9, 8, 3):
        with clock(NOW - days * DAY):
            ended[days] = a_flow(tasks.nothing.s()).id
            run()
    list(archiving().run(NOW - 5 * DAY))
    list(archiving().run(NOW))
    assert read == [2, 1]


@ONE_DATABASE
def test_a_flow_whose_end_was_committed_late_is_copied_by_the_next_batch(archiving, sides):
    with clock(NOW - 2 * DAY):
        late, _ = a_flow(tasks.nothing.s()), a_flow(tasks.nothing.s())
        run()
    ended_at = Row.objects.get(id=late.id).ended_at
    Row.objects.filter(id=late.id).update(ended_at=None)
    list(archiving().run(NOW - DAY))
    assert not sides(Flows, [late.id])
    with clock(NOW - DAY):
        tasks.nothing.enqueue()
        run()
    Row.objects.filter(id=late.id).update(ended_at=ended_at + timedelta(hours=1))
    list(archiving().run(NOW))
    assert len(sides(Flows, [late.id])) == 1


@ONE_STORE
def test_check_tells_which_of_their_files_are_gone(archiving, lake, capsys):
    given_ends()
    list(archiving().run(NOW))
    call_command("run_pipeline", "check", "--lake", lake.path)
    gone = sorted(Path(lake.path).glob("_*/*.parquet"))
    assert len(gone) == 2
    for path in gone:
        path.unlink()
    with pytest.raises(CommandError, match="2 faults in the lake"):
        call_command("run_pipeline", "check", "--lake", lake.path)
    said = capsys.readouterr().out
    assert f"_flows/{gone[0].name} is missing, with 1 rows" in said
    assert f"_steps/{gone[1].name} is missing, with 6 rows" in said


@ONE_DATABASE
def test_a_message_that_is_restored_goes_on_with_its_steps(archiving, lake, store, sides, capsys):
    _, orders, _, steps = given_ends()
    list(archiving().run(NOW))
    call_command("run_pipeline", "status", "--lake", lake.path)
    assert "1 ends of flows and 6 recorded steps of messages beside them" in capsys.readouterr().out
    forget_steps(store, limit=100)

    call_command("run_pipeline", "restore", "--ids", ",".join(map(str, orders)), "--lake", lake.path)
    back = list(RecordedStep.objects.values("message_id", "generation", "name", "result", "recorded_at"))
    assert by_name({**row, "kind": order.module_path} for row in back) == by_name(steps)
    assert operator_store(store.alias).revive([Revival(orders[1], NOW)], "failed") == {orders[1]}
    with clock(NOW):
        run()
    assert done == [7, 13, 8]  # nothing was charged twice
    list(archiving().run(NOW + DAY))
    assert not FinishedMessage.objects.exists()
    assert len(sides(RecordedSteps, orders)) == 6
    assert not Message.objects.exists()


@ONE_STORE
def test_compact_joins_the_files_of_both(archiving, lake, sides, capsys):
    with clock(NOW - 4 * DAY):
        flow, _, _, steps = given_ends()
    list(archiving().run(NOW - DAY / 2))
    with clock(NOW - DAY / 4):
        other = int(order.enqueue(9).id)
        later = chain(tasks.nothing.si()).enqueue()
        run()
    list(archiving().run(NOW))
    before = by_name(sides(RecordedSteps, [row["message_id"] for row in steps] + [other]))
    call_command("run_pipeline", "compact", "--lake", lake.path)
    told = capsys.readouterr().out
    assert "2 files of _flows with 2 rows are now 1." in told
    assert "2 files of _steps with 8 rows are now 1." in told
    assert by_name(sides(RecordedSteps, [row["message_id"] for row in steps] + [other])) == before
    assert {row["id"] for row in sides(Flows, [flow.id, later.id])} == {flow.id, later.id}
    call_command("run_pipeline", "check", "--lake", lake.path)


@ONE_STORE
def test_results_of_sensitive_tasks_are_masked_and_not_restored(archiving, lake, settings, sides):
    settings.DELAYEDQ = {"ARCHIVE_SENSITIVE": "masked"}
    with clock(NOW - DAY):
        id_ = int(secret.enqueue(7).id)
        run()
    RecordedStep.objects.update(recorded_at=NOW - timedelta(days=1))
    list(archiving().run(NOW))
    assert [row["result"] for row in sides(RecordedSteps, [id_])] == [MASKED]
    RecordedStep.objects.all().delete()
    call_command("run_pipeline", "restore", "--ids", str(id_), "--lake", lake.path)
    assert not RecordedStep.objects.exists()
