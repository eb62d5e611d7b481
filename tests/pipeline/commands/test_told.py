"""What the dashboard and the doctor tell of a real lake, by the books."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from delayedq.operations.verdict import verdict
from tests.pipeline.archives import ONE_STORE
from tests.pipeline.given import NOW, history

pytestmark = ONE_STORE


@pytest.fixture
def kept(archiving, lake, settings):
    """A lake that is set, with three messages."""
    settings.DELAYEDQ = {"LAKE": lake.path}
    history(3)
    list(archiving().run(NOW))
    return Path(lake.path)


def told(store):
    return [finding.subject for finding in verdict(store)]


def test_a_lake_that_was_moved_is_told_until_a_check_has_found_it_where_it_is_set(store, kept, settings, tmp_path):
    assert told(store) == []
    new = kept.rename(tmp_path / "moved")
    settings.DELAYEDQ = {"LAKE": str(new)}
    assert told(store) == ["moved lake"]

    call_command("run_pipeline", "check")
    assert told(store) == []


def test_a_check_of_an_empty_lake_does_not_hide_that_history_is_elsewhere(store, kept, settings, tmp_path):
    from delayedq.pipeline.lake.table import LakeTable

    settings.DELAYEDQ = {"LAKE": str(tmp_path / "new")}
    LakeTable(str(tmp_path / "new")).create()
    call_command("run_pipeline", "check")

    assert told(store) == ["moved lake"]


def test_what_a_check_finds_is_told_of_the_lake_that_is_in_use_and_of_no_other(store, kept, settings, tmp_path):
    next(kept.rglob("*.parquet")).unlink()
    with pytest.raises(CommandError, match="faults in the lake"):
        call_command("run_pipeline", "check")
    (finding,) = verdict(store)
    assert "is missing, with" in finding.sentence
    assert finding.evidence == [f"manage.py run_pipeline check --lake {kept}"]

    settings.DELAYEDQ = {"LAKE": None}
    assert told(store) == ["lake faults"]
    settings.DELAYEDQ = {"LAKE": str(tmp_path / "copy")}
    assert told(store) == ["moved lake"]
