"""How often the archive reads the files of a lake: the scans in the plans that Spark has run."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from delayedq.exceptions import ArchiveFailed
from delayedq.models import FinishedMessage
from delayedq.pipeline.models import ArchiveBatch, ArchiveState
from tests.pipeline.archives import ONE_STORE, archived
from tests.pipeline.commands.test_archive_exact import Told, parquet, restored, truncate
from tests.pipeline.given import NOW, history, ids


class Scans:
    """The scans of Parquet files that Spark has run since this began."""

    def __init__(self, spark):
        self._bus = spark.sparkContext._jsc.sc().listenerBus()
        self._store = spark._jsparkSession.sharedState().statusStore()
        self._before = max(self._ids(), default=-1)

    def of(self, directory):
        """How many have read files of this directory of the lake."""
        ids = [id_ for id_ in self._ids() if id_ > self._before]
        place = re.compile(rf"/{directory}[/,\]]")
        return sum(place.search(node) is not None for id_ in ids for node in self._nodes(id_))

    def _ids(self):
        """Of the last ones, which Spark still knows."""
        self._bus.waitUntilEmpty()
        executions = self._store.executionsList()
        return [executions.apply(place).executionId() for place in range(executions.size())]

    def _nodes(self, id_):
        nodes = self._store.planGraph(id_).allNodes()
        for place in range(nodes.size()):
            node = nodes.apply(place)
            if node.name().startswith("Scan parquet"):
                yield node.desc()


@pytest.fixture
def counted(spark):
    """Runs a batch; returns what it did and, by its state, how often its own files and those of the first were read."""
    spark.conf.set("spark.sql.maxMetadataStringLength", "10000")

    def run(archiving):
        new, old, seen = Counter(), Counter(), []
        first = ArchiveBatch.objects.order_by("number").first()

        def note():
            if seen:
                state, began = seen[-1]
                batch = ArchiveBatch.objects.latest("number")
                new[state] = began.of(batch.directory)
                old[state] = began.of(first.directory) if first else 0

        def tell(batch):
            note()
            seen.append((batch.state, Scans(spark)))

        [done] = archiving(here=None, tell=tell).run(NOW)
        note()
        return done, +new, +old

    yield run
    spark.conf.unset("spark.sql.maxMetadataStringLength")


@ONE_STORE
def test_new_files_are_read_once_to_verify_them_and_once_to_delete_what_they_hold(archiving, counted):
    history(30)

    done, new, _ = counted(archiving)

    assert done.deleted == 30
    assert new == {ArchiveState.WRITTEN: 1, ArchiveState.VERIFIED: 1}


@ONE_STORE
@pytest.mark.parametrize("changed", [False, True], ids=["as they were", "one is changed"])
def test_beside_an_older_batch_files_are_read_no_more_often(archiving, counted, lake, store, changed):
    """Rows of the older one are in the table again. Each is read to find copies; two plans write the others anew."""
    history(20)
    list(archiving().run(NOW))
    restored(Told(store, lake), *range(3, 9))
    if changed:
        FinishedMessage.objects.filter(id=4).update(result='"other"')
    history(10, first=101)

    done, new, old = counted(archiving)

    assert (done.row_count, done.added, done.replaced, done.deleted) == (16, 10 + changed, changed, 16)
    assert (archived(lake), ids()) == ([*range(1, 21), *range(101, 111)], set())
    assert new == {ArchiveState.WRITTEN: 1 + 2 * changed, ArchiveState.VERIFIED: 1}
    assert old[ArchiveState.PLANNED] == 1
    assert old[ArchiveState.WRITTEN] == 1 + 2 * changed


@ONE_STORE
def test_a_file_that_is_damaged_after_it_was_verified_keeps_its_rows_in_the_table(archiving, lake):
    """Why files are read again as their rows are deleted."""
    history(30)

    def damage(batch):
        if batch.state == ArchiveState.VERIFIED:
            truncate(parquet(lake)[0])

    with pytest.raises(ArchiveFailed, match="1 of its files are damaged, with 5 rows"):
        list(archiving(here=None, tell=damage).run(NOW))

    assert ids() == set(range(1, 6))
