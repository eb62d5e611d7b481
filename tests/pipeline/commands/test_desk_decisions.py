"""Decisions of people and handlers stand side by side in the lake, and beside the message that they have ended."""

from __future__ import annotations

import pytest
from pyspark.sql import functions

from delayedq import desk
from delayedq.desk.models import Automation
from delayedq.models import FinishedMessage
from delayedq.testing import clock, run_due
from tests.desk.given import ALL, QUEUE, opened, person, refund
from tests.pipeline.given import DAY, NOW

ONE_DATABASE = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
FIELDS = ["message_id", "verb", "by", "mode", "decision", "proposal", "truth", "agreed"]


def decide(ann):
    """Ann decides otherwise than the handler, misses a known answer that the handler knows; then the handler alone."""
    Automation.objects.create(kind=refund.module_path, mode="shadow")
    first = opened()
    first.take(ann)
    first.finish({"amount": 90, "paid": True}, by=ann)
    known = desk.plant(refund, (70,), answer={"amount": 70, "paid": True})
    run_due()
    desk.take_next(ann, QUEUE).finish({"amount": 1}, by=ann)
    Automation.objects.update(mode="automatic")
    return first.message_id, int(known.id), opened(refund, 50).message_id


@ONE_DATABASE
def test_both_decisions_are_read_back_from_the_archive(archiving, lake):
    with clock(NOW - DAY):
        ids = decide(person("ann", *ALL))
        run_due()
    list(archiving().run(NOW))
    assert not FinishedMessage.objects.exists()

    history = lake.history()
    ended = history.where(history.kind == refund.module_path).select(history.id, history.result)
    recorded = history.where(history.kind == "delayedq.desk.tasks.decided")
    columns = [functions.get_json_object("payload", f"$.kwargs.{name}").alias(name) for name in FIELDS]
    both = recorded.select(*columns).join(ended, functions.col("message_id") == ended.id)
    rows = {int(row.message_id): row for row in both.collect()}
    first, known, last = (rows[number] for number in ids)
    ninety, hundred = '{"amount":90,"paid":true}', '{"amount":100,"paid":true}'
    assert [first[name] for name in FIELDS[1:]] == ["finish", "ann", "shadow", ninety, hundred, None, "false"]
    assert (known.proposal, known.truth, known.agreed) == ('{"amount":70,"paid":true}',) * 2 + ("true",)
    assert known.decision == '{"amount":1,"paid":false}'
    assert (last.verb, last.by, last.decision) == ("automate", None, '{"amount":50,"paid":true}')
    assert all(row.result == row.decision for row in rows.values())
    assert len(rows) == 3
