"""Torture while a MariaDB server, its disk or the way to it fails: nothing is lost, nothing overlaps."""

from __future__ import annotations

import pytest

from tests.faults.judged import holds
from tests.faults.mariadb_faults import FAULTS, ON_A_DISK
from tests.nightly import few_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


#: Those of each run; `.ci/nightly` tries the others.
FEW = ["kill_server", "read_only"]


@pytest.mark.parametrize("fault", few_of(FAULTS, FEW))
def test_everything_holds_under_each_fault_of_the_server(fault, mariadb):
    holds("tests.faults.mariadb_faults", fault, as_root=fault in ON_A_DISK)
