from __future__ import annotations

import pytest


@pytest.fixture
def table(tmp_path):
    """An empty lake."""
    from delayedq.pipeline.lake.table import LakeTable

    made = LakeTable(str(tmp_path / "lake"))
    made.create()
    return made
