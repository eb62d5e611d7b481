"""Workers that are killed beside a decision of a handler: it is neither lost nor made twice."""

from __future__ import annotations

import json
import signal
import sys

import pytest

from delayedq.desk.models import Item
from delayedq.models import FinishedMessage, Message
from tests.app import deciding
from tests.worker.conftest import eventually

pytestmark = pytest.mark.slow


@pytest.mark.skipif(sys.platform != "linux", reason="kills its own process")
def test_a_handlers_decision_is_neither_lost_nor_made_twice(workers, tmp_path):
    ids = {moment: int(deciding.decide.enqueue(moment, str(tmp_path)).id) for moment in deciding.MOMENTS}
    one = workers("--lease", "1", "--processes", "1", "--threads", "1", DECIDING="1")
    eventually(lambda: not Message.objects.exists(), timeout=90)
    one.send(signal.SIGTERM)
    one.finish()

    assert {path.name for path in tmp_path.iterdir()} == set(deciding.MOMENTS[1:])
    recorded = [row.payload for row in FinishedMessage.objects.filter(kind="delayedq.desk.tasks.decided")]
    decisions = {json.loads(payload)["kwargs"]["message_id"]: json.loads(payload)["kwargs"] for payload in recorded}
    assert len(recorded) == len(decisions) == len(ids)
    for moment, number in ids.items():
        item, ended = Item.objects.get(message_id=number), FinishedMessage.objects.get(pk=number)
        assert (item.is_open, item.is_automated, ended.outcome) == (False, True, "succeeded"), moment
        assert json.loads(item.decision) == json.loads(ended.result) == decisions[number]["decision"], moment
        assert decisions[number]["decision"]["moment"] == moment
