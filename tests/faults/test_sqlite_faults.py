"""Torture while an SQLite file can't be written: nothing is lost, and it goes on when it can."""

from __future__ import annotations

import pytest

from tests.faults.judged import holds
from tests.faults.sqlite_faults import FAULTS
from tests.nightly import few_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: Those of each run; `.ci/nightly` tries the others. How a worker gets over `read_only` has a test of its own.
FEW = ["fill_disk"]


@pytest.mark.parametrize("fault", few_of(FAULTS, FEW))
def test_everything_holds_under_each_fault_of_the_file(fault):
    holds("tests.faults.sqlite_faults", fault, as_root=True)
