"""Several processes of a contender are timed as one."""

from __future__ import annotations

import pytest

from tests.benchmarks import arena


def test_the_calls_of_several_processes_are_added_up():
    with arena.postgresql() as place:
        place.prepare("floor")
        place.run("floor", "fill", 1500)

        assert place.lap_time_together("floor", 2, 1500) > 0
        assert place.execute("SELECT count(*) FROM finished", "floor") == [(1500,)]

        with pytest.raises(ValueError, match="0 of 1 tasks were called"):
            place.lap_time_together("floor", 2, 1)
