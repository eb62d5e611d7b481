"""Torture while a PostgreSQL server, its disk or the way to it fails: nothing is lost, nothing overlaps."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.faults.judged import holds
from tests.faults.postgresql_faults import BEHIND_A_POOLER, FAULTS, ON_A_DISK, WITH_A_CLOCK
from tests.missing import missing
from tests.nightly import few_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: Those of each run, of which some have once found what the others had not; `.ci/nightly` tries the others.
FEW = ["kill_server", "forget_connections", "fail_over", "serializable"]


@pytest.mark.parametrize("fault", few_of(FAULTS, FEW))
def test_everything_holds_under_each_fault_of_the_server(fault, postgresql):
    if fault in WITH_A_CLOCK and shutil.which("gcc") is None:
        missing("hosts")
    if fault in BEHIND_A_POOLER and shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        missing("pgbouncer")
    holds("tests.faults.postgresql_faults", fault, as_root=fault in ON_A_DISK)
