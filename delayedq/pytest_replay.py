"""`pytest --delayedq-replay FILE`: a test for each kind of message in the file, and no others."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

#: The name of what reports carry from the process that ran a test to the one that prints the summary.
PROPERTY = "delayedq_replay"


def check(config: pytest.Config, path: Path) -> None:
    """Raises UsageError."""
    if not path.exists():
        raise pytest.UsageError(f"--delayedq-replay: there is no file {path}.")
    if not config.pluginmanager.hasplugin("django"):
        raise pytest.UsageError("--delayedq-replay needs pytest-django: pip install pytest-django.")


class ReplayPlugin:
    """Collects the file in place of tests, within the first folder that has some, whose fixtures hold for it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.collected = False

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, parent: pytest.Collector) -> Generator[None, list[Any], list[Any]]:
        tests = yield
        return [ReplayFile.from_parent(parent, path=self._path, plugin=self)] if tests else []

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        reports = [report for found in terminalreporter.stats.values() for report in found]
        reports = [report for report in reports if getattr(report, "when", None) == "call"]
        counts = [dict(getattr(report, "user_properties", ())).get(PROPERTY, (0, 0, 0, 0)) for report in reports]
        same, differ, unreadable, left_out = map(sum, zip((0, 0, 0, 0), *counts, strict=True))
        terminalreporter.section(f"delayedq replay of {self._path}")
        terminalreporter.write_line(
            f"{same:,} ended as before, {differ:,} in another way; {unreadable:,} can't be read, {left_out:,} left out."
        )


class ReplayFile(pytest.Module):
    """The file. It is a module for the sake of fixtures of that scope.

    Each folder on the way to the tests that were asked for has one; the first that pytest looks into is it.
    """

    def __init__(self, *, plugin: ReplayPlugin, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._plugin = plugin

    def _getobj(self) -> Any:
        return sys.modules[__name__]

    def collect(self) -> Iterator[pytest.Item]:
        from delayedq.testing.replay import HistoryFileError, open_history

        if self._plugin.collected:
            return
        self._plugin.collected = True
        try:
            kinds = open_history(self.path).kinds()
        except HistoryFileError as error:
            raise self.CollectError(str(error)) from None
        for kind in sorted(kinds):
            test = pytest.Function.from_parent(self, name=kind, callobj=_test(self.path, kind))
            test.add_marker(pytest.mark.django_db(databases="__all__"))
            yield test


def _test(path: Path, kind: str) -> Callable[..., None]:
    def test(record_property: Callable[[str, object], None]) -> None:
        from delayedq.testing.replay import replay

        report = replay(path, kind=kind)
        counts = (report.same, report.differences.total(), report.unreadable.total(), report.left_out.total())
        record_property(PROPERTY, counts)
        if not report:
            pytest.fail(str(report), pytrace=False)

    return test
