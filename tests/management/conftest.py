"""Fixtures: schedules in the settings, a stopped clock, and output that the environment does not change."""

from __future__ import annotations

import pytest

from tests.management.given import NOW


@pytest.fixture(autouse=True)
def _plain_output(monkeypatch):
    for variable in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture
def schedules(settings):
    """Put these schedules into the settings."""

    def define(**given):
        settings.DELAYEDQ = {"CRON": given}

    return define


@pytest.fixture
def now(store, monkeypatch):
    """Stop the clock of the store."""
    monkeypatch.setattr(type(store), "now", lambda self: NOW)
    return NOW
