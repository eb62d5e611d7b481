"""Torture while a MariaDB server, its disk or the way to it fails: nothing is lost, nothing overlaps."""

from __future__ import annotations

import os

import pytest

from tests.faults.judged import holds
from tests.faults.mariadb_faults import FAULTS, ON_A_DISK

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


#: Those of each run; `.ci/nightly` tries all.
FEW = ["kill_server", "kill_connections", "read_only", "stall"]


@pytest.mark.parametrize("fault", FAULTS if "DELAYEDQ_TEST_ALL_FAULTS" in os.environ else FEW)
def test_everything_holds_under_each_fault_of_the_server(fault, mariadb):
    holds("tests.faults.mariadb_faults", fault, as_root=fault in ON_A_DISK)
