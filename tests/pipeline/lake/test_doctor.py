"""The doctor looks into the lake."""

from __future__ import annotations

import shutil

import pytest

from delayedq.models import FinishedMessage
from delayedq.operations.doctor import diagnose
from tests.pipeline.given import history
from tests.pipeline.lake.booked import archive

pytestmark = pytest.mark.usefixtures("no_statistics_of_other_tests")


def test_a_lake_is_found_well_and_missed_when_it_is_gone(store, table, settings):
    settings.DELAYEDQ = {"LAKE": table.path}
    history(3)
    archive(table, list(FinishedMessage.objects.all()))
    assert diagnose(store) == []

    shutil.rmtree(table.path)
    (gone,) = diagnose(store)

    assert gone.condition == "lake"
    assert "1 batches of history are in it" in gone.sentence


def test_a_lake_that_is_yet_to_be_made_is_no_fault(store, settings, tmp_path):
    settings.DELAYEDQ = {"LAKE": str(tmp_path / "lake")}

    assert diagnose(store) == []
