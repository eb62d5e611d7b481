"""Polars and DuckDB beside an archive that moves and is compacted: they see only what is published."""

from __future__ import annotations

from delayedq.pipeline.spark import compacting
from tests.pipeline.archives import ONE_STORE
from tests.pipeline.given import NOW, history
from tests.pipeline.lake.engines import read_by_all


@ONE_STORE
def test_at_each_step_of_archive_and_compaction_they_read_what_is_published(archiving, lake, monkeypatch):
    history(6, days=1)
    seen = []

    def tell(batch):
        seen.append(read_by_all(lake.path) if lake.table.exists() else [])

    list(archiving(tell=tell).run(NOW, batch_rows=2))
    two, four, each = [1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6]
    assert seen == [[], [], two, two, two, four, four, four, each]

    real = compacting._committed
    monkeypatch.setattr(compacting, "_committed", lambda *given: seen.append(read_by_all(lake.path)) or real(*given))
    assert [done.before > done.after for done in compacting.compact(lake)] == [True]
    assert seen[-1] == read_by_all(lake.path) == each
