"""Torture while an SQLite file can't be written: nothing is lost, and it goes on when it can."""

from __future__ import annotations

import os

import pytest

from tests.faults.judged import holds
from tests.faults.sqlite_faults import FAULTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: Those of each run; `.ci/nightly` tries all. How a worker gets over `read_only` has a test of its own.
FEW = ["fill_disk"]


@pytest.mark.parametrize("fault", FAULTS if "DELAYEDQ_TEST_ALL_FAULTS" in os.environ else FEW)
def test_everything_holds_under_each_fault_of_the_file(fault):
    holds("tests.faults.sqlite_faults", fault, as_root=True)
